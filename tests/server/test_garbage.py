"""Everything is collected at rest and not while a request is answered; what was there at the start is not looked at again."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from octavo.server import garbage


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def old_cycle() -> "weakref.ref[Cycle]":
    """One that only a full collection frees."""
    cycle = Cycle()
    gc.collect(1)
    return weakref.ref(cycle)


@pytest.mark.parametrize("at_rest", [True, False])
def test_everything_is_collected_at_rest(monkeypatch: pytest.MonkeyPatch, at_rest: bool) -> None:
    monkeypatch.setattr(garbage, "_LOOK_SECONDS", 0.001)

    async def scene() -> None:
        gc.set_threshold(0)
        found = old_cycle()
        task = asyncio.create_task(garbage.collect_at_rest(lambda: at_rest))
        await asyncio.sleep(0.05)
        task.cancel()
        assert (found() is None) == at_rest

    asyncio.run(scene())


def test_what_has_settled_is_not_visited() -> None:
    there = Cycle()
    garbage.settle()
    assert not any(item is there for item in gc.get_objects()) and gc.get_freeze_count() > 0
