"""A backend whose ops can be timed, one by one, without a hook anywhere: it stands around the real one.

While nothing is timed, its ops *are* the real ones; models and engines built on it run as they would without.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op, in order. Arrays in it are to be asked for their sizes only: their memory is soon another's."""

    op: str
    seconds: float
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any


class TimedOps:
    """Every public method of ``inner``, timed while ``calls`` is a list."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._names = [name for name in dir(inner) if not name.startswith("_") and callable(getattr(inner, name))]
        self._rest()

    def __getattr__(self, name: str) -> Any:
        """What an instance does not have: whatever else ``inner`` is asked for."""
        return getattr(self._inner, name)

    def _rest(self) -> None:
        for name in self._names:
            setattr(self, name, getattr(self._inner, name))

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """The calls made meanwhile."""
        calls: list[Call] = []
        for name in self._names:
            setattr(self, name, _timed(name, getattr(self._inner, name), calls))
        try:
            yield calls
        finally:
            self._rest()


def _timed(name: str, op: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    # Accounting comes after the step: the threads of a device soon fall asleep between ops.
    def call(*arguments: Any, **keywords: Any) -> Any:
        start = time.perf_counter()
        result = op(*arguments, **keywords)
        calls.append(Call(name, time.perf_counter() - start, arguments, keywords, result))
        return result

    return call


class TimedBackend:
    """``inner`` with ``TimedOps``."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.ops = TimedOps(inner.ops)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
