"""Two clocks with one face: time that passes, and time that is said to pass.

A leaf. Whoever drives requests through an engine is given one of them and does not know which: the same loop serves a real
engine and a simulated one. Times are seconds that only grow, from a beginning that means nothing.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Calling it gives the time now, in seconds."""

    def __call__(self) -> float: ...

    def sleep_until(self, moment: float) -> None:
        """Returns at ``moment``, at once if that is past."""
        ...


class WallClock:
    """``time.monotonic``, which all processes of a host share."""

    def __call__(self) -> float:
        return time.monotonic()

    def sleep_until(self, moment: float) -> None:
        if (left := moment - time.monotonic()) > 0:
            time.sleep(left)


class VirtualClock:
    """Time that only ``advance`` and ``sleep_until`` move. It does not begin at zero, which in records means "not yet"."""

    def __init__(self, start: float = 1.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass. Raises ``ValueError`` for a step back."""
        if not seconds >= 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        self._now += seconds

    def sleep_until(self, moment: float) -> None:
        self._now = max(self._now, moment)
