"""Runs steps in this process: on one worker thread, or in the caller's when nothing overlaps.

Native ops release the interpreter lock, so planning goes on while the thread computes.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from octavo.step import ModelOutput, SchedulerOutput


class LocalExecutor:
    """``execute`` computes one plan; it is called for one plan at a time, in the order of submission."""

    def __init__(self, execute: Callable[[SchedulerOutput], ModelOutput], *, overlap: bool) -> None:
        self._execute = execute
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-worker") if overlap else None

    def submit(self, plan: SchedulerOutput) -> "Future[ModelOutput]":
        if self._thread is not None:
            return self._thread.submit(self._execute, plan)
        future: Future[ModelOutput] = Future()
        future.set_result(self._execute(plan))
        return future

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)
