"""When drafts are made, and how many: what they are worth against what they cost. That they change no output is shown by
``test_any_schedule``."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from octavo.engine.guesses import IMAGINED, Guesses
from octavo.engine.ngram import PLACES, PromptLookup
from octavo.engine.speculation import FEW, WEIGHTS, Speculation, StepCost, _worth_while
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step import PENDING, BlockCopies, ModelOutput, ScheduledSequence, SchedulerOutput, StepTimings
from tests.engine.test_scheduler import Harness


def propose(token_ids: list[int], num_drafts: int) -> list[int]:
    return PromptLookup().propose(token_ids, len(token_ids), num_drafts)


def test_drafts_by_prompt_lookup() -> None:
    assert propose([1, 2, 3, 4, 9, 8, 2, 3, 4], 3) == [9, 8, 2]
    assert propose([5, 6, 7], 3) == []
    assert propose([1, 2, 1, 2], 0) == []
    assert propose([1, 2, 3, 1, 2, 4, 1, 2], 1) == [4], "the latest occurrence counts"
    assert propose([3, 1, 2, 8, 7, 1, 2, 9, 3, 1, 2], 2) == [8, 7], "and before it the longest"
    assert propose([7, 7, 7], 2) == [7, 7], "which may overlap the end, and then goes on"
    assert propose([9, 5, 6, 7, 5, 6, 7, 5, 6], 8) == [7, 5, 6, 7, 5, 6, 7, 5]
    assert propose([0, 1, 0, 0, 1], 2) == [0, 0] and propose([0, 0], 1) == []
    assert propose([], 3) == propose([1], 3) == propose([1, 1], 3) == []


def test_the_longest_match_is_looked_for_in_the_latest_places() -> None:
    later = [8, 1, 2, 9] * (PLACES - 1)
    assert propose([3, 1, 2, 7, *later, 3, 1, 2], 1) == [7]
    assert propose([3, 1, 2, 7, *later, 8, 1, 2, 9, 3, 1, 2], 1) == [9]


def test_a_lookup_follows_a_growing_text() -> None:
    """As one made anew does; what is not known yet is not looked at."""
    rng = np.random.default_rng(1)
    text = [int(token) for token in rng.integers(0, 5, 300)]
    lookup = PromptLookup()
    for known in [3, 4, 9, 10, 100, *range(101, 300)]:
        assert lookup.propose(text, known, 5) == propose(text[:known], 5)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("per_row", [0.0002, 0.001, 0.01])
def test_the_price_of_a_row_is_found_from_steps(size: int, per_row: float) -> None:
    """By how much it makes a step longer, for each of its sequences. A step takes 4 ms and so much for each row."""
    cost = StepCost()
    for i in range(200):
        rows = size * (1 + i % 4)
        cost.observe(sequences=size, rows=rows, seconds=0.004 + per_row * rows)
    assert cost.price(size) == pytest.approx(size * per_row / (0.004 + per_row * size * 2.5), rel=0.25)
    assert cost.growth(size) == pytest.approx(per_row / (0.004 + per_row * size), rel=0.35)
    assert cost.price(1) < cost.price(2) < cost.price(20) < 1 / 2.5, "where more wait for it, it costs more"


def test_a_price_is_assumed_before_it_is_known() -> None:
    cost = StepCost()
    assert cost.price(1) == 1.0, "nothing is guessed in the first step"
    for _ in range(50):
        cost.observe(sequences=1, rows=1, seconds=0.005)
    assert cost.price(1) == pytest.approx(1 / (1 + WEIGHTS))
    assert cost.price(WEIGHTS) == pytest.approx(1 / 2), "so many take twice as long as none"


def test_a_row_never_costs_nothing_nor_more_than_a_row() -> None:
    """Though noise may say so."""
    cheap, dear = StepCost(), StepCost()
    for i in range(50):
        cheap.observe(sequences=1, rows=1 + i % 2, seconds=0.004 - 0.002 * (i % 2))
        dear.observe(sequences=1, rows=1 + i % 2, seconds=0.004 + 0.020 * (i % 2))
    assert 0 < cheap.price(1) < 0.05
    assert dear.price(1) == pytest.approx(1 / 1.5, rel=0.2)


@pytest.mark.parametrize(
    ("price", "chance", "expected"), [(0.1, 0.05, 0), (0.1, 0.1, 0), (0.1, 0.5, 2), (0.5, 0.9, 1), (0.1, 0.9, 6), (0.1, 1.0, 8)]
)
def test_drafts_are_made_as_long_as_they_are_worth_their_time(price: float, chance: float, expected: int) -> None:
    """The last one makes the sequence faster by a greater part than it makes the step longer, one more would not."""
    worth = _worth_while(chance, price, 8)
    count, tokens = len(worth), sum(chance**k for k in range(expected + 1))
    assert count == expected
    assert math.prod(1 + value for value in worth) == pytest.approx(tokens)
    assert all(value > price for value in worth) and worth == sorted(worth, reverse=True)
    assert count == 8 or chance ** (count + 1) / tokens <= price


def test_as_many_drafts_as_make_a_sequence_fastest() -> None:
    """One alone: whatever its steps take, no other number of drafts would bring it more tokens a second in the long run."""
    for chance in (0.3, 0.6, 0.9, 0.97):
        for per_row in (0.02, 0.1, 0.4):
            cost, count = StepCost(), 1
            for i in range(400):
                rows = 1 + max(0, count + i % 3 - 1)
                cost.observe(sequences=1, rows=rows, seconds=1 + per_row * rows)
                count = len(_worth_while(chance, cost.price(1), 8))
            rates = [sum(chance**k for k in range(n + 1)) / (1 + per_row * (n + 1)) for n in range(9)]
            assert rates[count] > 0.95 * max(rates)


@pytest.mark.parametrize(("drawn", "counts"), [([[5], [6]], True), ([[5], []], False), ([[], []], False)])
def test_steps_of_beams_say_nothing(drawn: list[list[int]], counts: bool) -> None:
    """They draw no tokens, so that guesses would seem to cost nothing."""
    guessing = Speculation(8, StepCost())
    guessing.decide([])
    sequences = [
        ScheduledSequence(seq_id=i, row=i, start=3, token_ids=[5], prompt_len=3, sample_rows=(i,), seeds=(0,)) for i in range(2)
    ]
    copies = BlockCopies(swap_out=[], swap_in=[], copy=[])
    plan = SchedulerOutput(step_id=1, sequences=sequences, block_tables=np.zeros((2, 1), np.int32), copies=copies)
    guessing.observe(plan, ModelOutput(step_id=1, token_ids=drawn, timings=StepTimings(forward=0.01)))
    assert (guessing.cost._weight > 0) == counts


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
    for known in range(2, 202):
        guesses.watch(list(range(known)), known)  # a text in which nothing comes twice
    assert guesses.chance == pytest.approx(0.5, abs=0.01)


def test_guesses_that_nobody_made_are_compared_with_what_comes() -> None:
    """The same record as of those that were verified: of each row of guesses, up to the first wrong one."""
    circle = [1, 2, 3] * 30
    watching, verifying = Guesses(), Guesses()
    for known in range(5, len(circle)):
        watching.watch(circle, known)
        assert watching.has_idea
    for _ in range((len(circle) - 6) // IMAGINED):
        verifying.verified(IMAGINED, IMAGINED)
    assert watching.chance == pytest.approx(verifying.chance) and watching.chance > 0.95
    wrong = [*circle[:-1], 9, 1]
    watching.watch(wrong, len(wrong) - 1)
    watching.watch(wrong, len(wrong))
    assert watching.chance < verifying.chance - 0.03 and not watching.has_idea, "nothing followed these two before"


def test_what_was_imagined_before_other_tokens_came_is_not_counted() -> None:
    circle = [1, 2, 3] * 30
    guesses = Guesses()
    guesses.watch(circle, 5)
    guesses.verified(3, 3)
    before = guesses.chance
    guesses.watch(circle, 9)
    assert guesses.chance == before


def price_is(monkeypatch: pytest.MonkeyPatch, price: float) -> None:
    """For the fake device, whose steps take no time."""
    monkeypatch.setattr(StepCost, "price", lambda cost, sequences: price)
    monkeypatch.setattr(StepCost, "growth", lambda cost, sequences: price / max(sequences, 1))


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    price_is(monkeypatch, 0.1)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptLookup, "propose", lambda lookup, token_ids, known, num_drafts: [9] * num_drafts)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("count", [1, 4, 5, 8])
def test_nothing_is_guessed_beside_many_sequences(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose guesses would have been right as often as not, at the price of half a token."""
    price_is(monkeypatch, 0.45)
    harness = Harness(spec_method="ngram", spec_tokens=2)
    for i in range(count):
        harness.add(f"r{i}", max_tokens=20)
    assert len(harness.plan()) == len(harness.plan()) == len(harness.plan()) == count
    assert (harness.scheduler.counters.drafts > 0) == (count <= FEW)
    harness.finish()


def plans_of(harness: Harness) -> list[SchedulerOutput]:
    """All that will be submitted."""
    plans: list[SchedulerOutput] = []
    submit = harness.executor.submit

    def noted(plan: SchedulerOutput) -> Any:
        plans.append(plan)
        return submit(plan)

    harness.executor.submit = noted  # type: ignore[method-assign]
    return plans


def repetitive(harness: Harness, name: str, *, prompt: Sequence[int] = (1, 2, 3, 4, 5, 1, 2), **params: Any) -> None:
    wanted = SamplingParams(**{"max_tokens": 40, "ignore_eos": True, **params})
    harness.engine.add(Request(id=name, prompt_token_ids=list(prompt), params=wanted, seed=1, arrival_time=0.0))


@pytest.fixture
def circling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose tokens go round in a circle."""
    monkeypatch.setattr("tests.engine.fake.next_token", lambda context, seed, mask=None: 1 + context[-1] % 5)


@pytest.mark.usefixtures("circling")
@pytest.mark.parametrize(("count", "price", "guess"), [(8, 0.3, True), (8, 0.95, False), (16, 0.3, True), (17, 0.01, False)])
@pytest.mark.parametrize("depth", [1, 2])
def test_many_guess_if_their_texts_have_shown_that_it_is_worth_it(
    count: int, price: float, guess: bool, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four may guess four tokens each, sixteen one each, and seventeen nothing."""
    price_is(monkeypatch, price)
    harness = Harness(
        spec_method="ngram", spec_tokens=4, depth=depth, max_num_seqs=20, num_blocks=400, max_num_batched_tokens=200
    )
    for i in range(count):
        repetitive(harness, f"r{i}")
    plans = plans_of(harness)
    found = outputs(harness)
    assert all(tokens == [1 + (2 + i) % 5 for i in range(40)] for tokens in found.values()) and len(found) == count
    counters, largest = harness.scheduler.counters, max(plan.num_tokens for plan in plans[5:])
    assert (counters.drafts > 0) == guess
    if guess:
        assert counters.accepted_draft_tokens == counters.draft_tokens
        assert counters.steps < 30 and largest == count + FEW * 4
    else:
        assert largest == count


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ([0.9], [8]),
        ([0.9, 0.9], [8, 8]),
        ([0.9, 0.0], [2, 0]),
        ([0.95, 0.4, 0.0], [2, 0, 0]),
        ([0.5, 0.9, 0.9, 0.0], [0, 1, 1, 0]),
        ([0.9, 0.9, 0.9, 0.0], [0, 1, 1, 0]),
    ],
)
def test_who_guesses_nothing_is_not_held_up_for_long(
    chances: list[float], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft makes a step longer by a tenth: two of them are bearable. Those that are worth most are made."""
    monkeypatch.setattr(StepCost, "growth", lambda cost, sequences: 0.1)
    monkeypatch.setattr(StepCost, "price", lambda cost, sequences: 0.05)
    guessing = Speculation(8, StepCost())
    harness = Harness(spec_method="none", num_blocks=200)
    for i in range(len(chances)):
        harness.add(f"r{i}", max_tokens=40)
    harness.plan()
    running = harness.scheduler._residence.running
    guessing.decide(running)
    for group, chance in zip(running, chances, strict=True):
        seq = group.sequences[0]
        seq.guesses.right, seq.guesses.tried = chance, 1.0
        guessing.propose(group, seq)
        assert (len(seq.drafts) > 0) == (chance > 0.05)
    guessing.decide(running)
    assert [len(group.sequences[0].drafts) for group in running] == expected


@pytest.mark.usefixtures("circling")
def test_those_who_guess_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with one among them that came later."""
    price_is(monkeypatch, 0.3)
    harness = Harness(spec_method="ngram", spec_tokens=4, depth=2, max_num_seqs=8, num_blocks=400)
    for i in range(7):
        repetitive(harness, f"r{i}", max_tokens=50)
    for _ in range(16):
        harness.engine.step()
    assert harness.scheduler.counters.drafts > 0
    repetitive(harness, "late", max_tokens=50)
    plans = plans_of(harness)
    for _ in range(6):
        harness.engine.step()
    assert [len(plan.sequences) for plan in plans[-3:]] == [8] * 3
    harness.finish()


@pytest.mark.usefixtures("always")
def test_what_was_planned_ahead_goes_on_with_drafts_when_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other way round."""
    price_is(monkeypatch, 0.45)
    harness = Harness(spec_method="ngram", spec_tokens=2, depth=2)
    for i in range(5):
        harness.add(f"r{i}", max_tokens=4 if i < 3 else 30)
    for _ in range(3):
        harness.engine.step()
    assert len(harness.scheduler.live_sequences) == 5 and harness.scheduler.counters.drafts == 0
    price_is(monkeypatch, 0.001)
    for _ in range(5):
        harness.engine.step()
    assert len(harness.scheduler.live_sequences) == 2
    assert harness.scheduler.counters.drafts > 0
    price_is(monkeypatch, 0.45)
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
    price_is(monkeypatch, 1e-6)
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
    plans = plans_of(harness)
    for i in range(4):
        harness.add(f"r{i}", max_tokens=20, repetition_penalty=1.2)
        harness.engine.step()
    for _ in range(8):
        harness.engine.step()
    assert [len(plan.sequences) for plan in plans[-6:]] == [4] * 6
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


@pytest.mark.usefixtures("circling")
def test_what_steps_take_decides_whether_to_guess() -> None:
    """Always the same, however many tokens are in them: then a guess costs little."""
    counted = []
    for seconds in (0.0, 0.005):
        harness = Harness(spec_method="ngram")
        harness.steps_take(forward=seconds)
        repetitive(harness, "a")
        harness.finish()
        counted.append(harness.scheduler.counters.drafts)
    assert counted[0] == 0 < counted[1]


@pytest.mark.usefixtures("circling", "cheap")
def test_what_guesses_brought_can_be_found_by_others() -> None:
    harness = Harness(spec_method="ngram", enable_prefix_caching=True)
    repetitive(harness, "a")
    harness.finish()
    assert harness.scheduler.counters.accepted_draft_tokens > 20
    repetitive(harness, "b", prompt=[1, 2, 3, 4, 5, 1, 2, *(1 + (2 + i) % 5 for i in range(40))], max_tokens=1)
    assert [delta.num_cached_tokens for delta in harness.finish()] == [44]


@pytest.mark.usefixtures("always", "cheap")
def test_no_more_is_guessed_than_there_may_be() -> None:
    harness = Harness(spec_method="ngram", spec_tokens=8)
    harness.add("x", 4, max_tokens=3)
    harness.plan()
    (seq,) = harness.scheduler.live_sequences
    assert seq.drafts == [9], "and the token behind it"


@pytest.mark.usefixtures("circling", "cheap")
def test_a_repetitive_text_takes_fewer_steps_and_stays_the_same() -> None:
    found, steps = [], []
    for method in ("none", "ngram"):
        harness = Harness(spec_method=method)
        repetitive(harness, "a", max_tokens=30)
        found.append(outputs(harness)["a"])
        steps.append(harness.scheduler.counters.steps)
    assert found[0] == found[1] and len(found[0]) == 30
    assert steps[1] < steps[0] / 3
