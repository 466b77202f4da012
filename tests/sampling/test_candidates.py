"""Candidates against a plain oracle, in any company: features change log-probabilities, rows know nothing of each other."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from octavo.sampling.sampler import CandidateRow, SampleRow
from octavo.sampling_params import BeamSearch, SamplingParams
from octavo.step import Candidates
from tests.sampling.oracle import shaped_logits
from tests.sampling.test_sampler import EOS, VOCAB, backend_named, batches, random_logits, sampler


def log_softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    best = scaled.max()
    result: np.ndarray = (scaled - best - math.log(sum(math.exp(value - best) for value in scaled))).astype(np.float32)
    return result


def check_against_definition(found: Candidates, logits: np.ndarray, wanted: CandidateRow) -> None:
    row, raw = wanted.row, logits[wanted.row.logits_row]
    if np.isnan(raw).any() or np.isinf(raw.max()):
        assert not found.sound and found.token_ids == []
        return
    temperature = 1.0 if row.params.temperature < 1e-5 else row.params.temperature
    eos = () if row.params.ignore_eos else EOS
    shaped = np.array(shaped_logits(log_softmax(raw, temperature), row, eos), np.float64)
    possible = int((shaped > -np.inf).sum())
    assert found.sound and len(found.token_ids) == len(set(found.token_ids)) == min(wanted.num, possible)
    assert found.logprobs == sorted(found.logprobs, reverse=True)
    np.testing.assert_allclose(found.logprobs, shaped[found.token_ids], rtol=1e-5, atol=2e-5)
    if len(found.token_ids) < possible:
        left = np.delete(shaped, found.token_ids)
        assert left.max() <= found.logprobs[-1] + 2e-5, "what is left out is no likelier"
    if row.num_logprobs is None:
        assert found.details is None
        return
    own = log_softmax(raw)
    assert found.details is not None and [entry.token_id for entry in found.details] == found.token_ids
    order = sorted(range(VOCAB), key=lambda token: (-raw[token], token))
    for entry in found.details:
        assert entry.rank == order.index(entry.token_id) + 1
        assert entry.logprob == pytest.approx(float(own[entry.token_id]), abs=2e-5)
        assert entry.top_ids == order[: row.num_logprobs]
        assert entry.top_logprobs == pytest.approx(own[entry.top_ids].tolist(), abs=2e-5)


def beam_params(**fields: Any) -> SamplingParams:
    return SamplingParams(beam=BeamSearch(width=4), **fields)


def as_beam(row: SampleRow, ignore_eos: bool) -> SampleRow:
    return replace(row, params=msgspec.structs.replace(row.params, beam=BeamSearch(width=4), ignore_eos=ignore_eos))


@pytest.mark.parametrize("name", ["reference", "cpu"])
@given(batch=batches(), data=st.data())
@settings(max_examples=60)
def test_candidates_are_those_of_the_definition_and_of_their_own_row(
    name: str, batch: tuple[np.ndarray, list[SampleRow]], data: st.DataObject
) -> None:
    logits, rows = batch
    wanted = [
        CandidateRow(as_beam(row, data.draw(st.booleans())), data.draw(st.sampled_from([2, 5, 12, VOCAB + 5]))) for row in rows
    ]
    on_device = backend_named(name).tensor(logits)
    found = sampler(name).candidates(on_device, wanted)
    for one, candidates in zip(wanted, found, strict=True):
        check_against_definition(candidates, logits, one)
        [alone] = sampler(name).candidates(on_device, [one])
        assert alone == candidates, "the same bits in any company"


def test_equals_go_by_token_id() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    plain = CandidateRow(SampleRow(logits_row=0, params=beam_params(), seed=0, position=3), 4)
    biased = CandidateRow(SampleRow(logits_row=0, params=beam_params(logit_bias={7: 1.0}), seed=0, position=3), 4)
    first, second = sampler().candidates(logits, [plain, biased])
    assert first.token_ids == [0, 1, 2, 3] and second.token_ids == [7, 0, 1, 2]


def test_a_row_without_a_possible_token_has_no_candidates_but_is_sound() -> None:
    row = SampleRow(logits_row=0, params=beam_params(), seed=0, position=3, token_mask=np.zeros(1, np.uint8))
    [found] = sampler().candidates(random_logits(1), [CandidateRow(row, 4)])
    assert found == Candidates([], [])
    assert sampler().candidates(random_logits(1), []) == []
