"""Which block of the KV cache holds which tokens of which sequence.

Owns both block pools (device and host), every sequence's block table, pinned prefixes and the copies of the next step.
Knows neither scheduling nor tensors. Invariants: a block that is about to be written has one reference and no hash; a block
has a hash only when it is full, its tokens are known and its step is complete; ``check()`` states the rest.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import numpy as np

from octavo.memory.block_pool import Block, BlockPool
from octavo.memory.block_table import BlockTables
from octavo.memory.pins import PinnedPrefixes
from octavo.memory.slots import KVSlots, free_slots
from octavo.step import BlockCopies


@dataclass(slots=True)
class KVUsage:
    """What one request has cost so far: blocks handed out, references taken to existing blocks, copy-on-writes."""

    allocated: int = 0
    shared: int = 0
    copy_on_writes: int = 0


class KVSequence(Protocol):
    """What a manager needs of a sequence. It alone writes the fields from ``blocks`` to ``on_host``; ``max_len``,
    ``group_size`` and ``reforks`` are for those that reserve in advance."""

    token_ids: list[int]
    prompt_len: int
    max_len: int
    group_size: int
    reforks: bool
    num_computed: int
    blocks: list[Block]
    hashes: list[bytes]
    num_published: int
    row: int
    on_host: bool
    cache_root: bytes
    usage: KVUsage


@dataclass(slots=True)
class CopyCounters:
    """Blocks copied since the start, by kind."""

    swap_out: int = 0
    swap_in: int = 0
    copy_on_write: int = 0


class KVCacheManager:
    """Blocks of ``block_size`` tokens. ``max_blocks`` bounds one table, ``num_rows`` the sequences that run at once."""

    def __init__(
        self,
        *,
        block_size: int,
        num_blocks: int,
        num_host_blocks: int,
        num_rows: int,
        max_blocks: int,
        enable_prefix_caching: bool,
        namespace: str = "",
    ) -> None:
        self.block_size = block_size
        self.device = BlockPool(num_blocks)
        self.host = BlockPool(num_host_blocks)
        self.pinned = PinnedPrefixes(self.device)
        self.tables = BlockTables(num_rows, max_blocks)
        self.enable_prefix_caching = enable_prefix_caching
        self.counters = CopyCounters()
        self._namespace = namespace
        self._reset_copies()

    def _reset_copies(self) -> None:
        self._swap_out: list[tuple[int, int]] = []
        self._swap_in: list[tuple[int, int]] = []
        self._copy: list[tuple[int, int]] = []

    def take_copies(self) -> BlockCopies:
        """The copies that must precede the next forward. They are this step's alone: the lists begin anew."""
        copies = BlockCopies(swap_out=self._swap_out, swap_in=self._swap_in, copy=self._copy)
        self.counters.swap_out += len(copies.swap_out)
        self.counters.swap_in += len(copies.swap_in)
        self.counters.copy_on_write += len(copies.copy)
        self._reset_copies()
        return copies

    @property
    def has_copies(self) -> bool:
        return bool(self._swap_out or self._swap_in or self._copy)

    def cache_root(self, scope: str) -> bytes:
        """The parent digest of first blocks: separates models and tenants. Lengths come first, so no two pairs collide."""
        parts = [self._namespace.encode(), scope.encode()]
        return sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).digest()

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # ------------------------------------------------------------------------------------------------- growing and sharing

    def demand(self, wanted: Iterable[tuple[KVSequence, int]]) -> int:
        """Exactly how many free blocks it takes to compute n more tokens of each sequence, copy-on-write included."""
        total, size = 0, self.block_size
        writers: dict[int, tuple[Block, int]] = {}
        for seq, num_tokens in wanted:  # no calls: this is asked of every sequence in every step
            computed, blocks = seq.num_computed, seq.blocks
            lacking = -(-(computed + num_tokens) // size) - len(blocks)
            if lacking > 0:
                total += lacking
            index = computed // size
            if index < len(blocks) and blocks[index].ref_count > 1:
                block = blocks[index]
                writers[block.id] = (block, writers.get(block.id, (block, 0))[1] + 1)
        if writers:  # of a block's holders the last one left writes in place
            total += sum(min(count, block.ref_count - 1) for block, count in writers.values())
        return total

    def blocks_needed(self, *, prompt_len: int, max_len: int, num_sequences: int) -> int:
        """The smallest pool in which such a group can run alone: full blocks of the prompt once, the rest for each sequence.
        The last token is never computed, so it needs no slot."""
        shared = prompt_len // self.block_size if num_sequences > 1 else 0
        return shared + num_sequences * (self.num_blocks_for(max_len - 1) - shared)

    def slack(self, running: Iterable[KVSequence], *, growth: int) -> int:
        """Free blocks to leave for what runs when more begins: those that each sequence lacks for the tokens it has and
        ``growth`` more, and a hundredth of the pool."""
        promised, size = 0, self.block_size
        for seq in running:  # a loop and no calls: this is asked in every step with a queue
            lacking = -(-(len(seq.token_ids) + growth) // size) - len(seq.blocks)
            if lacking > 0:
                promised += lacking
        return promised + max(1, self.device.num_blocks // 100)

    def fits(self, wanted: Iterable[tuple[KVSequence, int]], *, spare: int = 0) -> bool:
        """Whether there is room to compute n more tokens of each sequence and ``spare`` blocks beside it."""
        return self.demand(wanted) + spare <= self.device.num_free

    def allocate(self, seq: KVSequence, num_tokens: int) -> None:
        """Make room for ``num_tokens`` more. The caller has checked that it ``fits``."""
        index = seq.num_computed // self.block_size
        if index < len(seq.blocks):
            target = seq.blocks[index]
            if target.ref_count > 1:
                self._copy_on_write(seq, index)
            else:
                self.device.retract(target)
        for index in range(len(seq.blocks), self.num_blocks_for(seq.num_computed + num_tokens)):
            block = self.device.allocate()
            seq.blocks.append(block)
            seq.usage.allocated += 1
            if seq.row >= 0:
                self.tables.set(seq.row, index, block.id)

    def _copy_on_write(self, seq: KVSequence, index: int) -> None:
        old, new = seq.blocks[index], self.device.allocate()
        self._copy.append((old.id, new.id))
        seq.blocks[index] = new
        self.device.unref(old)
        seq.num_published = min(seq.num_published, index)
        seq.usage.allocated += 1
        seq.usage.copy_on_writes += 1
        if seq.row >= 0:
            self.tables.set(seq.row, index, new.id)

    def fork(self, parent: KVSequence, child: KVSequence, num_tokens: int | None = None) -> None:
        """Let ``child``, which has no blocks, share those of the first ``num_tokens`` (default: all computed) of ``parent``.
        The partly filled last block is shared too, and copied by whoever writes to it first."""
        child.num_computed = parent.num_computed if num_tokens is None else num_tokens
        child.blocks = [self.device.ref(block) for block in parent.blocks[: self.num_blocks_for(child.num_computed)]]
        full = child.num_computed // self.block_size
        child.hashes = parent.hashes[:full]
        child.num_published = min(parent.num_published, full)
        child.usage.shared += len(child.blocks)

    def hold_row(self, seq: KVSequence) -> None:
        """Give the sequence a row of the block-table matrix, unless it has one."""
        if seq.row < 0:
            seq.row = self.tables.lend([block.id for block in seq.blocks])

    def _drop_row(self, seq: KVSequence) -> None:
        if seq.row >= 0:
            self.tables.take_back(seq.row)
            seq.row = -1

    def free(self, seq: KVSequence) -> None:
        """Give back the sequence's blocks, wherever they are, and its row. Full blocks stay findable until they are reused."""
        pool = self.host if seq.on_host else self.device
        for block in reversed(seq.blocks):  # the end of a prefix is evicted before its beginning
            pool.unref(block)
        seq.blocks = []
        seq.num_published = 0
        seq.on_host = False
        self._drop_row(seq)

    # -------------------------------------------------------------------------------------------------------- prefix cache

    def match_prefix(self, seq: KVSequence) -> int:
        """Take over cached blocks of the longest known prefix of a sequence that has none; returns their tokens.
        At least one token is left to compute, because the step must produce logits."""
        if not self.enable_prefix_caching:
            return 0
        for index in range((len(seq.token_ids) - 1) // self.block_size):
            block = self.device.lookup(self._digest(seq, index))
            if block is None:
                break
            seq.blocks.append(self.device.ref(block))
        seq.num_published = len(seq.blocks)
        seq.num_computed = len(seq.blocks) * self.block_size
        return seq.num_computed

    def _digest(self, seq: KVSequence, index: int) -> bytes:
        """The digest of block ``index``, kept with the sequence."""
        while len(seq.hashes) <= index:
            parent = seq.hashes[-1] if seq.hashes else seq.cache_root
            seq.hashes.append(self._next_digest(parent, seq.token_ids, len(seq.hashes)))
        return seq.hashes[index]

    def _next_digest(self, parent: bytes, token_ids: Sequence[int], index: int) -> bytes:
        """SHA-256 over (parent digest, tokens) of block ``index``; the first parent carries model and scope."""
        tokens = array("i", token_ids[index * self.block_size : (index + 1) * self.block_size])
        return sha256(parent + tokens.tobytes()).digest()

    def publish(self, seq: KVSequence, num_tokens: int) -> None:
        """The first ``num_tokens`` are known and their step is complete: full blocks among them may be found by others."""
        if not self.enable_prefix_caching or seq.on_host:
            return
        full = min(num_tokens // self.block_size, len(seq.blocks))
        for index in range(seq.num_published, full):
            self.device.publish(seq.blocks[index], self._digest(seq, index))
        seq.num_published = max(seq.num_published, full)

    # ---------------------------------------------------------------------------------------------------- pinned prefixes

    def pin(self, token_ids: Sequence[int], scope: str = "") -> int:
        """Keep the full blocks of a prefix that has just been computed; returns how many tokens they hold.

        Raises:
            LookupError: a block of it is not in the prefix cache.
        """
        digests = self._prefix_digests(token_ids, scope)
        if digests:
            self.pinned.add(digests)
        return len(digests) * self.block_size

    def unpin(self, token_ids: Sequence[int], scope: str = "") -> bool:
        """Let go of a prefix; returns whether it was pinned."""
        return self.pinned.remove(self._prefix_digests(token_ids, scope))

    @property
    def num_pinned(self) -> int:
        """Blocks that stay for good."""
        return self.pinned.num_blocks

    def num_pinned_with(self, token_ids: Sequence[int], scope: str = "") -> int:
        """Blocks that would be pinned if this prefix were too."""
        digests = self._prefix_digests(token_ids, scope)
        return self.pinned.num_blocks + len(digests) - self.pinned.num_leading(digests)

    def capacity_for(self, prompt: Sequence[int], scope: str = "") -> int:
        """The most blocks that a request with this prompt can ever hold: all but those pinned for others."""
        if not self.pinned.num_blocks:
            return self.device.num_blocks
        leading = self.pinned.num_leading(self._prefix_digests(prompt[:-1], scope))  # as many as match_prefix may take over
        return self.device.num_blocks - self.pinned.num_blocks + leading

    def _prefix_digests(self, token_ids: Sequence[int], scope: str) -> list[bytes]:
        digests: list[bytes] = []
        parent = self.cache_root(scope)
        for index in range(len(token_ids) // self.block_size):
            parent = self._next_digest(parent, token_ids, index)
            digests.append(parent)
        return digests

    def forget_cached(self) -> None:
        """Drop the prefix-cache index; blocks in use stay in use, and pinned prefixes can still be found."""
        self.device.forget_cached()
        self.pinned.publish_again()

    # ------------------------------------------------------------------------------------------------------------ swapping

    @staticmethod
    def num_distinct_blocks(seqs: Iterable[KVSequence]) -> int:
        return len({block.id for seq in seqs for block in seq.blocks})

    def num_to_swap_in(self, seqs: Iterable[KVSequence]) -> int:
        """Free device blocks that ``swap_in`` takes: none for what the device still holds for others."""
        wanted: set[int] = set()
        for seq in seqs:
            for index, block in enumerate(seq.blocks):
                held = self.device.lookup(seq.hashes[index]) if index < seq.num_published else None
                if held is None or held.ref_count == 0:
                    wanted.add(block.id)
        return len(wanted)

    def swap_out(self, seqs: Sequence[KVSequence]) -> None:
        """Move a whole group to the host, sharing preserved. The caller has checked ``host.num_free``."""
        moved: dict[int, Block] = {}
        for seq in seqs:
            blocks = []
            for block in seq.blocks:
                if block.id in moved:
                    blocks.append(self.host.ref(moved[block.id]))
                else:
                    moved[block.id] = self.host.allocate()
                    self._swap_out.append((block.id, moved[block.id].id))
                    blocks.append(moved[block.id])
            for block in reversed(seq.blocks):
                self.device.unref(block)
            seq.blocks = blocks
            seq.on_host = True
            self._drop_row(seq)

    def swap_in(self, seqs: Sequence[KVSequence]) -> None:
        """Move a whole group back. A full block that the prefix cache still holds is taken from there instead of copied."""
        moved: dict[int, Block] = {}
        for seq in seqs:
            blocks = []
            for index, block in enumerate(seq.blocks):
                if block.id in moved:
                    blocks.append(self.device.ref(moved[block.id]))
                else:
                    moved[block.id] = self._bring_back(seq, index, block)
                    blocks.append(moved[block.id])
            for block in reversed(seq.blocks):
                self.host.unref(block)
            seq.blocks = blocks
            seq.on_host = False

    def _bring_back(self, seq: KVSequence, index: int, host_block: Block) -> Block:
        digest = seq.hashes[index] if index < seq.num_published else None
        cached = self.device.lookup(digest) if digest is not None else None
        if cached is not None:
            return self.device.ref(cached)
        block = self.device.allocate()
        seq.usage.allocated += 1
        self._swap_in.append((host_block.id, block.id))
        if digest is not None:
            self.device.publish(block, digest)
        return block

    # ---------------------------------------------------------------------------------------------------------- accounting

    def token_slots_used(self, seqs: Iterable[KVSequence]) -> int:
        """Slots of the device blocks of ``seqs`` that hold a token, each block counted once."""
        unused: dict[int, int] = {}
        for seq in seqs:
            for index in range(seq.num_computed // self.block_size, len(seq.blocks)):
                block_id = seq.blocks[index].id
                empty = self.block_size - max(0, min(seq.num_computed - index * self.block_size, self.block_size))
                unused[block_id] = min(empty, unused.get(block_id, empty))
        return self.device.num_used * self.block_size - sum(unused.values())

    def slots(self, running: Sequence[KVSequence], *, short: bool) -> KVSlots:
        """What the device pool holds at this moment. ``short``: the next in line waits and does not fit."""
        size, pool = self.block_size, self.device
        tokens = self.token_slots_used(running)
        references, referenced = self.sharing()
        return KVSlots(
            total=pool.num_blocks * size,
            tokens=tokens,
            internal=pool.num_used * size - tokens,
            saved=(references - referenced) * size,
            **free_slots(num_free=pool.num_free * size, num_cached=pool.num_cached * size, short=short),
        )

    def sharing(self) -> tuple[int, int]:
        """Entries of all block tables on the device, and the blocks that stand behind them: what n sequences would hold if
        nothing were shared, and what they do hold."""
        pinned = self.pinned
        return self.device.num_references - pinned.num_blocks, self.device.num_used - pinned.num_unused

    def gather_tables(self, seqs: Sequence[KVSequence]) -> np.ndarray:
        """Block tables of ``seqs``, which all hold rows: int32[len(seqs), longest]."""
        width = max((len(seq.blocks) for seq in seqs), default=0)
        return self.tables.gather([seq.row for seq in seqs], width)

    def check(self, seqs: Sequence[KVSequence]) -> None:
        """Raise ``AssertionError`` unless pools, tables and rows agree, given every sequence that holds blocks or a row."""
        self.device.check([*(seq.blocks for seq in seqs if not seq.on_host), self.pinned.blocks])
        if any(block.hash is None for block in self.pinned.blocks):
            raise AssertionError("a pinned block cannot be found")
        self.host.check(seq.blocks for seq in seqs if seq.on_host)
        rows = [seq.row for seq in seqs if seq.row >= 0]
        if len(set(rows)) != len(rows):
            raise AssertionError("two sequences hold the same row")
        for seq in seqs:
            if seq.row >= 0:
                held = self.tables.gather([seq.row], len(seq.blocks))[0].tolist()
                if held != [block.id for block in seq.blocks]:
                    raise AssertionError(f"row {seq.row} says {held}, the sequence's blocks are {[b.id for b in seq.blocks]}")
            if not seq.on_host and seq.num_computed > len(seq.blocks) * self.block_size:
                raise AssertionError(f"{seq.num_computed} computed tokens in {len(seq.blocks)} blocks")
