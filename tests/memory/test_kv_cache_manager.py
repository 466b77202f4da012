"""A state machine on the KV cache manager. The oracle: every sequence's tokens, and a simulated cache written through the
block tables. After every rule each sequence must read its own tokens back.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.engine.sequence import Sequence
from octavo.memory.block_pool import BlockPool, OutOfBlocksError
from octavo.memory.block_table import BlockTables, OutOfRowsError
from octavo.memory.kv_cache_manager import KVCacheManager, KVUsage

NUM_ROWS, MAX_TOKENS = 6, 24


def some_group(*, on_host: bool) -> Callable[[Any], bool]:
    """A precondition, so that a step is not spent on what cannot be."""
    return lambda machine: any(group[0].on_host == on_host for group in machine.groups)


class KVCacheMachine(RuleBasedStateMachine):
    @initialize(block_size=st.sampled_from([1, 2, 3, 4, 8]), num_blocks=st.integers(8, 40), num_host=st.integers(0, 30))
    def start(self, block_size: int, num_blocks: int, num_host: int) -> None:
        self.bs = block_size
        self.kv = KVCacheManager(
            block_size=block_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host,
            num_rows=NUM_ROWS,
            max_blocks=-(-MAX_TOKENS // block_size),
            enable_prefix_caching=True,
        )
        self.device: dict[int, list[Any]] = {b: [None] * block_size for b in range(num_blocks)}
        self.host: dict[int, list[Any]] = {b: [None] * block_size for b in range(num_host)}
        self.groups: list[list[Sequence]] = []
        self.pinned: list[list[int]] = []
        self.next_id = 0

    def new_sequence(self, tokens: list[int]) -> Sequence:
        self.next_id += 1
        root = self.kv.cache_root("")
        return Sequence(self.next_id, 0, 0, list(tokens), len(tokens), root, KVUsage(), 10**6)

    @property
    def sequences(self) -> list[Sequence]:
        return [seq for group in self.groups for seq in group]

    def carry_out_copies(self) -> None:
        copies = self.kv.take_copies()
        for source, target in copies.swap_out:
            self.host[target] = list(self.device[source])
        for source, target in copies.swap_in:
            self.device[target] = list(self.host[source])
        for source, target in copies.copy:
            self.device[target] = list(self.device[source])

    def pick_group(self, data: st.DataObject, *, on_host: bool) -> list[Sequence]:
        return data.draw(st.sampled_from([g for g in self.groups if g[0].on_host == on_host]))

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12), at_once=st.sampled_from([True, True, False]))
    @precondition(lambda self: len(self.sequences) < NUM_ROWS)
    def add(self, tokens: list[int], at_once: bool) -> None:
        seq = self.new_sequence(tokens)
        matched = self.kv.match_prefix(seq)
        assert matched < len(tokens) and matched % self.bs == 0
        self.groups.append([seq])
        if at_once:
            self.write(seq, len(tokens) - matched, known=True)

    @property
    def lacking(self) -> list[Sequence]:
        return [seq for seq in self.sequences if not seq.on_host and seq.num_computed < len(seq.token_ids)]

    @rule(data=st.data(), num_tokens=st.integers(1, 8), known=st.sampled_from([True, True, False]))
    @precondition(lambda self: self.lacking)
    def compute(self, data: st.DataObject, num_tokens: int, known: bool) -> None:
        seq = data.draw(st.sampled_from(self.lacking))
        self.write(seq, min(num_tokens, len(seq.token_ids) - seq.num_computed), known=known)

    def write(self, seq: Sequence, num_tokens: int, *, known: bool) -> None:
        demand = self.kv.demand([(seq, num_tokens)])
        if demand > self.kv.device.num_free:
            return
        free = self.kv.device.num_free
        self.kv.allocate(seq, num_tokens)
        assert free - self.kv.device.num_free == demand, "demand is exact"
        self.kv.hold_row(seq)
        self.carry_out_copies()
        table = self.kv.gather_tables([seq])[0]
        for position in range(seq.num_computed, seq.num_computed + num_tokens):
            block = self.kv.device.blocks[table[position // self.bs]]
            assert block.ref_count == 1, "a block with several owners is written to"
            self.device[block.id][position % self.bs] = seq.token_ids[position]
        seq.num_computed += num_tokens
        if known:
            self.kv.publish(seq, seq.num_computed)

    @rule(data=st.data(), token=st.integers(0, 1))
    @precondition(lambda self: self.groups)
    def append(self, data: st.DataObject, token: int) -> None:
        seq = data.draw(st.sampled_from(self.sequences))
        if len(seq.token_ids) < MAX_TOKENS:
            seq.token_ids.append(token)

    @rule(data=st.data(), whole=st.booleans())
    @precondition(lambda self: len(self.sequences) < NUM_ROWS)
    @precondition(some_group(on_host=False))
    def fork(self, data: st.DataObject, whole: bool) -> None:
        group = self.pick_group(data, on_host=False)
        parent = data.draw(st.sampled_from(group))
        child = self.new_sequence(parent.token_ids)
        upto = None if whole else data.draw(st.integers(0, parent.num_computed))
        self.kv.fork(parent, child, upto)
        if not whole:
            child.token_ids = [*child.token_ids[:upto], data.draw(st.integers(0, 1))]
        group.append(child)

    @rule(data=st.data())
    @precondition(some_group(on_host=False))
    def roll_back(self, data: st.DataObject) -> None:
        """Rejected drafts: unpublished tokens stop counting as computed and are replaced."""
        group = self.pick_group(data, on_host=False)
        seq = data.draw(st.sampled_from(group))
        sure = max(seq.num_published * self.bs, max((s.num_computed for s in group if s is not seq), default=0))
        if seq.num_computed > sure:
            seq.num_computed = data.draw(st.integers(sure, seq.num_computed))
            seq.token_ids = [*seq.token_ids[: seq.num_computed], data.draw(st.integers(0, 1))]
            seq.hashes = seq.hashes[: seq.num_published]

    @rule(data=st.data())
    @precondition(lambda self: self.groups)
    def finish(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.sequences))
        self.kv.free(seq)
        self.groups = [g for group in self.groups if (g := [s for s in group if s is not seq])]

    @rule(data=st.data())
    @precondition(some_group(on_host=False))
    def preempt_by_swap(self, data: st.DataObject) -> None:
        group = self.pick_group(data, on_host=False)
        if self.kv.num_distinct_blocks(group) <= self.kv.host.num_free:
            before = self.kv.num_distinct_blocks(group)
            self.kv.swap_out(group)
            self.carry_out_copies()
            assert self.kv.num_distinct_blocks(group) == before, "sharing is preserved"

    @rule(data=st.data())
    @precondition(some_group(on_host=True))
    def resume(self, data: st.DataObject) -> None:
        group = self.pick_group(data, on_host=True)
        if self.kv.num_to_swap_in(group) <= self.kv.device.num_free:
            before, needed, free = self.kv.num_distinct_blocks(group), self.kv.num_to_swap_in(group), self.kv.device.num_free
            self.kv.swap_in(group)
            taken, after = free - self.kv.device.num_free, self.kv.num_distinct_blocks(group)
            self.carry_out_copies()
            if len(group) == 1:  # several may hold twins, of which one comes back
                assert (taken, after) == (needed, before)
            assert taken <= needed and after <= before, "sharing is preserved"

    @rule(data=st.data())
    @precondition(some_group(on_host=False))
    def preempt_by_recompute(self, data: st.DataObject) -> None:
        for seq in self.pick_group(data, on_host=False):
            self.kv.free(seq)
            seq.num_computed = 0
            self.kv.match_prefix(seq)

    @rule(data=st.data())
    @precondition(some_group(on_host=False))
    def pin(self, data: st.DataObject) -> None:
        group = self.pick_group(data, on_host=False)
        if self.kv.pinned.num_blocks > self.kv.device.num_blocks // 4:
            return
        seq = data.draw(st.sampled_from(group))
        prefix = seq.token_ids[: seq.num_published * self.bs]
        expected = self.kv.num_pinned_with(prefix)
        try:
            assert self.kv.pin(prefix) == len(prefix)
        except LookupError:  # published once, evicted since
            return
        assert self.kv.pinned.num_blocks == expected
        if prefix and prefix not in self.pinned:
            self.pinned.append(prefix)

    @rule(data=st.data())
    @precondition(lambda self: self.pinned)
    def unpin(self, data: st.DataObject) -> None:
        prefix = data.draw(st.sampled_from(self.pinned))
        self.pinned.remove(prefix)
        assert self.kv.unpin(prefix) and not self.kv.unpin(prefix)

    @rule()
    @precondition(lambda self: self.groups)
    def forget(self) -> None:
        self.kv.forget_cached()

    @invariant()
    def pinned_prefixes_are_found_and_hold_their_tokens(self) -> None:
        if not hasattr(self, "kv"):
            return
        for prefix in self.pinned:
            seq = self.new_sequence([*prefix, 9])
            assert self.kv.match_prefix(seq) == len(prefix)
            assert [self.device[seq.blocks[p // self.bs].id][p % self.bs] for p in range(len(prefix))] == prefix
            self.kv.free(seq)
        distinct = {tuple(prefix[:end]) for prefix in self.pinned for end in range(self.bs, len(prefix) + 1, self.bs)}
        assert self.kv.pinned.num_blocks == len(distinct)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        if not hasattr(self, "kv"):
            return
        for seq in self.sequences:
            cache = self.host if seq.on_host else self.device
            read = [cache[seq.blocks[p // self.bs].id][p % self.bs] for p in range(seq.num_computed)]
            assert read == seq.token_ids[: seq.num_computed]

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check(self.sequences)
        pool = self.kv.device
        assert pool.num_used + pool.num_free == pool.num_blocks
        resident = [seq for seq in self.sequences if not seq.on_host]
        assert self.kv.token_slots_used(resident) <= pool.num_used * self.bs
        tables = [block.id for seq in resident for block in seq.blocks]
        assert self.kv.sharing() == (len(tables), len(set(tables)))


KVCacheMachine.TestCase.settings = settings(max_examples=400, stateful_step_count=60, suppress_health_check=list(HealthCheck))
TestKVCacheManager = KVCacheMachine.TestCase


def manager(**changes: Any) -> KVCacheManager:
    arguments: dict[str, Any] = {"block_size": 4, "num_blocks": 8, "num_host_blocks": 4, "num_rows": 4, "max_blocks": 6}
    return KVCacheManager(**{**arguments, "enable_prefix_caching": True, **changes})


def sequence(kv: KVCacheManager, tokens: list[int], *, scope: str = "") -> Sequence:
    return Sequence(0, 0, 0, list(tokens), len(tokens), kv.cache_root(scope), KVUsage(), 10**6)


def computed(kv: KVCacheManager, tokens: list[int], *, scope: str = "") -> Sequence:
    seq = sequence(kv, tokens, scope=scope)
    kv.match_prefix(seq)
    kv.allocate(seq, len(tokens) - seq.num_computed)
    seq.num_computed = len(tokens)
    kv.publish(seq, len(tokens))
    return seq


def test_a_prefix_is_found_after_its_owner_is_gone_and_evicted_tail_first() -> None:
    kv = manager(num_blocks=4)
    kv.free(computed(kv, list(range(12))))
    assert kv.device.num_cached == 3
    hit = sequence(kv, [*range(12), 99])
    assert kv.match_prefix(hit) == 12
    kv.free(hit)
    other = computed(kv, [7] * 8)  # takes the untouched block and the tail of the old prefix
    again = sequence(kv, [*range(12), 99])
    assert kv.match_prefix(again) == 8
    kv.check([other, again])


def test_scopes_and_models_do_not_share() -> None:
    kv = manager()
    computed(kv, list(range(8)), scope="a")
    assert kv.match_prefix(sequence(kv, [*range(8), 9], scope="b")) == 0
    assert kv.match_prefix(sequence(kv, [*range(8), 9], scope="a")) == 8
    assert kv.cache_root("a") != manager(namespace="other").cache_root("a")


def test_the_last_owner_of_a_forked_block_writes_in_place() -> None:
    kv = manager()
    parent = computed(kv, [1, 2, 3, 4, 5, 6])
    children = [sequence(kv, parent.token_ids) for _ in range(2)]
    for child in children:
        kv.fork(parent, child)
        child.token_ids.append(7)
    parent.token_ids.append(8)
    everyone = [parent, *children]
    assert kv.demand([(s, 1) for s in everyone]) == 2
    for seq in everyone:
        kv.allocate(seq, 1)
        seq.num_computed += 1
    assert len(kv.take_copies().copy) == 2
    assert kv.device.num_shared == 1 and kv.device.num_used == 4
    assert kv.token_slots_used(everyone) == 4 + 3 * 3
    assert parent.usage.copy_on_writes + sum(c.usage.copy_on_writes for c in children) == 2


def test_a_block_rewritten_after_its_twin_left_cannot_be_found() -> None:
    kv = manager()
    parent = computed(kv, [1, 2, 3, 4])
    child = sequence(kv, [1, 2, 9])
    kv.fork(parent, child, 2)
    kv.free(parent)
    kv.allocate(child, 1)
    assert kv.match_prefix(sequence(kv, [1, 2, 3, 4, 5])) == 0
    kv.check([child])


def test_swapping_in_takes_what_the_prefix_cache_still_holds() -> None:
    kv = manager()
    seq = computed(kv, list(range(10)))
    kv.swap_out([seq])
    assert len(kv.take_copies().swap_out) == 3
    kv.swap_in([seq])
    assert len(kv.take_copies().swap_in) == 1, "two full blocks are still on the device"
    kv.check([seq])


@pytest.mark.parametrize("evicted", [False, True])
def test_what_was_swapped_in_can_be_found_again(evicted: bool) -> None:
    kv = manager()
    seq = computed(kv, list(range(10)))
    kv.swap_out([seq])
    if evicted:
        kv.free(computed(kv, [7] * 32))
    else:
        kv.forget_cached()
    assert kv.match_prefix(sequence(kv, [*range(8), 9])) == 0
    kv.swap_in([seq])
    found = sequence(kv, [*range(8), 9])
    assert kv.match_prefix(found) == 8 and found.blocks == seq.blocks[:2]
    copies = kv.take_copies()
    assert (len(copies.swap_out), len(copies.swap_in)) == (kv.counters.swap_out, kv.counters.swap_in) == (3, 3)
    kv.check([seq, found])


def test_blocks_in_which_nothing_can_be_found_are_taken_first() -> None:
    kv = manager(num_blocks=4)
    cached, unknown = computed(kv, list(range(8))), sequence(kv, [7] * 8)
    kv.allocate(unknown, 8)
    kv.free(cached)
    kv.free(unknown)
    computed(kv, [9] * 8)
    assert kv.match_prefix(sequence(kv, [*range(8), 99])) == 8


@pytest.mark.parametrize(("num_blocks", "kept"), [(8, 1), (99, 1), (300, 3)])
def test_blocks_are_left_for_what_runs_and_a_hundredth_of_the_pool(num_blocks: int, kept: int) -> None:
    kv = manager(num_blocks=num_blocks)
    seqs = [computed(kv, [first] * length) for first, length in ((1, 10), (2, 12))]
    assert [kv.slack(seqs, growth=growth) for growth in (0, 1, 4, 16)] == [kept, kept + 1, kept + 2, kept + 8]
    assert kv.slack([], growth=16) == kept


def test_caching_can_be_off() -> None:
    kv = manager(enable_prefix_caching=False)
    computed(kv, list(range(8)))
    assert kv.match_prefix(sequence(kv, [*range(8), 9])) == 0


def test_misuse_is_loud() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    with pytest.raises(OutOfBlocksError):
        pool.allocate()
    pool.unref(block)
    with pytest.raises(OutOfBlocksError):
        pool.unref(block)
    tables = BlockTables(1, 2)
    tables.lend([0])
    with pytest.raises(OutOfRowsError):
        tables.lend([0])


def test_forgetting_the_cache_keeps_what_is_in_use() -> None:
    kv = manager()
    seq = computed(kv, list(range(8)))
    kv.forget_cached()
    assert kv.match_prefix(sequence(kv, [*range(8), 9])) == 0
    kv.check([seq])


def pinned_prefix(kv: KVCacheManager, tokens: list[int]) -> None:
    kv.free(computed(kv, tokens))
    kv.pin(tokens)


def test_a_pinned_prefix_survives_whatever_needs_room() -> None:
    kv = manager()
    pinned_prefix(kv, list(range(10)))
    assert kv.pinned.num_blocks == 2 and kv.device.num_free == 6, "the third block is not full"
    other = computed(kv, [7] * 24)
    assert kv.device.num_free == 0
    kv.forget_cached()
    hit = sequence(kv, [*range(8), 9])
    assert kv.match_prefix(hit) == 8 and kv.sharing() == (8, 8)
    kv.check([other, hit])
    kv.free(hit)
    assert kv.unpin(list(range(11))) and not kv.unpin(list(range(11)))
    assert kv.device.num_free == 2 and kv.device.num_cached == 2
    kv.check([other])


def test_pinned_prefixes_that_begin_alike_share() -> None:
    kv = manager()
    pinned_prefix(kv, [*range(4), 5, 5, 5, 5])
    pinned_prefix(kv, [*range(4), 6, 6, 6, 6])
    pinned_prefix(kv, [*range(4), 6, 6, 6, 6])
    assert kv.pinned.num_blocks == 3
    assert kv.num_pinned_with([*range(4), 7, 7, 7, 7]) == 4 and kv.num_pinned_with(list(range(4))) == 3
    assert kv.unpin([*range(4), 5, 5, 5, 5]) and kv.pinned.num_blocks == 2
    assert not kv.unpin(list(range(4))), "a part of a pinned prefix is not itself one"
    kv.check([])


def test_pinned_blocks_are_room_for_those_who_begin_with_them_only() -> None:
    kv = manager()
    pinned_prefix(kv, list(range(8)))
    assert kv.capacity_for([9] * 9) == 6 and kv.capacity_for([*range(8), 9]) == 8
    assert kv.capacity_for(list(range(8))) == 7, "the last token is always computed, so its block is not shared"
    assert kv.capacity_for([*range(8), 9], "tenant") == 6


def test_what_is_not_cached_cannot_be_pinned() -> None:
    kv = manager()
    seq = computed(kv, list(range(4)))
    with pytest.raises(LookupError):
        kv.pin(list(range(8)))
    assert kv.pinned.num_blocks == 0 and kv.pin([1, 2]) == 0
    kv.check([seq])


def test_a_pinned_block_is_copied_before_it_is_written() -> None:
    kv = manager()
    parent = computed(kv, [1, 2, 3, 4])
    kv.pin([1, 2, 3, 4])
    child = sequence(kv, [1, 2, 9])
    kv.fork(parent, child, 2)
    kv.free(parent)
    assert kv.demand([(child, 1)]) == 1
    kv.allocate(child, 1)
    assert len(kv.take_copies().copy) == 1 and kv.match_prefix(sequence(kv, [1, 2, 3, 4, 5])) == 4


def test_a_group_swaps_in_without_room_for_what_is_pinned() -> None:
    kv = manager(num_blocks=4)
    seq = computed(kv, list(range(14)))
    kv.pin(list(range(8)))
    kv.swap_out([seq])
    kv.take_copies()
    assert kv.device.num_free == 2 and kv.num_to_swap_in([seq]) == 2
    kv.swap_in([seq])
    kv.check([seq])
