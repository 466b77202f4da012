"""What the system tells of another process's threads, for the log."""

import contextlib
import os
from pathlib import Path

_MOST = 4


def busiest_threads(pid: int) -> list[str]:
    """Of those threads of a process that have computed most: name, state as ``ps`` has it, and processor time. Empty where the
    system does not tell."""
    found: list[tuple[float, str]] = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            found.append(_thread(task))
    return [told for _, told in sorted(found, reverse=True)[:_MOST]]


def _thread(file: Path) -> tuple[float, str]:
    name, _, rest = file.read_text().rpartition(")")
    fields = rest.split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds, f"{name.partition('(')[2]} {fields[0]} {seconds:.1f} s"
