"""Beam search one promise at a time: the search on paper, then what the scheduler makes of it."""

import itertools
from typing import Any

import pytest

from octavo.engine.beam import BeamSearchState, Ends, Survivor
from octavo.outputs import TokenDelta
from octavo.sampling_params import BeamSearch, EarlyStopping, ParameterError, SamplingParams
from octavo.step import Candidates, ModelOutput
from tests.engine.fake import naive_beams
from tests.engine.fake_grammar import EOS
from tests.engine.test_scheduler import Harness

END = 9


def search(width: int = 2, *, max_tokens: int = 8, penalty: float = 1.0, early: EarlyStopping = False) -> BeamSearchState:
    params = BeamSearch(width=width, length_penalty=penalty, early_stopping=early)
    return BeamSearchState(params, Ends(frozenset({END}), frozenset({8}), max_tokens))


def likely(**logprobs: float) -> Candidates:
    """``likely(t5=-1.0)``: token 5 has log-probability -1."""
    pairs = sorted(((int(name[1:]), value) for name, value in logprobs.items()), key=lambda pair: (-pair[1], pair[0]))
    return Candidates([token for token, _ in pairs], [value for _, value in pairs])


def test_the_prompt_parts_into_beams_and_beams_into_better_ones() -> None:
    state = search()
    assert state.num_candidates == 4
    assert state.advance([likely(t1=-1.0, t2=-2.0, t3=-3.0)]) == [Survivor(0, 1), Survivor(0, 2)]
    assert state.advance([likely(t4=-5.0, t5=-6.0), likely(t6=-1.0, t7=-2.0)]) == [Survivor(1, 6), Survivor(1, 7)]
    assert [beam.token_ids() for beam in state.running] == [[2, 6], [2, 7]]
    assert [beam.total for beam in state.running] == [-3.0, -4.0]
    assert [(beam.token_ids, beam.cumulative_logprob) for beam in state.report()] == [([2, 6], -3.0), ([2, 7], -4.0)]


def test_equals_go_to_the_better_beam_then_to_the_lower_token() -> None:
    state = search(3)
    state.advance([likely(t1=-1.0, t2=-1.0, t3=-1.0)])
    equal = likely(t4=-1.0, t5=-1.0)
    assert state.advance([equal, equal, equal]) == [Survivor(0, 4), Survivor(0, 5), Survivor(1, 4)]


def test_an_end_counts_only_among_the_best() -> None:
    state = search()
    survivors = state.advance([Candidates([1, 2, END, 8, 3], [-1.0, -2.0, -2.5, -2.6, -3.0])])
    assert survivors == [Survivor(0, 1), Survivor(0, 2)] and state.finished == []
    state.advance([likely(t9=-0.5, t8=-0.6), likely(t3=-4.0, t4=-4.5)])
    assert [(one.reason, one.stop_reason, one.score) for one in state.finished] == [("stop", None, -0.75), ("stop", 8, -0.8)]


@pytest.mark.parametrize(
    ("early", "penalty", "goes_on"), [(True, 1.0, False), (False, 1.0, False), ("never", 1.0, True), ("never", -1.0, False)]
)
def test_when_a_search_with_enough_ends_is_over(early: EarlyStopping, penalty: float, goes_on: bool) -> None:
    state = search(1, early=early, penalty=penalty, max_tokens=8)
    survivors = state.advance([likely(t9=-1.0, t1=-3.0)])
    assert (survivors != [], state.done) == (goes_on, not goes_on)
    assert [one.hypothesis.token_ids() for one in state.finished] == [[END]]


def test_the_last_round_ends_every_beam_by_length() -> None:
    state = search(max_tokens=2)
    state.advance([likely(t1=-1.0, t2=-2.0)])
    assert state.advance([likely(t1=-1.0, t9=-2.5), likely(t2=-1.0)]) == [] and state.done
    assert [(one.hypothesis.token_ids(), one.reason) for one in state.finished] == [([1, 1], "length"), ([2, 2], "length")]


def beams_of(deltas: list[TokenDelta], name: str) -> list[TokenDelta]:
    return [delta for delta in deltas if delta.request_id == name and delta.finish_reason is not None]


def test_a_group_never_holds_more_sequences_than_its_width_and_its_costs_are_counted_once() -> None:
    ticks = itertools.count(1)  # of a clock that is read when the first step is planned, and once for every step's results
    harness = Harness(max_num_seqs=4, clock=lambda: float(next(ticks)))
    harness.add("x", 6, n=3, beam=BeamSearch(width=4), max_tokens=12)
    steps = 0
    deltas: list[TokenDelta] = []
    while harness.engine.has_work:
        deltas += harness.engine.step()
        steps += 1
        assert len(harness.scheduler.live_sequences) in {0, 4}
    assert steps == 12 and [delta.branch for delta in deltas] == [0, 1, 2]
    metrics = deltas[-1].metrics
    stats = harness.engine.stats()
    assert metrics is not None and deltas[0].metrics is None
    assert (metrics.queue_time, metrics.first_token_time, metrics.finished_time, metrics.mean_itl) == (1.0, 2.0, 13.0, 1.0)
    assert metrics.copy_on_writes == stats.copy_on_writes > 0 and metrics.blocks_shared > 0
    assert stats.generation_tokens == metrics.num_generated_tokens == 48 and stats.prompt_tokens == 6


def test_others_wait_while_a_search_needs_the_rows() -> None:
    harness = Harness(max_num_seqs=4)
    harness.add("x", beam=BeamSearch(width=3), max_tokens=3)
    harness.add("pair", n=2, max_tokens=2)
    assert set(harness.plan()) == {0}
    assert len(harness.plan()) == 3
    assert {delta.request_id for delta in harness.finish()} == {"x", "pair"}


def test_beams_are_told_after_every_round_if_asked_for() -> None:
    harness = Harness()
    harness.add("x", beam=BeamSearch(width=3, report=True), max_tokens=4)
    told = [delta for delta in harness.finish() if delta.beams is not None]
    assert [len(delta.beams[0].token_ids) for delta in told if delta.beams] == [1, 2, 3]
    assert all(len(delta.beams or ()) == 3 and not delta.token_ids for delta in told)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("steps", range(0, 12, 2))
def test_an_abort_ends_a_search_in_every_state(steps: int, depth: int) -> None:
    harness = Harness(num_blocks=24, num_host_blocks=24, preemption_mode="swap", depth=depth, max_num_batched_tokens=6)
    for name in ("first", "second"):
        harness.add(name, 9, n=2, beam=BeamSearch(width=4), max_tokens=20)
    for _ in range(steps):
        harness.engine.step()
    for name in ("second", "first"):
        assert harness.engine.abort(name) is not None
    assert harness.engine.stats().blocks_used == 0 and harness.kv.host.num_used == 0
    assert harness.finish() == []


def test_a_returned_beam_can_be_given_up_and_all_of_them_are_the_request() -> None:
    harness = Harness()
    harness.add("x", n=3, beam=BeamSearch(width=3), max_tokens=3)
    harness.engine.step()
    assert harness.engine.abort("x", 2) is None
    deltas = harness.finish()
    assert [(delta.branch, delta.metrics is not None) for delta in deltas] == [(0, False), (1, True)]
    harness.add("told", n=2, beam=BeamSearch(width=3, report=True), max_tokens=4)
    assert [delta.beams is not None for delta in harness.engine.step()] == [True]
    assert harness.engine.abort("told", 0) is None
    assert [(delta.branch, delta.beams) for delta in harness.finish()] == [(1, None)], "reports are of branch 0"
    harness.add("y", n=2, beam=BeamSearch(width=3), max_tokens=3)
    harness.engine.step()
    assert harness.engine.abort("y", 0) is None and harness.engine.abort("y", 1) is not None
    assert harness.finish() == []


def test_a_beam_of_which_nothing_can_be_said_ends_its_request_alone() -> None:
    harness = Harness()
    harness.add("bad", n=2, beam=BeamSearch(width=3), max_tokens=9)
    harness.add("good", n=1, beam=BeamSearch(width=2), max_tokens=4)
    harness.plan()
    plan = harness.scheduler.schedule()
    assert plan is not None and len(plan.sequences) == 5
    harness.executor.submit(plan)
    output = harness.executor.run_oldest()
    assert output.candidates is not None
    broken = [output.candidates[0], Candidates([], [], sound=False), *output.candidates[2:]]
    deltas = harness.scheduler.commit(plan, ModelOutput(step_id=plan.step_id, token_ids=output.token_ids, candidates=broken))
    assert [(d.request_id, d.branch, d.finish_reason, d.token_ids) for d in deltas] == [
        ("bad", 0, "error", []),
        ("bad", 1, "error", []),
    ]
    assert deltas[-1].metrics is not None
    assert [delta.finish_reason for delta in harness.finish()] == ["length"]


def test_when_everything_is_banned_the_request_fails_and_fewer_beams_are_told_as_empty() -> None:
    for candidates, told in (
        (Candidates([], []), [("error", []), ("error", [])]),
        (Candidates([EOS], [-1.0]), [("stop", [EOS]), ("stop", [])]),
    ):
        harness = Harness()
        harness.scheduler._eos_token_ids = frozenset({EOS})
        harness.add("x", n=2, beam=BeamSearch(width=2), ignore_eos=False)
        plan = harness.scheduler.schedule()
        assert plan is not None
        deltas = harness.scheduler.commit(plan, ModelOutput(step_id=plan.step_id, token_ids=[[]], candidates=[candidates]))
        assert [(delta.finish_reason, delta.token_ids) for delta in deltas] == told
        assert not harness.engine.has_work


@pytest.mark.parametrize(
    ("params", "param", "message"),
    [
        ({"beam": BeamSearch(width=9)}, "beam_width", "beam_width=9 sequences cannot run at once: max_num_seqs is 8"),
        ({"beam": BeamSearch(width=8), "max_tokens": 40}, "beam_width", "Please reduce max_tokens, beam_width or the prompt"),
        ({"best_of": 9}, "best_of", "best_of=9 sequences cannot run at once"),
        ({"best_of": 6, "n": 2, "max_tokens": 40}, "best_of", "Please reduce max_tokens, best_of or the prompt"),
    ],
)
def test_a_refusal_speaks_of_what_was_asked(params: dict[str, Any], param: str, message: str) -> None:
    harness = Harness(num_blocks=20)
    with pytest.raises(ParameterError, match=message) as caught:
        harness.add("x", 8, **params)
    assert caught.value.param == param and not harness.engine.has_work


def test_the_same_beams_in_company_and_after_preemption() -> None:
    harness = Harness(num_blocks=13, preemption_mode="recompute", max_num_batched_tokens=5)
    for index in range(4):
        harness.add("x" * (index + 1), 6, n=3, beam=BeamSearch(width=3), max_tokens=14)
    requests = [group.request for group in harness.scheduler._groups.values()]
    deltas = harness.finish()
    assert harness.scheduler.counters.preemptions > 0
    for request in requests:
        expected = naive_beams(request, 64)
        assert [delta.token_ids for delta in beams_of(deltas, request.id)] == [beam.tokens for beam in expected]


def test_best_of_asks_for_log_probabilities_that_the_client_did_not() -> None:
    harness = Harness()
    harness.add("ranked", n=1, best_of=3, max_tokens=2)
    harness.add("plain", n=3, best_of=3, max_tokens=2)
    harness.add("more", n=1, best_of=2, max_tokens=2, logprobs=4)
    plan = harness.scheduler.schedule()
    assert plan is not None
    assert [(seq.num_logprobs, len(seq.sample_rows)) for seq in plan.sequences] == [(0, 3), (None, 3), (4, 2)]
    assert SamplingParams(n=1, best_of=3).num_outputs == 3
