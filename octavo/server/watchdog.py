"""Decides when an engine that says nothing has to be replaced.

Silence alone is no proof: the first long prompt on a large model may take longer than any step before it. An engine that is
silent beyond the stall limit and does not compute either is stuck; one that computes in silence gets much longer. Knows no
process: it is told what the engine has computed, and says whether the time has come.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from octavo.server.status import Status

INTERVAL = 1.0
"""Seconds between two looks."""
BUSY_FACTOR = 30
"""An engine that computes may be silent for this many stall limits."""
_BUSY_SHARE = 0.1
"""Of one core: what an engine that waits for something uses is far below, what one that computes uses far above."""
_THREADS = 4
"""Threads of a stuck engine that are told of."""


class Watchdog:
    """Looks at one engine process; a new one needs a new one. ``cpu_seconds`` is what it has computed, None if unknown."""

    def __init__(self, status: Status, cpu_seconds: Callable[[], float | None]) -> None:
        self._status = status
        self._cpu_seconds = cpu_seconds
        self._seen = cpu_seconds()

    def stuck(self) -> bool:
        """Whether to replace the engine. To be asked every ``INTERVAL`` seconds."""
        now, before = self._cpu_seconds(), self._seen
        self._seen = now
        if not self._status.stalled:
            return False
        computing = now is not None and before is not None and now - before >= _BUSY_SHARE * INTERVAL
        return not computing or self._status.silence() > BUSY_FACTOR * self._status.stall_limit()


def cpu_seconds(pid: int) -> float | None:
    """Processor time of all threads of a process; None where the system does not tell."""
    try:
        return _Times.read(Path(f"/proc/{pid}/stat")).cpu_seconds
    except (OSError, ValueError, IndexError):
        return None


def threads(pid: int) -> list[str]:
    """Of those threads of a process that have computed most: name, state as ``ps`` has it, and processor time."""
    found: list[_Times] = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            found.append(_Times.read(task))
    found.sort(key=lambda times: -times.cpu_seconds)
    return [f"{times.name} {times.state} {times.cpu_seconds:.1f} s" for times in found[:_THREADS]]


class _Times(NamedTuple):
    """What the system tells of a process or a thread."""

    name: str
    state: str
    cpu_seconds: float

    @staticmethod
    def read(file: Path) -> "_Times":
        name, _, rest = file.read_text().rpartition(")")
        fields = rest.split()
        ticks = int(fields[11]) + int(fields[12])
        return _Times(name.partition("(")[2], fields[0], ticks / float(os.sysconf("SC_CLK_TCK")))
