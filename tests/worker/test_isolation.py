"""A step that fails is computed again, each sequence alone, over a fake device and over a real model."""

from typing import Any

import numpy as np
import pytest

from octavo.engine.engine import Engine
from octavo.step import BlockCopies, ModelOutput, ScheduledSequence, SchedulerOutput
from octavo.worker.isolation import MOST_FAILURES, Isolation
from tests.engine.fake import FakeExecutor, naive
from tests.engine.test_scheduler import Harness

ROWS = 8


def plan(*rows: int) -> SchedulerOutput:
    sequences = [
        ScheduledSequence(seq_id=row, row=row, start=0, token_ids=[row], prompt_len=1, sample_rows=(row,), seeds=(row,))
        for row in rows
    ]
    tables = np.array([[row] for row in rows], np.int32)
    return SchedulerOutput(
        step_id=7, sequences=sequences, block_tables=tables, copies=BlockCopies(swap_out=[], swap_in=[], copy=[(1, 2)])
    )


class Device:
    """Every sequence's token is a hundred more than its last; those of ``broken`` fail, after the others have been sampled."""

    def __init__(self, *broken: int) -> None:
        self.broken = set(broken)
        self.last_token = np.arange(ROWS, dtype=np.int32)
        self.calls: list[list[int]] = []
        self.copied: list[bool] = []
        self.isolation = Isolation(self.compute, self.last_token)

    def isolated(self, plan: SchedulerOutput) -> ModelOutput:
        return self.isolation(plan, lambda: self.compute(plan))

    def compute(self, plan: SchedulerOutput) -> ModelOutput:
        rows = [seq.row for seq in plan.sequences]
        self.calls.append(rows)
        assert [table[0] for table in plan.block_tables] == rows
        self.copied.append(bool(plan.copies))
        tokens = [[int(self.last_token[row]) + 100] for row in rows]
        for row, (token,) in zip(rows, tokens, strict=True):
            self.last_token[row] = token
        if self.broken & set(rows):
            raise RuntimeError(f"no row {self.broken}")
        return ModelOutput(step_id=plan.step_id, token_ids=tokens)


def test_the_others_get_what_they_would_have_got() -> None:
    device = Device(3)
    output = device.isolated(plan(1, 3, 5))
    assert device.calls == [[1, 3, 5], [1], [3], [5]]
    assert device.copied == [True, False, False, False], "copies are not repeated"
    assert output.step_id == 7 and output.token_ids == [[101], [], [105]]
    assert output.errors is not None and [error is None for error in output.errors] == [True, False, True]
    assert "RuntimeError: no row {3}" in str(output.errors[1])
    assert device.last_token.tolist() == [0, 101, 2, 3, 4, 105, 6, 7], "what a failed step wrote is taken back"


def test_a_step_without_error_is_computed_once() -> None:
    device = Device()
    assert device.isolated(plan(1, 2)).errors is None and device.calls == [[1, 2]]


def test_a_device_on_which_nothing_works_is_given_up() -> None:
    device = Device(1, 2)
    for _ in range(MOST_FAILURES - 1):
        assert device.isolated(plan(1, 2)).errors is not None
    with pytest.raises(RuntimeError, match="no row"):
        device.isolated(plan(1, 2))


def test_one_success_is_enough_to_go_on() -> None:
    device = Device(1)
    for _ in range(3 * MOST_FAILURES):
        device.isolated(plan(1))
        device.isolated(plan(1, 2))


class BrokenExecutor(FakeExecutor):
    """Says of the sequences with one seed that they failed, from their step number ``after`` on."""

    def __init__(self, *args: Any, seed: int, after: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seed, self.after, self.seen = seed, after, 0

    def run_oldest(self) -> ModelOutput:
        plan = self.queue[0]
        output = super().run_oldest()
        hit = [self.seed in seq.seeds for seq in plan.sequences]
        self.seen += any(hit)
        if self.seen <= self.after or not any(hit):
            return output
        tokens = [[] if bad else found for bad, found in zip(hit, output.token_ids, strict=True)]
        errors = ["broken" if bad else None for bad in hit]
        return ModelOutput(step_id=output.step_id, token_ids=tokens, candidates=output.candidates, errors=errors)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_fails_ends_alone_and_frees_what_it_held(depth: int, n: int, after: int, temperature: float) -> None:
    harness = Harness(depth=depth, num_blocks=64, enable_prefix_caching=True)
    harness.executor = BrokenExecutor(block_size=4, num_blocks=64, num_host_blocks=0, seed=99, after=after)
    harness.engine = Engine(harness.scheduler, harness.executor, max_in_flight=depth)
    for name in ("a", "broken", "b"):
        harness.add(name, 6, max_tokens=8, n=n, temperature=temperature, seed=99 if name == "broken" else 1)
    requests = {name: group.request for name, group in harness.scheduler._groups.items()}
    ended: dict[tuple[str, int], Any] = {}
    outputs: dict[tuple[str, int], list[int]] = {}
    for delta in harness.finish():
        key = delta.request_id, delta.branch
        assert key not in ended, "nothing follows the end of a branch"
        outputs.setdefault(key, []).extend(delta.token_ids)
        if delta.finish_reason is not None:
            ended[key] = delta
    for branch in range(n):
        failed = ended["broken", branch]
        assert (failed.finish_reason, failed.error) == ("error", "broken")
        assert (failed.metrics is not None) == (branch == n - 1)
    for name in ("a", "b"):
        assert [outputs[name, branch] for branch in range(n)] == naive(requests[name], 64)
