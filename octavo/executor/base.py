"""The joint between deciding and computing: whoever runs steps implements ``Executor``."""

from typing import Protocol

from octavo.step import ModelOutput, SchedulerOutput


class PendingOutput(Protocol):
    """A step on its way."""

    def result(self) -> ModelOutput:
        """Waits for the step; raises what went wrong in it."""
        ...


class Executor(Protocol):
    """Runs steps in the order in which they are submitted, each after the one before is complete on the device."""

    def submit(self, plan: SchedulerOutput) -> PendingOutput: ...

    def shutdown(self) -> None: ...
