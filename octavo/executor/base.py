"""The joint between deciding and computing: whoever runs steps implements ``Executor``."""

from concurrent.futures import Future
from typing import Protocol

from octavo.step import ModelOutput, SchedulerOutput


class Executor(Protocol):
    """Runs steps in the order in which they are submitted, each after the one before is complete on the device."""

    def submit(self, plan: SchedulerOutput) -> "Future[ModelOutput]": ...

    def shutdown(self) -> None: ...
