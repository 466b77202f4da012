"""Each feature against a plain formula, and every draw independent of its company."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from octavo.backends.reference.backend import ReferenceBackend
from octavo.sampling.sampler import NO_TOKEN, Sampler, SampleRow
from octavo.sampling_params import SamplingParams

VOCABULARY, EOS = 64, 2
SAMPLER = Sampler(ReferenceBackend(), VOCABULARY, (EOS,))


def row(params: SamplingParams, *, logits_row: int = 0, seed: int = 1, history: list[int] | None = None, **more: object) -> SampleRow:
    history = history or []
    prompt_len = more.pop("prompt_len", 0)
    return SampleRow(
        logits_row=logits_row,
        params=params,
        seed=seed,
        position=len(history),
        num_output_tokens=len(history) - prompt_len,
        prompt_len=prompt_len,
        history=history,
        **more,
    )


def greedy(**params: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, **params)


def logits_of(*values: float) -> np.ndarray:
    logits = np.full((1, VOCABULARY), -5.0, np.float32)
    logits[0, : len(values)] = values
    return logits


def drawn(logits: np.ndarray, *rows: SampleRow) -> list[int]:
    before = logits.copy()
    tokens, _ = SAMPLER(logits, list(rows))
    assert np.array_equal(before, logits, equal_nan=True), "the raw logits stay as they are"
    return tokens


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    logits = logits_of(2.0, 1.5, -1.0, -1.1)
    assert drawn(logits, row(greedy(repetition_penalty=1.5), history=[0])) == [1]
    only_negative = logits_of(-1.0, -1.1)
    assert drawn(only_negative, row(greedy(repetition_penalty=1.2), history=[0])) == [1]


def test_presence_and_frequency_look_at_the_output_alone() -> None:
    logits = logits_of(3.0, 2.5, 2.0)
    assert drawn(logits, row(greedy(presence_penalty=2.0), history=[0, 0], prompt_len=2)) == [0]
    assert drawn(logits, row(greedy(presence_penalty=2.0), history=[0], prompt_len=0)) == [1]
    assert drawn(logits, row(greedy(frequency_penalty=0.3), history=[0], prompt_len=0)) == [0]
    assert drawn(logits, row(greedy(frequency_penalty=0.3), history=[0, 0], prompt_len=0)) == [1]


def test_logit_bias_allowed_ids_and_their_order() -> None:
    logits = logits_of(3.0, 2.0, 1.0)
    assert drawn(logits, row(greedy(logit_bias={2: 2.5}))) == [2]
    assert drawn(logits, row(greedy(allowed_token_ids=[1, 2]))) == [1]
    assert drawn(logits, row(greedy(allowed_token_ids=[1, 2], logit_bias={0: 100.0}))) == [1]


def test_bad_words_ban_the_token_that_would_complete_them() -> None:
    logits = logits_of(3.0, 2.0)
    words = ((7, 0),)
    assert drawn(logits, row(greedy(), history=[7], bad_words_token_ids=words)) == [1]
    assert drawn(logits, row(greedy(), history=[8], bad_words_token_ids=words)) == [0]
    assert drawn(logits, row(greedy(), history=[7], prompt_len=1, bad_words_token_ids=words)) == [0]
    assert drawn(logits, row(greedy(), bad_words_token_ids=((0,),))) == [1]


def test_min_tokens_bans_every_ending() -> None:
    logits = logits_of(1.0, 2.0, 3.0, 2.5)
    assert drawn(logits, row(greedy(min_tokens=2, max_tokens=9), history=[5])) == [3]
    assert drawn(logits, row(greedy(min_tokens=2, max_tokens=9, stop_token_ids=[3]), history=[5])) == [1]
    assert drawn(logits, row(greedy(min_tokens=2, max_tokens=9, ignore_eos=True), history=[5])) == [EOS]
    assert drawn(logits, row(greedy(min_tokens=1, max_tokens=9), history=[5])) == [EOS]


def test_a_row_without_a_possible_token_fails_alone() -> None:
    logits = np.vstack([logits_of(1.0, 2.0), np.full((1, VOCABULARY), np.nan, np.float32), logits_of(1.0, 2.0)])
    banned = SamplingParams(temperature=0.0, allowed_token_ids=[3], min_tokens=1, stop_token_ids=[3])
    rows = [row(greedy(logprobs=1), num_logprobs=1), row(greedy(), logits_row=1, num_logprobs=1), row(banned, logits_row=2)]
    tokens, logprobs = SAMPLER(logits, rows)
    assert tokens == [1, NO_TOKEN, NO_TOKEN]
    assert logprobs[0] is not None and logprobs[1] is None


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = np.random.default_rng(0).normal(size=(1, VOCABULARY)).astype(np.float32) * 3
    params = SamplingParams(temperature=0.5, logit_bias={9: 100.0})
    tokens, entries = SAMPLER(logits, [row(params, num_logprobs=3), row(params, num_logprobs=0)])
    reference = logits[0] - math.log(np.exp(logits[0].astype(np.float64)).sum())
    order = np.argsort(-reference, kind="stable")
    first, second = entries
    assert tokens == [9, 9] and first is not None and second is not None
    assert first.logprob == pytest.approx(reference[9], abs=1e-4)
    assert first.rank == 1 + int(np.sum(reference > reference[9]))
    assert first.top_ids == order[:3].tolist() and second.top_ids == []
    assert first.top_logprobs == pytest.approx(reference[order[:3]], abs=1e-4)


def test_prompt_logprobs() -> None:
    logits = np.random.default_rng(1).normal(size=(3, VOCABULARY)).astype(np.float32)
    entries = SAMPLER.prompt_logprobs(logits, [4, 5, 6], 2)
    for i, entry in enumerate(entries):
        total = math.log(np.exp(logits[i].astype(np.float64)).sum())
        assert entry.token_id == 4 + i and entry.logprob == pytest.approx(logits[i, 4 + i] - total, abs=1e-4)
        assert len(entry.top_ids) == 2


def test_branches_draw_from_one_row_with_their_own_seeds() -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    together = drawn(logits, *(row(SamplingParams(), seed=s) for s in range(8)))
    assert len(set(together)) > 1
    assert together == [drawn(logits, row(SamplingParams(), seed=s))[0] for s in range(8)]


def test_draws_follow_the_distribution() -> None:
    logits = logits_of(*np.log([0.5, 0.25, 0.125, 0.125]))
    logits[0, 4:] = -np.inf
    draws = drawn(logits, *(row(SamplingParams(), seed=s) for s in range(4000)))
    counts = np.bincount(draws, minlength=4)[:4]
    expected = 4000 * np.array([0.5, 0.25, 0.125, 0.125])
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001; the seeds are fixed


@st.composite
def params_and_history(draw: st.DrawFn) -> tuple[SamplingParams, list[int]]:
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 5])),
        top_p=draw(st.sampled_from([1.0, 0.8, 0.1])),
        min_p=draw(st.sampled_from([0.0, 0.2])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.7])),
        logit_bias=draw(st.sampled_from([None, {3: 4.0}])),
        allowed_token_ids=draw(st.sampled_from([None, (1, 3, 5, 7)])),
        logprobs=draw(st.sampled_from([None, 0, 4])),
    )
    return params, draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=6))


@settings(max_examples=60, deadline=None)
@given(st.lists(params_and_history(), min_size=1, max_size=8), st.integers(0, 2**32))
def test_a_draw_does_not_depend_on_its_company(requests: list[tuple[SamplingParams, list[int]]], seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(len(requests), VOCABULARY)).astype(np.float32) * 4
    rows = [
        row(params, logits_row=i, seed=seed + i, history=history, num_logprobs=params.logprobs)
        for i, (params, history) in enumerate(requests)
    ]
    together = SAMPLER(logits, rows)
    for i, (params, history) in enumerate(requests):
        alone = SAMPLER(logits[i : i + 1], [row(params, seed=seed + i, history=history, num_logprobs=params.logprobs)])
        assert (together[0][i], together[1][i]) == (alone[0][0], alone[1][0])
