"""A backend whose ops can be timed, one by one, without a hook anywhere: it stands around the real one.

While nothing is timed, its ops *are* the real ones; models and engines built on it run as they would without.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Op = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op and what it was about."""

    op: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any


class TimedOps:
    """Every public method of ``inner``."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._names = [name for name in dir(inner) if not name.startswith("_") and callable(getattr(inner, name))]
        self._replace(lambda name, op: op)

    def __getattr__(self, name: str) -> Any:
        """What an instance does not have: whatever else ``inner`` is asked for."""
        return getattr(self._inner, name)

    def _replace(self, around: Callable[[str, Op], Op]) -> None:
        for name in self._names:
            setattr(self, name, around(name, getattr(self._inner, name)))

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """The calls made meanwhile, with all that they take and give: memory that a running model would use again."""
        calls: list[Call] = []
        self._replace(lambda name, op: _recorded(name, op, calls))
        try:
            yield calls
        finally:
            self._replace(lambda name, op: op)

    @contextmanager
    def timing(self) -> Iterator[list[float]]:
        """Seconds of each call made meanwhile. Nothing else is done or kept, so that all is as it would be."""
        seconds: list[float] = []
        self._replace(lambda name, op: _timed(op, seconds))
        try:
            yield seconds
        finally:
            self._replace(lambda name, op: op)


def _recorded(name: str, op: Op, calls: list[Call]) -> Op:
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = op(*arguments, **keywords)
        calls.append(Call(name, arguments, keywords, result))
        return result

    return call


def _timed(op: Op, seconds: list[float]) -> Op:
    def call(*arguments: Any, **keywords: Any) -> Any:
        start = time.perf_counter()
        result = op(*arguments, **keywords)
        seconds.append(time.perf_counter() - start)
        return result

    return call


class TimedBackend:
    """``inner`` with ``TimedOps``."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.ops = TimedOps(inner.ops)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
