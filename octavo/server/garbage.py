"""When this process looks for unreachable cycles: a few objects at a time, and everything only while no request is answered.

A collection keeps the event loop waiting, wherever it runs, for as long as it takes to visit what it looks at. So what stays
for good is never visited, and what a busy server makes is looked through when it is at rest or, at the latest, when there is
much of it: then a full collection takes milliseconds, and memory stays bounded.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator

_NEW = 700
_YOUNG = 4
"""Collections of the newest objects to one of those that survived them, which then takes a millisecond and not three."""
_OLD = 40
"""Collections of those to one of everything: some hundred thousand objects that nothing but a collection would free."""
_LOOK_SECONDS = 1.0


def settle() -> None:
    """What is here now stays, and need not be looked at again."""
    gc.freeze()
    gc.set_threshold(_NEW, _YOUNG, _OLD)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """While inside, nothing is looked at: for what makes many objects at once, and no cycle."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def collect_at_rest(is_at_rest: Callable[[], bool]) -> None:
    """For ever: a full collection whenever there may be something to collect and nobody waits for this process."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        _, _, survived = gc.get_count()
        if survived and is_at_rest():
            gc.collect()
