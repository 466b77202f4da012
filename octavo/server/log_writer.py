"""Lines of the log on their way out, by a thread of their own: who reads the log may stop doing so, and a full pipe, or a
terminal that is held, stops whoever writes to it.

Keeps the order of lines, writes each at once, and loses those for which there is no room, in gaps that it tells of. Knows not
what a line says.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import TextIO

_MOST = 1 << 20
"""Characters that wait: thousands of lines."""


class LogWriter:
    """A stream to which nobody has to wait to write. ``tell_lost`` makes the line that stands for so many lost ones."""

    def __init__(self, stream: TextIO, tell_lost: Callable[[int], str]) -> None:
        self._stream = stream
        self._tell_lost = tell_lost
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._size = 0
        self._lost = 0
        self._writing = False
        threading.Thread(target=self._run, daemon=True, name="log").start()

    def write(self, line: str) -> None:
        with self._changed:
            if self._lost or self._size > _MOST:
                self._lost += 1
                return
            self._waiting.append(line)
            self._size += len(line)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Until all that was written is out, but no longer than that. Returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._writing and not self._waiting, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                lines, lost = self._waiting, self._lost
                self._waiting, self._size, self._lost, self._writing = [], 0, 0, True
            for line in [*lines, self._tell_lost(lost)] if lost else lines:
                with contextlib.suppress(OSError, ValueError):  # nobody reads the log any more; serving goes on
                    self._stream.write(line)
                    self._stream.flush()
