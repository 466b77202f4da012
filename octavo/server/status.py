"""What the probes say: how far the start has come, whether the server would take a request now, whether it makes progress.

The supervisor and the signal handlers write here, the routes read. Live is judged by the engine's last sign of life, but
only while it owes one: an idle engine is silent, one that loads tells how far it is.
"""

import time
from typing import Any

from octavo.metrics import Histogram

STALL_SECONDS = 10.0
LOADING_SECONDS = 600.0
"""Of an engine that loads: it tells of each part of the model as it is read, and of what it computes. In that time a disk of
18 MB/s reads 10 GiB; an engine that is replaced in the middle of it would never be ready."""
STEP_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Status:
    """The state of one server. ``phase`` is ``ready`` while an engine is loaded and the tokenizer is read."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.progress = 0.0
        self.started = False
        self.engine_up = False
        self.text_up = False
        self.draining = False
        self.restarts = 0
        self.queue_full = False
        self.steps = Histogram(STEP_BUCKETS)
        self._owed_since: float | None = None

    def loading(self, phase: str, progress: float) -> None:
        self.engine_up = False
        self.phase, self.progress = phase, progress

    def up(self) -> None:
        """The engine is loaded."""
        self.phase, self.progress = "read tokenizer", 1.0
        self.engine_up = True
        self._owed_since = None
        self._meet()

    def text_ready(self) -> None:
        """The tokenizer is read."""
        self.text_up = True
        self._meet()

    def _meet(self) -> None:
        """Either of the two may be the last."""
        if self.engine_up and self.text_up:
            self.phase, self.started = "ready", True

    def down(self) -> None:
        self.loading("restarting", 0.0)
        self.restarts += 1
        self._owed_since = None

    def expect(self) -> None:
        """The engine now owes a sign of life."""
        if self._owed_since is None:
            self._owed_since = time.monotonic()

    def heard(self, *, busy: bool) -> None:
        """The engine gave a sign of life; it owes the next only while ``busy``."""
        self._owed_since = time.monotonic() if busy else None

    def stall_limit(self) -> float:
        """Seconds without a sign of life that an engine may take: twenty of its slowest percent of steps, at least ten. One
        that computes gives one every second, however long its step. One that loads may take longer."""
        return LOADING_SECONDS if not self.engine_up else max(STALL_SECONDS, 20 * self._slow_step())

    def _slow_step(self) -> float:
        total, running = self.steps.count, 0
        for bound, count in zip(self.steps.bounds, self.steps.counts, strict=False):
            running += count
            if running >= 0.99 * total:
                return bound if total else 0.0
        return self.steps.bounds[-1]

    def silence(self) -> float:
        """Seconds for which the engine has owed a sign of life."""
        return 0.0 if self._owed_since is None else time.monotonic() - self._owed_since

    @property
    def stalled(self) -> bool:
        return self.silence() > self.stall_limit()

    def startup(self) -> tuple[int, dict[str, Any]]:
        if self.started:
            return 200, {"status": "started"}
        return 503, {"phase": self.phase, "progress": round(self.progress, 3)}

    def ready(self) -> tuple[int, dict[str, Any]]:
        if self.draining:
            return 503, {"status": "draining"}
        if not (self.engine_up and self.text_up):
            return 503, {"status": "loading", "phase": self.phase, "progress": round(self.progress, 3)}
        if self.stalled:
            return 503, {"status": "stalled", "silent_seconds": round(self.silence(), 1)}
        if self.queue_full:
            return 503, {"status": "queue full"}
        return 200, {"status": "ready"}

    def live(self) -> tuple[int, dict[str, Any]]:
        if self.stalled:
            return 503, {"status": "stalled", "silent_seconds": round(self.silence(), 1), "limit": self.stall_limit()}
        return 200, {"status": "live", "phase": self.phase}
