"""Runs steps in this process: on one worker thread, or in the caller's when nothing overlaps.

Native ops release the interpreter lock, so planning goes on while the thread computes. The thread takes steps from a queue and
nothing more: what a ``ThreadPoolExecutor`` does around each call is time in which nothing is computed.
"""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from octavo.step import ModelOutput, SchedulerOutput

Execute = Callable[[SchedulerOutput], ModelOutput]


class LocalExecutor:
    """``execute`` computes one plan; it is called for one plan at a time, in the order of submission."""

    def __init__(self, execute: Execute, *, overlap: bool) -> None:
        self._execute = execute
        self._steps: SimpleQueue[_Step | None] | None = None
        if overlap:
            self._steps = SimpleQueue()
            thread = threading.Thread(target=_run_steps, args=(self._steps,), name="octavo-worker", daemon=True)
            thread.start()
            self._end = weakref.finalize(self, _end, self._steps, thread)

    def submit(self, plan: SchedulerOutput) -> "_Step":
        step = _Step(self._execute, plan)
        if self._steps is None:
            step.run()
        elif self._end.alive:
            self._steps.put(step)
        else:
            raise RuntimeError("a step was submitted after shutdown")
        return step

    def shutdown(self) -> None:
        """What has been submitted is computed before."""
        if self._steps is not None:
            self._end()


class _Step:
    """A step on its way; its lock is free once there is an outcome."""

    __slots__ = ("_execute", "_lock", "_outcome", "_plan")

    def __init__(self, execute: Execute, plan: SchedulerOutput) -> None:
        self._execute = execute
        self._plan = plan
        self._outcome: ModelOutput | Exception
        self._lock = threading.Lock()
        self._lock.acquire()

    def run(self) -> None:
        try:
            self._outcome = self._execute(self._plan)
        except Exception as error:
            self._outcome = error
        self._lock.release()

    def result(self) -> ModelOutput:
        with self._lock:
            outcome = self._outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _run_steps(steps: "SimpleQueue[_Step | None]") -> None:
    """Holds nothing between steps, so that an executor that is forgotten can go, and its thread with it."""
    while (step := steps.get()) is not None:
        step.run()
        del step


def _end(steps: "SimpleQueue[_Step | None]", thread: threading.Thread) -> None:
    """Also at exit, where a thread that still computes must not outlive the interpreter."""
    steps.put(None)
    if thread is not threading.current_thread():
        thread.join()
