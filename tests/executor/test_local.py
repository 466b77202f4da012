"""Steps in this process: in order, one at a time, prepared while another is computed, and errors where they belong."""

import numpy as np
import pytest

from octavo.executor.local import LocalExecutor
from octavo.step import BlockCopies, ModelOutput, SchedulerOutput


def plan(step_id: int) -> SchedulerOutput:
    copies = BlockCopies(swap_out=[], swap_in=[], copy=[])
    return SchedulerOutput(step_id=step_id, sequences=[], block_tables=np.zeros((0, 0), np.int32), copies=copies)


class Runner:
    """Writes down what it is asked to do; the third step fails. ``interrupt``: the step that Ctrl-C comes in."""

    def __init__(self, *, interrupt: int = -1) -> None:
        self.done: list[tuple[str, int]] = []
        self.interrupt = interrupt
        self.following: dict[int, int | None] = {}

    def prepare(self, plan: SchedulerOutput) -> int:
        self.done.append(("prepare", plan.step_id))
        return plan.step_id

    def start(self, work: int) -> None:
        self.done.append(("start", work))

    def finish(self, work: int, following: int | None) -> ModelOutput:
        self.following[work] = following
        if work == self.interrupt:
            raise KeyboardInterrupt
        self.done.append(("finish", work))
        if work == 2:
            raise ValueError("the third")
        return ModelOutput(step_id=work, token_ids=[])

    def of(self, what: str) -> list[int]:
        return [step for name, step in self.done if name == what]


def test_steps_in_order_and_their_errors() -> None:
    runner = Runner()
    executor = LocalExecutor(runner)
    pending = [executor.submit(plan(number)) for number in range(20)]
    assert runner.of("prepare") == list(range(20)) and runner.of("start") == [0]
    for number in reversed(range(20)):
        for _ in range(2):
            if number == 2:
                with pytest.raises(ValueError, match="the third"):
                    pending[number].result()
            else:
                assert pending[number].result().step_id == number
    assert runner.following == {**{number: number + 1 for number in range(19)}, 19: None}
    assert runner.done[21:] == [step for number in range(20) for step in (("start", number), ("finish", number))][1:]
    executor.shutdown()
    executor.shutdown()


def test_the_next_step_starts_before_results_are_handed_over() -> None:
    runner = Runner()
    executor = LocalExecutor(runner)
    first, second = executor.submit(plan(0)), executor.submit(plan(1))
    first.result()
    assert runner.done[-2:] == [("finish", 0), ("start", 1)]
    third = executor.submit(plan(3))
    assert runner.done[-1] == ("prepare", 3), "not while another runs"
    assert [second.result().step_id, third.result().step_id] == [1, 3]


def test_shutdown_computes_what_was_submitted() -> None:
    runner = Runner()
    executor = LocalExecutor(runner)
    for number in range(20):
        executor.submit(plan(number))
    executor.shutdown()
    assert runner.of("finish") == list(range(20))
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(plan(20))


def test_steps_go_on_after_an_interrupt() -> None:
    runner = Runner(interrupt=0)
    executor = LocalExecutor(runner)
    first, second = executor.submit(plan(0)), executor.submit(plan(1))
    with pytest.raises(KeyboardInterrupt):
        first.result()
    assert [executor.submit(plan(3)).result().step_id, second.result().step_id] == [3, 1]
    assert runner.of("finish") == [1, 3]
