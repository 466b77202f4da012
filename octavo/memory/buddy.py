"""A pool of blocks that is handed out in contiguous runs whose sizes are powers of two: the buddy system (Knowlton 1965).

Owns which runs are free. Knows neither sequences nor tensors. Invariants: a free run begins at a multiple of its size; of two
buddies (halves of the same larger run) at most one is free as a whole, because two are merged at once.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from octavo.memory.block_pool import OutOfBlocksError


class BuddyPool:
    """``num_blocks`` blocks, all free at first. A pool that is no power of two begins as several runs, largest first.

    Counts blocks in the words of ``BlockPool``; nothing here is ever shared or cached.
    """

    num_shared = 0
    num_cached = 0

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        # Starts of free runs by order (log2 of the size), ascending.
        self._free: list[list[int]] = [[] for _ in range(num_blocks.bit_length())]
        start = 0
        for order in reversed(range(num_blocks.bit_length())):
            if num_blocks >> order & 1:
                self._free[order].append(start)
                start += 1 << order

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @staticmethod
    def order_of(num_blocks: int) -> int:
        """The order of the smallest run that has room for ``num_blocks``, at least one."""
        return (num_blocks - 1).bit_length()

    def fits(self, orders: Iterable[int]) -> bool:
        """Whether runs of all these orders can be handed out together."""
        free = [len(starts) for starts in self._free]
        for order in sorted(orders, reverse=True):
            source = next((o for o in range(order, len(free)) if free[o]), None)
            if source is None:
                return False
            free[source] -= 1
            for split in range(order, source):
                free[split] += 1
        return True

    def allocate(self, order: int) -> int:
        """The first block of a run of ``2 ** order`` blocks: of the smallest free runs that suffice the lowest one, split
        until it is no larger than needed."""
        source = next((o for o in range(order, len(self._free)) if self._free[o]), None)
        if source is None:
            raise OutOfBlocksError(f"no free run of {1 << order} blocks among {self.num_free} free blocks")
        start = self._free[source].pop(0)
        for split in reversed(range(order, source)):
            insort(self._free[split], start + (1 << split))
        self.num_free -= 1 << order
        return start

    def free(self, start: int, order: int) -> None:
        """Take back a run, and merge it with its buddy for as long as that is free too."""
        self.num_free += 1 << order
        while self._take(order, start ^ (1 << order)):
            start &= ~(1 << order)
            order += 1
        insort(self._free[order], start)

    def _take(self, order: int, start: int) -> bool:
        """Remove the free run at ``start`` if there is one of this order."""
        starts = self._free[order]
        index = bisect_left(starts, start)
        if index == len(starts) or starts[index] != start:
            return False
        del starts[index]
        return True

    def forget_cached(self) -> None:
        """Nothing is cached."""

    def check(self, runs: Iterable[tuple[int, int]]) -> None:
        """Raise ``AssertionError`` unless ``runs`` (start, order), all that are handed out, and the free ones are the pool."""
        owner: list[str | None] = [None] * self.num_blocks
        handed_out = [("used", start, order) for start, order in runs]
        free = [("free", start, order) for order, starts in enumerate(self._free) for start in starts]
        for kind, start, order in handed_out + free:
            if start % (1 << order):
                raise AssertionError(f"a {kind} run of {1 << order} blocks begins at {start}")
            for block in range(start, start + (1 << order)):
                if owner[block] is not None:
                    raise AssertionError(f"block {block} is in a {kind} run and in another that is {owner[block]}")
                owner[block] = kind
        if None in owner or owner.count("free") != self.num_free:
            raise AssertionError(f"{owner.count(None)} blocks are lost, {owner.count('free')} free, kept {self.num_free}")
        for order, starts in enumerate(self._free):
            if any(start ^ (1 << order) in starts for start in starts):
                raise AssertionError(f"two free buddies of {1 << order} blocks were not merged")
