"""One pool of KV blocks: reference counts, the prefix-cache index and the order of eviction.

Owns every ``Block`` of one device (or of the host) and who may still find it by its hash. Knows neither sequences nor
tensors. Invariant: a block is in the free queue if and only if its reference count is zero; a free block keeps its hash,
and so can still be found, until it is handed out again.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


class OutOfBlocksError(RuntimeError):
    """A block was asked for without making sure that one is free. A bug of the caller, never of a request."""


@dataclass(eq=False, slots=True)
class Block:
    """One block. ``hash`` is the digest of everything up to its last token, or None while it is not full or not known."""

    id: int
    ref_count: int = 0
    hash: bytes | None = None


class BlockPool:
    """``num_blocks`` blocks, all free at first."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [Block(i) for i in range(num_blocks)]
        # Least recently freed first. Ids from 0 up: neighbours in memory are handed out together while the pool is young.
        self._free = OrderedDict((block.id, block) for block in self.blocks)
        self._by_hash: dict[bytes, Block] = {}
        self._num_cached_free = 0
        self._num_shared = 0
        self._num_references = 0

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, those that still hold a cached prefix included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self.blocks) - len(self._free)

    @property
    def num_cached(self) -> int:
        """Free blocks whose content can still be found by its hash."""
        return self._num_cached_free

    @property
    def num_shared(self) -> int:
        """Blocks with more than one reference."""
        return self._num_shared

    @property
    def num_references(self) -> int:
        """References to all blocks: what the pool would have to hold if nothing were shared."""
        return self._num_references

    def allocate(self) -> Block:
        """Hand out the least recently freed block with one reference; its old content is forgotten."""
        if not self._free:
            raise OutOfBlocksError(f"all {len(self.blocks)} blocks are in use")
        _, block = self._free.popitem(last=False)
        if block.hash is not None:
            del self._by_hash[block.hash]
            block.hash = None
            self._num_cached_free -= 1
        block.ref_count = 1
        self._num_references += 1
        return block

    def ref(self, block: Block) -> Block:
        """One more block table refers to ``block``; a cached free block is used again."""
        if block.ref_count == 0:
            del self._free[block.id]
            if block.hash is not None:
                self._num_cached_free -= 1
        elif block.ref_count == 1:
            self._num_shared += 1
        block.ref_count += 1
        self._num_references += 1
        return block

    def unref(self, block: Block) -> None:
        """One block table less refers to ``block``; without any it is free, most recently so."""
        if block.ref_count <= 0:
            raise OutOfBlocksError(f"block {block.id} was released more often than it was taken")
        block.ref_count -= 1
        self._num_references -= 1
        if block.ref_count == 1:
            self._num_shared -= 1
        elif block.ref_count == 0:
            self._free[block.id] = block
            if block.hash is not None:
                self._num_cached_free += 1
            else:
                # Nothing to find in it: reuse it before any block that may still serve a prefix.
                self._free.move_to_end(block.id, last=False)

    def lookup(self, digest: bytes) -> Block | None:
        return self._by_hash.get(digest)

    def publish(self, block: Block, digest: bytes) -> None:
        """Make a full block in use findable. The first block with a content wins; a twin stays private."""
        if block.hash is None and digest not in self._by_hash:
            block.hash = digest
            self._by_hash[digest] = block

    def retract(self, block: Block) -> None:
        """``block`` (in use) is about to be written again: nobody may find its old content any more."""
        if block.hash is not None:
            del self._by_hash[block.hash]
            block.hash = None

    def forget_cached(self) -> None:
        """Drop the whole prefix-cache index. Blocks in use stay in use."""
        for block in self._by_hash.values():
            block.hash = None
        self._by_hash.clear()
        self._num_cached_free = 0

    def check(self, tables: Iterable[Iterable[Block]]) -> None:
        """Raise ``AssertionError`` unless the pool agrees with ``tables``: all block tables that live in this pool, and
        whatever else holds references to its blocks."""
        references = [0] * len(self.blocks)
        for table in tables:
            for block in table:
                references[block.id] += 1
        shared = cached = 0
        for block in self.blocks:
            if block.ref_count != references[block.id]:
                raise AssertionError(f"block {block.id}: ref_count {block.ref_count}, tables say {references[block.id]}")
            if (block.ref_count == 0) != (block.id in self._free):
                raise AssertionError(f"block {block.id}: ref_count {block.ref_count} disagrees with the free queue")
            if block.hash is not None and self._by_hash.get(block.hash) is not block:
                raise AssertionError(f"block {block.id} has a hash under which it cannot be found")
            shared += block.ref_count > 1
            cached += block.ref_count == 0 and block.hash is not None
        if any(block.hash != digest for digest, block in self._by_hash.items()):
            raise AssertionError("the prefix cache finds a block under a hash that it does not have")
        counted = (shared, cached, sum(references))
        kept = (self._num_shared, self._num_cached_free, self._num_references)
        if counted != kept:
            raise AssertionError(f"counted {counted} shared, cached and references, kept {kept}")
