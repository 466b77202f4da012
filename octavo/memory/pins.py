"""Prefixes that stay in the device pool whatever else needs room.

Owns one reference to each pinned block, however many pinned prefixes begin with it. Knows digests and blocks, not tokens. The
invariant: a pinned block has a reference and its hash until the last prefix that contains it is unpinned, so it is never in
the free queue, never written, and always found.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.memory.block_pool import Block, BlockPool


@dataclass(slots=True)
class _Pin:
    block: Block
    digest: bytes
    num_prefixes: int = 0


class PinnedPrefixes:
    """A prefix is named by the digests of its full blocks, in order."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._pins: dict[bytes, _Pin] = {}
        self._prefixes: set[bytes] = set()

    @property
    def blocks(self) -> list[Block]:
        """The pinned blocks, each once."""
        return [pin.block for pin in self._pins.values()]

    @property
    def num_blocks(self) -> int:
        return len(self._pins)

    @property
    def num_unused(self) -> int:
        """Pinned blocks that no block table refers to."""
        return sum(pin.block.ref_count == 1 for pin in self._pins.values())

    def num_leading(self, digests: Iterable[bytes]) -> int:
        """How many blocks, from the first on, are pinned."""
        count = 0
        for digest in digests:
            if digest not in self._pins:
                break
            count += 1
        return count

    def add(self, digests: list[bytes]) -> None:
        """Pin a prefix, all of whose blocks can be found; pinning it again changes nothing.

        Raises:
            LookupError: a block is not in the prefix cache. Nothing is pinned then.
        """
        if digests[-1] in self._prefixes:
            return
        blocks = [self._pool.lookup(digest) for digest in digests]
        if None in blocks:
            raise LookupError(f"block {blocks.index(None)} of the prefix is not in the prefix cache")
        for digest, block in zip(digests, blocks, strict=True):
            pin = self._pins.get(digest)
            if pin is None and block is not None:
                pin = self._pins[digest] = _Pin(self._pool.ref(block), digest)
            if pin is not None:
                pin.num_prefixes += 1
        self._prefixes.add(digests[-1])

    def remove(self, digests: list[bytes]) -> bool:
        """Unpin a prefix: its blocks are cached like any others from now on. Returns whether it was pinned."""
        if not digests or digests[-1] not in self._prefixes:
            return False
        self._prefixes.remove(digests[-1])
        for digest in reversed(digests):  # the end of a prefix is evicted before its beginning
            pin = self._pins[digest]
            pin.num_prefixes -= 1
            if pin.num_prefixes == 0:
                del self._pins[digest]
                self._pool.unref(pin.block)
        return True

    def publish_again(self) -> None:
        """After the prefix cache was forgotten: pinned blocks can be found again."""
        for pin in self._pins.values():
            self._pool.publish(pin.block, pin.digest)
