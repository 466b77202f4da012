"""Work that grows with what a client sends or gets back: on the event loop while it is little, on a thread when it is much.

Everybody waits for what the loop does, so nothing there may take more than a few milliseconds; a thread takes turns with it.
Knows nothing of the work. Context variables go along, so that whose request it is stays known.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MANY_ENTRIES = 2048
"""Tokens, or log-probabilities, beyond which a thread costs less than the wait. Bytes that are only looked at count less."""
MANY_BYTES = 1 << 15
WRITTEN_AT_ONCE = 1 << 18
"""Bytes: a connection that does not take them has them copied on the event loop."""
_FREED_AT_ONCE = 1 << 14


def forget(items: list[Any]) -> None:
    """Empties a list that may be long, so that whoever drops the last reference to it has nothing to free."""
    while items:
        del items[-_FREED_AT_ONCE:]


async def run(is_much: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work`` returns or raises."""
    return await asyncio.to_thread(work, *args, **kwargs) if is_much else work(*args, **kwargs)


async def slices(body: bytes) -> AsyncIterator[bytes]:
    """``body`` in pieces that can be written at once; others get a turn after each but the last."""
    for begin in range(0, len(body), WRITTEN_AT_ONCE):
        if begin:
            await asyncio.sleep(0)
        yield body[begin : begin + WRITTEN_AT_ONCE]
