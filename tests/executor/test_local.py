"""Steps in this process: in order, one at a time, errors where they belong, and no thread left behind."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo.executor.local import LocalExecutor
from octavo.step import BlockCopies, ModelOutput, SchedulerOutput

ROOT = Path(__file__).parents[2]


def plan(step_id: int) -> SchedulerOutput:
    copies = BlockCopies(swap_out=[], swap_in=[], copy=[])
    return SchedulerOutput(step_id=step_id, sequences=[], block_tables=np.zeros((0, 0), np.int32), copies=copies)


def workers() -> int:
    return sum(thread.name == "octavo-worker" for thread in threading.enumerate())


class Device:
    """Takes a moment for each plan; fails at the third."""

    def __init__(self) -> None:
        self.running = 0
        self.begun: list[int] = []

    def __call__(self, plan: SchedulerOutput) -> ModelOutput:
        assert self.running == 0
        self.running += 1
        self.begun.append(plan.step_id)
        time.sleep(0.002)
        self.running -= 1
        if plan.step_id == 2:
            raise ValueError("the third")
        return ModelOutput(step_id=plan.step_id, token_ids=[])


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_in_order_and_their_errors(overlap: bool) -> None:
    device = Device()
    executor = LocalExecutor(device, overlap=overlap)
    pending = [executor.submit(plan(number)) for number in range(20)]
    for number in reversed(range(20)):
        for _ in range(2):
            if number == 2:
                with pytest.raises(ValueError, match="the third"):
                    pending[number].result()
            else:
                assert pending[number].result().step_id == number
    assert device.begun == list(range(20))
    executor.shutdown()
    executor.shutdown()


def test_shutdown_computes_what_was_submitted() -> None:
    before, device = workers(), Device()
    executor = LocalExecutor(device, overlap=True)
    assert workers() == before + 1
    for number in range(20):
        executor.submit(plan(number))
    executor.shutdown()
    assert device.begun == list(range(20))
    assert workers() == before
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(plan(20))


@pytest.mark.parametrize("use", [lambda executor: None, lambda executor: executor.submit(plan(0)).result()])
def test_a_forgotten_executor_s_thread_ends(use: Callable[[LocalExecutor], object]) -> None:
    before = workers()
    executor = LocalExecutor(Device(), overlap=True)
    use(executor)
    assert workers() == before + 1
    del executor
    gc.collect()
    assert workers() == before


def test_a_program_that_ends_in_the_middle_of_a_step() -> None:
    program = """
import time
from tests.executor.test_local import plan
from octavo.executor.local import LocalExecutor

def execute(plan):
    print("begun", flush=True)
    time.sleep(0.3)
    print("computed", flush=True)

executor = LocalExecutor(execute, overlap=True)
executor.submit(plan(0))
time.sleep(0.1)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\ncomputed\n", "")
