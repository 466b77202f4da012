"""When drafts are made, and how many: what they are worth against what they cost. That they change no output is shown by
``test_any_schedule``."""

from typing import Any

import numpy as np
import pytest

from octavo.engine import ngram, speculation
from octavo.engine.sequence import Guesses
from octavo.engine.speculation import FIRST_COST, Speculation, StepCost
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step import PENDING, BlockCopies, ModelOutput, ScheduledSequence, SchedulerOutput, StepTimings
from tests.engine.test_scheduler import Harness


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("per_row", [0.0002, 0.001, 0.01])
def test_the_price_of_a_row_is_found_from_steps(size: int, per_row: float) -> None:
    """In tokens: what is generated meanwhile. A step takes 4 ms and so much for each row; no draft is right."""
    cost = StepCost()
    for i in range(200):
        rows = size * (1 + i % 4)
        cost.observe(rows=rows, tokens=size, seconds=0.004 + per_row * rows)
    tokens_per_second = size / (0.004 + per_row * size * 2.5)
    assert cost.price == pytest.approx(min(1.0, per_row * tokens_per_second), rel=0.25)


def test_a_price_is_assumed_before_it_is_known() -> None:
    cost = StepCost()
    assert cost.price == FIRST_COST
    for _ in range(50):
        cost.observe(rows=1, tokens=1, seconds=0.005)
    assert cost.price == pytest.approx(FIRST_COST)


def test_a_row_never_costs_nothing_nor_more_than_a_row() -> None:
    """Though noise may say so."""
    cheap, dear = StepCost(), StepCost()
    for i in range(50):
        cheap.observe(rows=1 + i % 2, tokens=1, seconds=0.004 - 0.002 * (i % 2))
        dear.observe(rows=1 + i % 2, tokens=1, seconds=0.004 + 0.020 * (i % 2))
    assert 0 < cheap.price < 0.05
    assert dear.price == pytest.approx(1 / 1.5, rel=0.2)


@pytest.mark.parametrize(
    ("price", "chance", "expected"), [(0.1, 0.05, 0), (0.1, 0.1, 0), (0.1, 0.5, 3), (0.5, 0.9, 6), (0.1, 0.9, 8), (0.9, 1.0, 8)]
)
def test_drafts_are_made_as_long_as_they_are_worth_their_time(
    price: float, chance: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one is right with a chance of at least the price, one more would not be."""
    monkeypatch.setattr(StepCost, "price", price)
    found = Speculation(8, StepCost())._worth_while(chance)
    assert found == expected
    assert found in (0, 8) or chance ** (found + 1) < price <= chance**found


@pytest.mark.parametrize(("drawn", "counts"), [([[5], [6]], True), ([[5], []], False), ([[], []], False)])
def test_steps_of_beams_say_nothing(drawn: list[list[int]], counts: bool) -> None:
    """They draw no tokens, so that guesses would seem to cost nothing."""
    guessing = Speculation(8, StepCost())
    sequences = [
        ScheduledSequence(seq_id=i, row=i, start=3, token_ids=[5], prompt_len=3, sample_rows=(i,), seeds=(0,)) for i in range(2)
    ]
    copies = BlockCopies(swap_out=[], swap_in=[], copy=[])
    plan = SchedulerOutput(step_id=1, sequences=sequences, block_tables=np.zeros((2, 1), np.int32), copies=copies)
    guessing.observe(plan, ModelOutput(step_id=1, token_ids=drawn, timings=StepTimings(forward=0.01)))
    assert (guessing.cost._tokens > 0) == counts


def test_guesses_are_remembered_and_forgotten() -> None:
    guesses = Guesses()
    assert guesses.chance == 0.5
    for _ in range(30):
        guesses.verified(4, 4)
    assert guesses.chance == pytest.approx(1.0, abs=0.01)
    for _ in range(30):
        guesses.verified(4, 0)
    assert guesses.chance < 0.01
    guesses.verified(8, 3)  # three of the four that were tried: what comes behind a wrong one says nothing
    assert 0.3 < guesses.chance < 0.75
    for _ in range(200):
        guesses.forget()
    assert guesses.chance == pytest.approx(0.5, abs=0.01)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "propose", lambda token_ids, num_drafts: [9] * num_drafts)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("count", [1, 4, 5])
def test_nothing_is_guessed_beside_many_sequences(count: int) -> None:
    harness = Harness(spec_method="ngram", spec_tokens=2)
    for i in range(count):
        harness.add(f"r{i}", max_tokens=20)
    assert len(harness.plan()) == len(harness.plan()) == count
    assert harness.scheduler.counters.drafts == (count if count <= speculation.FEW else 0)
    harness.finish()


@pytest.mark.usefixtures("always")
def test_what_was_planned_ahead_goes_on_with_drafts_when_others_have_ended() -> None:
    """And the other way round."""
    harness = Harness(spec_method="ngram", spec_tokens=2, depth=2)
    for i in range(5):
        harness.add(f"r{i}", max_tokens=4 if i < 3 else 30)
    for _ in range(3):
        harness.engine.step()
    assert len(harness.scheduler.live_sequences) == 5 and harness.scheduler.counters.drafts == 0
    for _ in range(5):
        harness.engine.step()
    assert len(harness.scheduler.live_sequences) == 2
    assert harness.scheduler.counters.drafts > 0
    for i in range(4):
        harness.add(f"s{i}", max_tokens=10)
    harness.engine.step()
    harness.engine.step()
    harness.engine.step()
    assert any(seq.token_ids[-1] == PENDING for seq in harness.scheduler.live_sequences), "planned ahead"
    harness.finish()


@pytest.mark.usefixtures("always")
def test_nobody_yields_for_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence ends before the other needs more than the pool has left; with drafts it would need it at once."""
    monkeypatch.setattr(StepCost, "price", 1e-6)
    harness = Harness(num_blocks=9, spec_method="ngram", spec_tokens=16)
    harness.add("a", prompt_len=5, max_tokens=10)
    harness.add("b", prompt_len=5, max_tokens=30)
    harness.finish()
    assert harness.scheduler.counters.preemptions == 0 and harness.scheduler.counters.draft_tokens > 0


def outputs(harness: Harness) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while harness.engine.has_work:
        for delta in harness.engine.step():
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
    return found


@pytest.mark.parametrize("depth", [1, 2])
def test_who_waits_for_a_token_is_computed_with_the_others(depth: int) -> None:
    """A few requests whose tokens must be known before they go on, one arriving after the other: after some steps all are in
    each, and not in two halves that take turns."""
    harness = Harness(depth=depth)
    sizes: list[int] = []
    submit = harness.executor.submit

    def counted(plan: Any) -> Any:
        sizes.append(len(plan.sequences))
        return submit(plan)

    harness.executor.submit = counted  # type: ignore[method-assign]
    for i in range(4):
        harness.add(f"r{i}", max_tokens=20, repetition_penalty=1.2)
        harness.engine.step()
    for _ in range(8):
        harness.engine.step()
    assert sizes[-6:] == [4] * 6
    harness.finish()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_few_who_wait_for_a_token_do_not_hold_up_the_others(depth: int) -> None:
    harness = Harness(depth=depth)
    for i in range(6):
        harness.add(f"r{i}", max_tokens=20, repetition_penalty=1.2 if i == 0 else 1.0)
    for _ in range(6):
        harness.engine.step()
    in_flight = len(harness.scheduler._planned)
    assert in_flight == depth - 1, "the next step is planned before the one before it has come back"
    harness.finish()


def test_a_repetitive_text_takes_fewer_steps_and_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookup itself, with a device whose tokens go round in a circle."""
    monkeypatch.setattr("tests.engine.fake.next_token", lambda context, seed, mask=None: 1 + context[-1] % 5)
    found, steps = [], []
    for method in ("none", "ngram"):
        harness = Harness(spec_method=method)
        request = Request(
            id="a",
            prompt_token_ids=[1, 2, 3, 4, 5, 1, 2],
            params=SamplingParams(max_tokens=30, ignore_eos=True),
            seed=1,
            arrival_time=0.0,
        )
        harness.engine.add(request)
        found.append(outputs(harness)["a"])
        steps.append(harness.scheduler.counters.steps)
    assert found[0] == found[1] and len(found[0]) == 30
    assert steps[1] < steps[0] / 3
