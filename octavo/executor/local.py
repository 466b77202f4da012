"""Runs steps in this process, one after another, on threads of the device.

A step is computed while its caller plans the next one, which is prepared meanwhile and started as soon as the results of the
one before are there: the less is done between two steps, during which nothing is computed, the better. Whoever asks for results
takes part in computing them, so that no more threads work than there are cores. Owns the queue of steps.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from octavo.step import ModelOutput, SchedulerOutput


class StepRunner(Protocol):
    """Computes steps in their order; what it makes of a plan is its own affair. Errors of a step are raised by ``finish``."""

    def prepare(self, plan: SchedulerOutput) -> Any:
        """All that can be done for a step while another is computed."""
        ...

    def start(self, work: Any) -> None:
        """Begin to compute, if that has not been done; the step before is finished."""
        ...

    def finish(self, work: Any, following: Any | None) -> ModelOutput:
        """Wait for what was started, and take part. ``following``, the next step if it is known, may be begun at once."""
        ...


class LocalExecutor:
    """Steps are computed in the order of submission, each as soon as the one before it is finished."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._steps: deque[_Step] = deque()
        self._ended = False

    def submit(self, plan: SchedulerOutput) -> "_Step":
        if self._ended:
            raise RuntimeError("a step was submitted after shutdown")
        step = _Step(self._advance, self._runner.prepare(plan))
        self._steps.append(step)
        if len(self._steps) == 1:
            self._runner.start(step.work)
        return step

    def shutdown(self) -> None:
        """What has been submitted is computed before."""
        self._ended = True
        while self._steps:
            self._advance()

    def _advance(self) -> None:
        """Finish the oldest step and start the one after it."""
        step = self._steps.popleft()
        try:
            step.outcome = self._runner.finish(step.work, self._steps[0].work if self._steps else None)
        except Exception as error:
            step.outcome = error
        finally:  # also when interrupted
            if self._steps:
                self._runner.start(self._steps[0].work)


class _Step:
    """A step on its way."""

    __slots__ = ("_advance", "outcome", "work")

    def __init__(self, advance: Callable[[], None], work: Any) -> None:
        self._advance = advance
        self.work = work
        self.outcome: ModelOutput | Exception | None = None

    def result(self) -> ModelOutput:
        while self.outcome is None:
            self._advance()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome
