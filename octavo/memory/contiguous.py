"""The baselines of the PagedAttention paper: every sequence's keys and values in one contiguous region, reserved in advance.

Behind the interface of ``KVCacheManager``, so that the same scheduler, model and kernels run on it: a region is read through
a block table of consecutive numbers. Nothing is shared, cached or swapped. Invariants: all regions that a group will ever need
are reserved when it begins, so a running sequence always fits and is never preempted; what a fork copies is read before its
source can be written by anyone else.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.config import KVAllocation
from octavo.memory.block_pool import Block, BlockPool, OutOfBlocksError
from octavo.memory.block_table import BlockTables
from octavo.memory.buddy import BuddyPool
from octavo.memory.kv_cache_manager import CopyCounters, KVSequence
from octavo.memory.slots import KVSlots, free_slots
from octavo.step import BlockCopies


def _maximum(prompt_len: int, max_len: int, max_model_len: int) -> int:
    return max_model_len


def _power_of_two(prompt_len: int, max_len: int, max_model_len: int) -> int:
    return min(max_model_len, prompt_len + (1 << (max_len - prompt_len - 1).bit_length()))


def _oracle(prompt_len: int, max_len: int, max_model_len: int) -> int:
    return max_len


RESERVATIONS: dict[KVAllocation, Callable[[int, int, int], int]] = {
    "orca-max": _maximum,
    "orca-pow2": _power_of_two,
    "orca-oracle": _oracle,
    "fastertransformer": _maximum,
}
"""Tokens to reserve for a sequence, given the lengths of its prompt, of prompt and output at most, and of any sequence."""


@dataclass(eq=False, slots=True)
class Reservation:
    """What one group holds: regions of ``2 ** order`` blocks for ``num_tokens`` each, of which ``max_len`` can be used.
    ``spares`` are the regions that no sequence has (yet, or any more)."""

    order: int
    num_tokens: int
    max_len: int
    keeps: bool
    spares: list[int] = field(default_factory=list)
    num_holders: int = 0


@dataclass(eq=False, slots=True)
class Region:
    """The region of one sequence. ``start`` is its first block."""

    start: int
    group: Reservation


class ContiguousKVManager:
    """Regions in a pool of ``num_blocks`` blocks of ``block_size`` tokens; ``num_rows`` bounds the sequences that run at once.

    ``allocation`` says how much is reserved. With "fastertransformer" the regions of sequences that ended are given back when
    the last one of all has: a batch is one allocation.
    """

    def __init__(
        self, *, allocation: KVAllocation, block_size: int, num_blocks: int, num_rows: int, max_model_len: int
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = False
        self.device = BuddyPool(num_blocks)
        self.host = BlockPool(0)
        self.tables = BlockTables(num_rows, self.num_blocks_for(max_model_len))
        self.counters = CopyCounters()
        self._reserve = RESERVATIONS[allocation]
        self._max_model_len = max_model_len
        self._blocks = [Block(i) for i in range(num_blocks)]
        self._regions: dict[KVSequence, Region] = {}
        self._whole_batches = allocation == "fastertransformer"
        self._ended: list[Region] = []
        # Forked sequences whose tokens are still to be copied: from whom and how many blocks.
        self._uncopied: dict[KVSequence, tuple[KVSequence, int]] = {}
        self._copy: list[tuple[int, int]] = []

    @property
    def has_copies(self) -> bool:
        return bool(self._copy)

    def take_copies(self) -> BlockCopies:
        """The copies that must precede the next forward, to be carried out in their order."""
        copies = BlockCopies(swap_out=[], swap_in=[], copy=self._copy)
        self.counters.copy_on_write += len(self._copy)
        self._copy = []
        return copies

    def cache_root(self, scope: str) -> bytes:
        """Nothing is looked up by its content."""
        return b""

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # -------------------------------------------------------------------------------------------------------------- reserving

    def _tokens_for(self, prompt_len: int, max_len: int) -> tuple[int, int]:
        """Tokens to reserve for a sequence, and the order of a region for them."""
        num_tokens = self._reserve(prompt_len, max_len, self._max_model_len)
        return num_tokens, self.device.order_of(self.num_blocks_for(num_tokens))

    def blocks_needed(self, *, prompt_len: int, max_len: int, num_sequences: int) -> int:
        """Blocks that such a group takes. An empty pool has room for it if and only if it has as many, because it is cut at
        multiples of every region's size."""
        return num_sequences << self._tokens_for(prompt_len, max_len)[1]

    def capacity_for(self, prompt: Sequence[int], scope: str = "") -> int:
        """The most blocks that a group can ever hold: all."""
        return self.device.num_blocks

    def fits(self, wanted: Iterable[tuple[KVSequence, int]], *, spare: int = 0) -> bool:
        """Whether all regions of the groups that begin can be reserved. What is reserved already always fits."""
        beginning = [seq for seq, _ in wanted if seq not in self._regions]
        return self.device.fits(
            order for seq in beginning for order in [self._tokens_for(seq.prompt_len, seq.max_len)[1]] * seq.group_size
        )

    def slack(self, running: Iterable[KVSequence], *, growth: int) -> int:
        """Running sequences have all that they will ever need."""
        return 0

    def allocate(self, seq: KVSequence, num_tokens: int) -> None:
        """Make room for ``num_tokens`` more: reserve the group's regions, or copy what a forked sequence begins with."""
        if seq not in self._regions:
            self._reserve_group(seq)
        elif seq in self._uncopied:
            self._copy_now(seq)

    def _reserve_group(self, first: KVSequence) -> None:
        num_tokens, order = self._tokens_for(first.prompt_len, first.max_len)
        group = Reservation(order=order, num_tokens=num_tokens, max_len=first.max_len, keeps=first.reforks)
        group.spares = [self.device.allocate(order) for _ in range(first.group_size)][::-1]
        first.usage.allocated += first.group_size << order
        self._settle(first, group)

    def _settle(self, seq: KVSequence, group: Reservation) -> None:
        if not group.spares:
            raise OutOfBlocksError("a group has more sequences at once than regions were reserved for it")
        region = self._regions[seq] = Region(group.spares.pop(), group)
        group.num_holders += 1
        seq.blocks = self._blocks[region.start : region.start + self.num_blocks_for(group.num_tokens)]

    # ---------------------------------------------------------------------------------------------------- forking, giving back

    def fork(self, parent: KVSequence, child: KVSequence, num_tokens: int | None = None) -> None:
        """Give ``child`` a region of the group's with the first ``num_tokens`` (default: all computed) of ``parent`` in it.

        They are copied before the child's own first tokens are computed: at once would be before the step that is being
        planned has computed the last of them.
        """
        child.num_computed = parent.num_computed if num_tokens is None else num_tokens
        self._settle(child, self._regions[parent].group)
        # Who was not copied to yet has computed nothing of its own.
        source = self._uncopied[parent][0] if parent in self._uncopied else parent
        self._uncopied[child] = (source, self.num_blocks_for(child.num_computed))

    def _copy_now(self, child: KVSequence) -> None:
        source, num_blocks = self._uncopied.pop(child)
        old, new = self._regions[source].start, self._regions[child].start
        self._copy += [(old + i, new + i) for i in range(num_blocks)]
        child.usage.copy_on_writes += num_blocks

    def hold_row(self, seq: KVSequence) -> None:
        """Give the sequence a row of the block-table matrix, unless it has one."""
        if seq.row < 0:
            seq.row = self.tables.lend([block.id for block in seq.blocks])

    def _drop_row(self, seq: KVSequence) -> None:
        if seq.row >= 0:
            self.tables.take_back(seq.row)
            seq.row = -1

    def free(self, seq: KVSequence) -> None:
        """Give back the sequence's region, if it has one, and its row. Whoever was to be copied from there is copied first."""
        self._drop_row(seq)
        seq.blocks = []
        self._uncopied.pop(seq, None)
        for child in [child for child, (source, _) in self._uncopied.items() if source is seq]:
            self._copy_now(child)
        region = self._regions.pop(seq, None)
        if region is None:
            return
        group = region.group
        group.num_holders -= 1
        if group.num_holders == 0 or not group.keeps:
            self._give_back(region)
        else:
            group.spares.append(region.start)
        if group.num_holders == 0:
            for start in group.spares:
                self._give_back(Region(start, group))
            group.spares = []

    def _give_back(self, region: Region) -> None:
        self._ended.append(region)
        if self._whole_batches and self._regions:
            return
        for each in self._ended:
            self.device.free(each.start, each.group.order)
        self._ended = []

    # ----------------------------------------------------------------------------------------------- what is not done here

    def match_prefix(self, seq: KVSequence) -> int:
        """No prefix is ever found."""
        return 0

    def publish(self, seq: KVSequence, num_tokens: int) -> None:
        """Nobody may find anything."""

    @property
    def num_pinned(self) -> int:
        return 0

    def num_pinned_with(self, token_ids: Sequence[int], scope: str = "") -> int:
        return 0

    def pin(self, token_ids: Sequence[int], scope: str = "") -> int:
        raise LookupError("nothing can be pinned where nothing is cached")

    def unpin(self, token_ids: Sequence[int], scope: str = "") -> bool:
        return False

    def forget_cached(self) -> None:
        """Nothing is cached."""

    def num_to_swap_in(self, seqs: Iterable[KVSequence]) -> int:
        return self.num_distinct_blocks(seqs)

    @staticmethod
    def num_distinct_blocks(seqs: Iterable[KVSequence]) -> int:
        return sum(len(seq.blocks) for seq in seqs)

    def swap_out(self, seqs: Sequence[KVSequence]) -> None:
        raise OutOfBlocksError("a reserved sequence is never preempted")

    def swap_in(self, seqs: Sequence[KVSequence]) -> None:
        raise OutOfBlocksError("a reserved sequence is never preempted")

    # ------------------------------------------------------------------------------------------------------------ accounting

    def token_slots_used(self, seqs: Iterable[KVSequence]) -> int:
        """Slots of the regions of ``seqs`` that hold a token."""
        return sum(seq.num_computed for seq in seqs if seq in self._regions)

    def sharing(self) -> tuple[int, int]:
        """Blocks that all sequences hold, with and without what they share: nothing."""
        return self.device.num_used, self.device.num_used

    def slots(self, running: Sequence[KVSequence], *, short: bool) -> KVSlots:
        """What the pool holds at this moment. ``short``: the next in line waits and does not fit."""
        tokens = self.token_slots_used(running)
        reserved = internal = rounding = 0
        for group in {region.group for region in self._regions.values()}:
            num_regions = group.num_holders + len(group.spares)
            reserved += num_regions * group.max_len
            internal += num_regions * (group.num_tokens - group.max_len)
            rounding += num_regions * ((self.block_size << group.order) - group.num_tokens)
        for region in self._ended:
            internal += region.group.num_tokens
            rounding += (self.block_size << region.group.order) - region.group.num_tokens
        free = free_slots(num_free=self.device.num_free * self.block_size, num_cached=0, short=short)
        total = self.device.num_blocks * self.block_size
        return KVSlots(total=total, tokens=tokens, reserved=reserved - tokens, internal=internal, rounding=rounding, **free)

    def gather_tables(self, seqs: Sequence[KVSequence]) -> np.ndarray:
        """Block tables of ``seqs``, which all hold rows, as far as they are computed: int32[len(seqs), longest]."""
        width = max((self.num_blocks_for(seq.num_computed) for seq in seqs), default=0)
        return self.tables.gather([seq.row for seq in seqs], width)

    def check(self, seqs: Sequence[KVSequence]) -> None:
        """Raise ``AssertionError`` unless pool, regions and rows agree, given every sequence that holds blocks or a row."""
        if {seq for seq in seqs if seq.blocks} != set(self._regions):
            raise AssertionError("the sequences with blocks are not those that have regions")
        groups = {region.group for region in self._regions.values()}
        runs = [(region.start, region.group.order) for region in [*self._regions.values(), *self._ended]]
        self.device.check([*runs, *((start, group.order) for group in groups for start in group.spares)])
        for seq, region in self._regions.items():
            ids = [block.id for block in seq.blocks]
            if ids != list(range(region.start, region.start + len(ids))) or len(ids) > 1 << region.group.order:
                raise AssertionError(f"blocks {ids} are not the region of {1 << region.group.order} at {region.start}")
            if seq.num_computed > len(ids) * self.block_size:
                raise AssertionError(f"{seq.num_computed} computed tokens in {len(ids)} blocks")
            if seq.row >= 0 and self.tables.gather([seq.row], len(ids))[0].tolist() != ids:
                raise AssertionError(f"row {seq.row} does not say {ids}")
        rows = [seq.row for seq in seqs if seq.row >= 0]
        if len(set(rows)) != len(rows):
            raise AssertionError("two sequences hold the same row")
        if not self._whole_batches and self._ended:
            raise AssertionError("regions that ended are kept")
