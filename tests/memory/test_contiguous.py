"""Contiguous regions: the buddy system, and a state machine in which groups begin, fork, compute and end while a simulated
cache is written through the block tables. After every rule each sequence must read its own tokens back.
"""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.config import KVAllocation
from octavo.engine.sequence import Sequence
from octavo.memory.block_pool import OutOfBlocksError
from octavo.memory.buddy import BuddyPool
from octavo.memory.contiguous import RESERVATIONS, ContiguousKVManager
from octavo.memory.kv_cache_manager import KVCacheManager, KVUsage

NUM_ROWS, MAX_MODEL_LEN = 12, 24


@given(num_blocks=st.integers(1, 70), actions=st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=60))
@settings(max_examples=200)
def test_buddies_are_split_and_merged(num_blocks: int, actions: list[tuple[bool, int]]) -> None:
    pool = BuddyPool(num_blocks)
    runs: list[tuple[int, int]] = []
    for takes, number in actions:
        if takes and pool.fits([number]):
            runs.append((pool.allocate(number), number))
        elif takes:
            with pytest.raises(OutOfBlocksError):
                pool.allocate(number)
        elif runs:
            pool.free(*runs.pop(number % len(runs)))
        pool.check(runs)
    while runs:
        pool.free(*runs.pop())
        pool.check(runs)
    assert pool.num_free == num_blocks and pool.num_used == 0
    for order in range(num_blocks.bit_length()):  # what was split is whole again
        fitting = num_blocks >> order
        assert pool.fits([order] * fitting) and not pool.fits([order] * (fitting + 1))


@given(num_blocks=st.integers(1, 70), taken=st.lists(st.integers(0, 3), max_size=6), orders=st.lists(st.integers(0, 5)))
@settings(max_examples=200)
def test_what_fits_together_can_be_taken_together(num_blocks: int, taken: list[int], orders: list[int]) -> None:
    pool = BuddyPool(num_blocks)
    runs = [(pool.allocate(order), order) for order in taken if pool.fits([order])]
    for start, order in runs[::2]:  # leave holes
        pool.free(start, order)
    if pool.fits(orders):
        for order in sorted(orders, reverse=True):
            pool.allocate(order)
    elif orders:
        with pytest.raises(OutOfBlocksError):
            for order in sorted(orders, reverse=True):
                pool.allocate(order)


def test_the_lowest_of_the_smallest_runs_is_taken() -> None:
    pool = BuddyPool(12)
    assert [pool.allocate(order) for order in (2, 0, 1, 2)] == [8, 0, 2, 4]
    pool.free(4, 2)
    assert pool.allocate(0) == 1, "a single block is left from a split"
    assert not pool.fits([3]) and pool.fits([2])


def manager(allocation: KVAllocation = "orca-oracle", **changes: Any) -> ContiguousKVManager:
    arguments: dict[str, Any] = {"block_size": 4, "num_blocks": 32, "num_rows": 8, "max_model_len": 40}
    return ContiguousKVManager(allocation=allocation, **{**arguments, **changes})


def sequence(prompt_len: int, max_len: int, *, group_size: int = 1, reforks: bool = False) -> Sequence:
    tokens = list(range(prompt_len))
    return Sequence(0, 0, 0, tokens, prompt_len, b"", KVUsage(), max_len, group_size=group_size, reforks=reforks)


def compute(kv: ContiguousKVManager, seq: Sequence, num_tokens: int) -> None:
    kv.allocate(seq, num_tokens)
    kv.hold_row(seq)
    seq.num_computed += num_tokens


@pytest.mark.parametrize(
    ("allocation", "tokens", "blocks"),
    [("orca-max", 40, 16), ("orca-pow2", 10 + 16, 8), ("orca-oracle", 10 + 9, 8), ("fastertransformer", 40, 16)],
)
def test_how_much_is_reserved_and_what_for(allocation: KVAllocation, tokens: int, blocks: int) -> None:
    kv = manager(allocation)
    seq = sequence(10, 19)
    assert kv.fits([(seq, 10)]) and kv.blocks_needed(prompt_len=10, max_len=19, num_sequences=1) == blocks
    compute(kv, seq, 7)
    slots = kv.slots([seq], short=False)
    assert (slots.total, slots.tokens, slots.reserved) == (128, 7, 12)
    assert (slots.internal, slots.rounding, slots.free) == (tokens - 19, 4 * blocks - tokens, 128 - 4 * blocks)
    assert kv.slots([seq], short=True).unusable == slots.free == kv.slots([seq], short=True).external - slots.rounding
    assert kv.gather_tables([seq]).tolist() == [[0, 1]], "as far as it is computed"
    assert slots.wanted == 4 * blocks and kv.token_slots_used([seq]) == 7 and seq.usage.allocated == blocks
    kv.check([seq])


def test_the_next_power_of_two_never_exceeds_the_longest_sequence() -> None:
    kv = manager("orca-pow2")
    assert [kv.blocks_needed(prompt_len=4, max_len=4 + n, num_sequences=1) for n in (1, 4, 5, 8, 9, 36)] == [2, 2, 4, 4, 8, 16]


def test_a_group_is_reserved_as_a_whole() -> None:
    kv = manager()
    group = sequence(10, 16, group_size=3)
    assert kv.fits([(group, 10)]) and not kv.fits([(sequence(10, 16, group_size=9), 10)])
    compute(kv, group, 10)
    assert kv.device.num_used == 12
    slots = kv.slots([group], short=False)
    assert (slots.tokens, slots.reserved) == (10, 3 * 16 - 10)
    child = sequence(10, 16)
    kv.fork(group, child)
    assert not kv.has_copies, "the last prompt token is only being computed"
    compute(kv, child, 1)
    assert kv.take_copies().copy == [(0, 4), (1, 5), (2, 6)] and kv.counters.copy_on_write == 3
    kv.free(child)
    assert kv.device.num_used == 8, "one that ended is given back, its sibling that is yet to begin is not"
    kv.free(group)
    kv.check([])
    assert kv.device.num_free == 32


def test_beams_keep_the_regions_of_dead_beams_and_copy_in_order() -> None:
    kv = manager()
    first = sequence(8, 16, group_size=2, reforks=True)
    compute(kv, first, 8)
    second = sequence(8, 16)
    kv.fork(first, second)
    compute(kv, first, 1)
    compute(kv, second, 1)
    kv.take_copies()
    third, fourth = sequence(8, 16), sequence(8, 16)
    kv.free(first)
    assert kv.device.num_used == 8
    kv.fork(second, third)  # into the region of the first
    kv.free(second)  # read before anyone else may have it
    kv.fork(third, fourth)  # not copied to yet when it is forked itself
    for seq in (third, fourth):
        compute(kv, seq, 1)
    assert kv.take_copies().copy == [(4, 0), (5, 1), (6, 2), (0, 4), (1, 5), (2, 6)]
    kv.check([third, fourth])


def test_a_batch_is_given_back_as_a_whole() -> None:
    kv = manager("fastertransformer")
    short, long = sequence(4, 8), sequence(4, 16)
    for seq in (short, long):
        compute(kv, seq, 4)
    kv.free(short)
    kv.check([long])
    slots = kv.slots([long], short=True)
    assert (slots.tokens, slots.reserved, slots.internal) == (4, 12, 40 + 24) and kv.device.num_free == 0
    assert slots.rounding == 2 * 24 and slots.unusable == 0
    kv.free(long)
    kv.check([])
    assert kv.device.num_free == 32


def test_blocks_waste_only_the_end_of_the_last_one() -> None:
    kv = KVCacheManager(
        block_size=4, num_blocks=8, num_host_blocks=0, num_rows=4, max_blocks=4, enable_prefix_caching=True, namespace=""
    )
    parent, child = sequence(6, 12), sequence(6, 12)
    kv.allocate(parent, 6)
    parent.num_computed = 6
    kv.publish(parent, 6)
    kv.fork(parent, child)
    slots = kv.slots([parent, child], short=False)
    assert (slots.total, slots.tokens, slots.internal, slots.free, slots.saved) == (32, 6, 2, 24, 8)
    kv.free(parent)
    kv.free(child)
    assert (kv.slots([], short=False).cached, kv.slots([], short=False).free) == (4, 28)
    assert kv.slots([], short=True).unusable == 32


def test_misuse_is_loud() -> None:
    kv = manager()
    seq = sequence(4, 8)
    compute(kv, seq, 4)
    with pytest.raises(OutOfBlocksError):
        kv.fork(seq, sequence(4, 8))
    with pytest.raises(OutOfBlocksError):
        kv.swap_out([seq])
    with pytest.raises(OutOfBlocksError):
        kv.swap_in([seq])
    with pytest.raises(LookupError):
        kv.pin([1, 2, 3, 4])
    assert not kv.unpin([1, 2, 3, 4]) and kv.num_pinned == 0


class ContiguousMachine(RuleBasedStateMachine):
    """Steps as the scheduler makes them: plan (allocate, perhaps fork), copies, forward; ends and forks in between."""

    @initialize(
        allocation=st.sampled_from(list(RESERVATIONS)), block_size=st.sampled_from([1, 2, 4]), num_blocks=st.integers(24, 90)
    )
    def start(self, allocation: KVAllocation, block_size: int, num_blocks: int) -> None:
        self.bs = block_size
        self.kv = ContiguousKVManager(
            allocation=allocation,
            block_size=block_size,
            num_blocks=num_blocks,
            num_rows=NUM_ROWS,
            max_model_len=MAX_MODEL_LEN,
        )
        self.cells: list[list[Any]] = [[None] * block_size for _ in range(num_blocks)]
        self.groups: list[list[Sequence]] = []

    @property
    def sequences(self) -> list[Sequence]:
        return [seq for group in self.groups for seq in group]

    @rule(prompt=st.integers(1, 12), output=st.integers(1, 12), size=st.integers(1, 4), reforks=st.booleans())
    def begin(self, prompt: int, output: int, size: int, reforks: bool) -> None:
        seq = sequence(prompt, prompt + output, group_size=size, reforks=reforks)
        if sum(group[0].group_size for group in self.groups) + size <= NUM_ROWS and self.kv.fits([(seq, prompt)]):
            self.groups.append([seq])
            self.step([(seq, prompt)], forks=not reforks)

    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        """Some sequences, with or without their siblings, compute one token each."""
        able = [seq for seq in self.sequences if seq.num_computed < seq.max_len]
        if able:
            chosen = data.draw(st.lists(st.sampled_from(able), unique=True, min_size=1))
            for seq in chosen:
                if seq.num_computed == len(seq.token_ids):
                    seq.token_ids.append(data.draw(st.integers(0, 9)))
            assert self.kv.fits([(seq, 1) for seq in chosen]), "what is reserved always fits"
            self.step([(seq, 1) for seq in chosen], forks=False)

    def step(self, wanted: list[tuple[Sequence, int]], *, forks: bool) -> None:
        for seq, num_tokens in wanted:
            compute(self.kv, seq, num_tokens)
            group = next(group for group in self.groups if seq in group)
            while forks and len(group) < seq.group_size:
                self.fork_one(group, seq)
        copies = self.kv.take_copies()
        assert not copies.swap_in and not copies.swap_out
        for source, target in copies.copy:
            self.cells[target] = list(self.cells[source])
        for seq, num_tokens in wanted:
            table = self.kv.gather_tables([seq])[0]
            for position in range(seq.num_computed - num_tokens, seq.num_computed):
                self.cells[table[position // self.bs]][position % self.bs] = seq.token_ids[position]

    def fork_one(self, group: list[Sequence], parent: Sequence) -> None:
        child = sequence(parent.prompt_len, parent.max_len, group_size=parent.group_size, reforks=parent.reforks)
        child.token_ids = parent.token_ids[: parent.num_computed]
        self.kv.fork(parent, child)
        self.kv.hold_row(child)
        group.append(child)

    @rule(data=st.data())
    def search(self, data: st.DataObject) -> None:
        """A step of a beam search: dead beams end, then survivors fork, perhaps before they were copied to themselves."""
        groups = [group for group in self.groups if group[0].reforks]
        if groups:
            group = data.draw(st.sampled_from(groups))
            survivors = data.draw(st.lists(st.sampled_from(group), unique=True, min_size=1))
            for seq in [seq for seq in group if seq not in survivors]:
                self.kv.free(seq)
                group.remove(seq)
            while len(group) < group[0].group_size:
                self.fork_one(group, data.draw(st.sampled_from(group)))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.sequences:
            seq = data.draw(st.sampled_from(self.sequences))
            self.kv.free(seq)
            self.groups = [g for group in self.groups if (g := [s for s in group if s is not seq])]

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        if not hasattr(self, "kv"):
            return
        cells = list(self.cells)
        for source, target in self.kv._copy:  # the next step begins with these
            cells[target] = cells[source]
        for seq in self.sequences:
            owner = self.kv._uncopied.get(seq, (seq, 0))[0]
            read = [cells[owner.blocks[p // self.bs].id][p % self.bs] for p in range(seq.num_computed)]
            assert read == seq.token_ids[: seq.num_computed]

    @invariant()
    def everything_adds_up(self) -> None:
        if hasattr(self, "kv"):
            self.kv.check(self.sequences)
            slots = self.kv.slots(self.sequences, short=False)
            parts = (slots.tokens, slots.reserved, slots.internal, slots.rounding, slots.free)
            assert min(parts) >= 0 and sum(parts) == slots.total
            if not self.groups:
                assert self.kv.device.num_free == self.kv.device.num_blocks


ContiguousMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestContiguousKVManager = ContiguousMachine.TestCase
