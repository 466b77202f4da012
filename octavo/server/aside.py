"""Work that grows with what a client sends or gets back: on the event loop while it is little, on a thread when it is much.

Everybody waits for what the loop does, so nothing there may take more than a few milliseconds; a thread takes turns with it.
Knows nothing of the work. Context variables go along, so that whose request it is stays known.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MANY_ENTRIES = 2048
"""Tokens, or log-probabilities, beyond which a thread costs less than the wait. Bytes that are only looked at count less."""
MANY_BYTES = 1 << 15


async def run(is_much: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work`` returns or raises."""
    return await asyncio.to_thread(work, *args, **kwargs) if is_much else work(*args, **kwargs)
