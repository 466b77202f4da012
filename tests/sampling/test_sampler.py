"""The sampler against a plain oracle, alone and in any company: no row's draw or log-probabilities depend on the others."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference.backend import ReferenceBackend
from octavo.sampling.penalties import penalties_of
from octavo.sampling.sampler import INVALID_TOKEN, Sampler, SampleRow
from octavo.sampling.verify import draft_rows, num_accepted
from octavo.sampling_params import ParameterError, SamplingParams
from octavo.step import TokenLogprobs
from tests.sampling.oracle import expected_token

VOCAB = 50
EOS = (1, 2)
BACKEND: Any = ReferenceBackend()


@cache
def backend_named(name: str) -> Any:
    return CpuBackend(num_threads=2) if name == "cpu" else BACKEND


def sampler(name: str = "reference") -> Sampler:
    return Sampler(backend_named(name), VOCAB, EOS)


def draw_rows(sampler: Sampler, logits: Any, rows: Sequence[SampleRow]) -> tuple[list[int], list[TokenLogprobs | None]]:
    return sampler(logits, sampler.prepare(rows))


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    logits: np.ndarray = (np.random.default_rng(seed).standard_normal((rows, vocab)) * 3).astype(np.float32)
    return logits


def a_row(logits_row: int = 0, *, seed: int = 7, position: int = 10, **options: Any) -> SampleRow:
    fields = {f: options.pop(f) for f in list(options) if f in SampleRow.__struct_fields__}
    return SampleRow(logits_row=logits_row, params=SamplingParams(**options), seed=seed, position=position, **fields)


token_ids = st.integers(0, VOCAB + 3)  # a few lie outside the vocabulary, which must do no harm


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    def maybe(strategy: st.SearchStrategy[Any], default: Any) -> Any:
        return draw(st.one_of(st.just(default), st.just(default), strategy))

    floats = st.floats(-2, 2, allow_nan=False)
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.0])),
        top_k=maybe(st.integers(1, VOCAB + 5), 0),
        top_p=maybe(st.floats(0.05, 1.0), 1.0),
        min_p=maybe(st.floats(0.0, 1.0), 0.0),
        repetition_penalty=maybe(st.floats(0.1, 3.0), 1.0),
        frequency_penalty=maybe(floats, 0.0),
        presence_penalty=maybe(floats, 0.0),
        logit_bias=maybe(st.dictionaries(token_ids, st.floats(-100, 100), max_size=4), None),
        min_tokens=maybe(st.integers(0, 6), 0),
        stop_token_ids=maybe(st.lists(token_ids, max_size=3), None),
        max_tokens=None,
    )


# of all the vocabulary, of more than it, and too short to reach its end
masks = st.sampled_from([7, 6, 8, 4]).flatmap(
    lambda size: st.binary(min_size=size, max_size=size).map(lambda data: np.frombuffer(data, np.uint8))
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, list[SampleRow]]:
    num_rows = draw(st.integers(1, 5))
    logits = random_logits(num_rows, draw(st.integers(0, 100)))
    for poison in draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), max_size=2)):
        logits[draw(st.integers(0, num_rows - 1)), draw(st.integers(0, VOCAB - 1))] = poison
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        history = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12))
        prompt_len = draw(st.integers(1, len(history)))
        words = st.lists(st.sampled_from([*history, 3, VOCAB + 1]), min_size=1, max_size=3).map(tuple)
        banned = draw(st.lists(words, max_size=3))
        rows.append(
            SampleRow(
                logits_row=draw(st.integers(0, num_rows - 1)),
                params=draw(params()),
                seed=draw(st.integers(0, 2**64 - 1)),
                position=len(history),
                num_output_tokens=len(history) - prompt_len,
                history=np.array(history, np.int32),
                prompt_len=prompt_len,
                bad_words_token_ids=tuple(banned) if draw(st.booleans()) else (),
                num_logprobs=draw(st.sampled_from([None, None, 0, 1, 5, VOCAB + 9])),
                token_mask=draw(st.none() | masks),
            )
        )
    return logits, rows


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@settings(max_examples=300)
@given(batch=batches())
def test_every_draw_is_the_oracles_in_any_company(backend: str, batch: tuple[np.ndarray, list[SampleRow]]) -> None:
    logits, rows = batch
    before = logits.copy()
    tokens, logprobs = draw_rows(sampler(backend), logits, rows)
    assert np.array_equal(logits, before, equal_nan=True), "the model's logits stay raw"
    assert tokens == [expected_token(backend_named(backend), logits, row, EOS) for row in rows]
    for row, token, entry in zip(rows, tokens, logprobs, strict=True):
        alone_tokens, alone_logprobs = draw_rows(sampler(backend), logits, [row])
        assert ([token], [entry]) == (alone_tokens, alone_logprobs)
        assert (entry is not None) == (row.num_logprobs is not None and token != INVALID_TOKEN)


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = random_logits(3)
    options: dict[str, Any] = {"logit_bias": {4: 50.0}, "temperature": 0.5, "num_logprobs": 3}
    rows = [a_row(i, seed=i, **options) for i in range(3)] + [a_row(1, temperature=0.0, num_logprobs=0)]
    tokens, entries = draw_rows(sampler(), logits, rows)
    assert tokens[:3] == [4, 4, 4]
    for row, token, entry in zip(rows, tokens, entries, strict=True):
        raw = logits[row.logits_row].astype(np.float64)
        exact = raw - np.log(np.exp(raw).sum())
        order = np.argsort(-raw, kind="stable")
        assert entry is not None
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(exact[token], abs=1e-5)
        assert entry.rank == 1 + list(order).index(token)
        assert entry.top_ids == order[: row.num_logprobs].tolist()
        assert entry.top_logprobs == pytest.approx(exact[order[: row.num_logprobs]], abs=1e-5)


def test_prompt_log_probabilities() -> None:
    logits = random_logits(4)
    logits[2, 5] = np.nan
    entries = sampler().prompt_logprobs(logits, [3, 9, 3, 0], 2)
    assert [entry.token_id for entry in entries] == [3, 9, 3, 0]
    for i in (0, 1, 3):
        raw = logits[i].astype(np.float64)
        assert entries[i].logprob == pytest.approx(raw[entries[i].token_id] - np.log(np.exp(raw).sum()), abs=1e-5)
        assert entries[i].rank == 1 + int((raw > raw[entries[i].token_id]).sum())
        assert entries[i].top_ids == np.argsort(-raw)[:2].tolist()
    assert entries[2].logprob == -np.inf
    assert entries[2].top_ids == []


def test_greedy_without_features_is_one_argmax_and_nothing_else() -> None:
    class OnlyArgmax:
        calls = 0

        def argmax(self, logits: np.ndarray) -> np.ndarray:
            self.calls += 1
            best: np.ndarray = np.argmax(logits, axis=1).astype(np.int32)
            return best

    ops = OnlyArgmax()
    backend: Any = type("Backend", (), {"ops": ops})()
    logits = random_logits(6)
    rows = [a_row(i, temperature=0.0) for i in range(6)] + [a_row(2, temperature=0.0)] * 3
    tokens, logprobs = draw_rows(Sampler(backend, VOCAB, EOS), logits, rows)
    assert tokens == [*np.argmax(logits, axis=1), *[np.argmax(logits[2])] * 3]
    assert logprobs == [None] * 9
    assert ops.calls == 1


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"logit_bias": {1: 2.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
    ],
)
def test_what_wants_more_than_an_argmax(options: dict[str, Any]) -> None:
    masks: dict[str, Any] = {"allowed_token_ids": [1], "min_tokens": 2, "bad_words": ["x"]}
    assert SamplingParams(temperature=0.0, top_p=0.5, seed=3, **masks).plain_greedy
    assert not SamplingParams(**{"temperature": 0.0, **options}).plain_greedy


def test_a_step_asks_for_no_more_than_its_rows_do() -> None:
    """And brings no logits to the host."""
    seen: list[set[str]] = []

    class Watching:
        def sample(self, logits: np.ndarray, **columns: Any) -> Any:
            seen.append({name for name in ("allowed", "bias", "penalties") if columns[name] is not None})
            return BACKEND.ops.sample(logits, **columns)

    backend: Any = type("Backend", (), {"ops": Watching(), "tensor": BACKEND.tensor})()
    plain, history = [a_row(i, seed=i) for i in range(5)], np.array([3], np.int32)
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({}, set()),
        ({"logit_bias": {3: 99.0}}, {"bias"}),
        ({"min_tokens": 2}, {"allowed"}),
        ({"bad_words_token_ids": ((3, 4),)}, {"allowed"}),
        ({"bad_words_token_ids": ((4, 3),)}, set()),
        ({"presence_penalty": 0.5}, {"penalties"}),
    ]
    for options, asked in cases:
        draw_rows(Sampler(backend, VOCAB, EOS), random_logits(6), [*plain, a_row(5, history=history, **options)])
        assert seen.pop() == asked, options


def test_branches_draw_from_one_row_with_their_own_seeds() -> None:
    logits = np.zeros((2, VOCAB), np.float32)
    tokens, _ = draw_rows(sampler(), logits, [a_row(1, seed=s) for s in range(64)])
    assert len(set(tokens)) > 20
    assert tokens == [draw_rows(sampler(), logits, [a_row(1, seed=s)])[0][0] for s in range(64)]
    greedy, _ = draw_rows(sampler(), random_logits(1), [a_row(0, seed=s, temperature=0.0) for s in range(4)])
    assert len(set(greedy)) == 1


@pytest.mark.parametrize("options", [{}, {"logit_bias": {0: 1.0, 7: -2.0}}, {"temperature": 0.6}, {"top_k": 6}])
def test_draws_follow_the_distribution(options: dict[str, Any]) -> None:
    """Chi-square over 20,000 draws with fixed seeds, against the 99.9th percentile for as many tokens."""
    vocab, count = 12, 20_000
    logits = random_logits(1, seed=3, vocab=vocab) / 2
    rows = [a_row(0, seed=s, position=s % 7, **options) for s in range(count)]
    tokens, _ = draw_rows(Sampler(BACKEND, vocab, EOS), logits, rows)
    shaped = logits[0].astype(np.float64)
    for token, bias in options.get("logit_bias", {}).items():
        shaped[token] += bias
    shares = np.exp(shaped / options.get("temperature", 1.0))
    if "top_k" in options:
        shares[np.argsort(-shares)[options["top_k"] :]] = 0
    expected = count * shares / shares.sum()
    observed = np.bincount(tokens, minlength=vocab)
    possible = expected > 0
    assert not observed[~possible].any()
    chi_square = float(((observed - expected)[possible] ** 2 / expected[possible]).sum())
    assert chi_square < {12: 31.26, 6: 20.52}[int(possible.sum())]


def test_min_tokens_keeps_every_end_away_until_enough() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [1, 2, 8]] = [30, 20, 10]
    options: dict[str, Any] = {"temperature": 0.0, "min_tokens": 3, "stop_token_ids": [8, VOCAB + 5]}
    drawn = [draw_rows(sampler(), logits, [a_row(num_output_tokens=n, **options)])[0][0] for n in range(5)]
    assert drawn == [0, 0, 0, 1, 1]


def test_bad_words_ban_the_last_token_only_after_the_others() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 5] = 9

    def drawn(history: list[int], *banned: tuple[int, ...]) -> int:
        row = a_row(temperature=0.0, history=np.array(history, np.int32), prompt_len=1, bad_words_token_ids=banned)
        return draw_rows(sampler(), logits, [row])[0][0]

    assert drawn([4], (5,)) == 0
    assert drawn([3, 4], (3, 4, 5)) == 0
    assert drawn([4, 3], (3, 4, 5)) == 5
    assert drawn([4], (3, 4, 5)) == 5
    assert drawn([], (4, 5)) == 5
    assert drawn([4], ()) == 5


def test_penalties_are_those_of_transformers() -> None:
    import torch
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = random_logits(1)
    history = np.random.default_rng(2).integers(0, VOCAB, 30).tolist()
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([history]), torch.from_numpy(logits.copy()))[0]
    row = a_row(repetition_penalty=1.7, history=np.array(history, np.int32), prompt_len=10)
    for backend in map(backend_named, ("reference", "cpu")):
        assert np.array_equal(backend.ops.adjust(logits, penalties=penalties_of(backend, [row]))[0], expected.numpy())


def test_lists_of_token_ids_hold_each_once() -> None:
    given = SamplingParams(stop_token_ids=[5, 3] * 100_000, allowed_token_ids=[7] * 100_000, logprob_token_ids=[1, 1])
    assert (given.stop_token_ids, given.allowed_token_ids, given.logprob_token_ids) == ((5, 3), (7,), (1,))
    refused: list[tuple[str, Any]] = [("top_k", 2**31), ("allowed_token_ids", []), ("repetition_penalty", 1e-7)]
    for name, value in [*refused, ("stop_token_ids", range(1025))]:
        with pytest.raises(ParameterError, match=name):
            SamplingParams(**{name: value})


def test_a_row_without_any_token_left_is_invalid_alone() -> None:
    logits = random_logits(2)
    impossible = a_row(0, token_mask=np.array([0b10], np.uint8), min_tokens=2, num_logprobs=2)
    tokens, logprobs = draw_rows(
        sampler(), logits, [a_row(1, temperature=0.0), impossible, a_row(0, temperature=0.0, num_logprobs=1)]
    )
    assert tokens[1] == INVALID_TOKEN
    assert logprobs[1] is None
    assert tokens[0] == int(logits[1].argmax())
    assert tokens[2] == int(logits[0].argmax())
    assert logprobs[2] is not None


def test_missing_history_is_an_error_of_the_plan() -> None:
    with pytest.raises(ValueError, match="tokens before the draw"):
        draw_rows(sampler(), random_logits(1), [a_row(repetition_penalty=1.2)])


@settings(max_examples=150)
@given(seed=st.integers(0, 2**64 - 1), options=params(), k=st.integers(0, 5), data=st.data())
def test_drafts_are_verified_to_what_decoding_without_them_gives(
    seed: int, options: SamplingParams, k: int, data: st.DataObject
) -> None:
    """A toy model whose logits depend on the last two tokens; drafts are right or wrong at random."""

    def model(history: list[int]) -> np.ndarray:
        return random_logits(1, seed=1000 * history[-1] + history[-2])

    prompt, words = [3, 4, 5], ((5, 6), (7,))
    first = SampleRow(
        logits_row=2,
        params=options,
        seed=seed,
        position=3,
        history=np.array(prompt, np.int32),
        prompt_len=3,
        bad_words_token_ids=words,
        num_logprobs=2,
    )
    history, plain, plain_logprobs = list(prompt), [], []
    for i in range(k + 1):
        row = replace(first, logits_row=0, position=3 + i, num_output_tokens=i, history=np.array(history, np.int32))
        (token,), (entry,) = draw_rows(sampler(), model(history), [row])
        plain.append(token)
        plain_logprobs.append(entry)
        history.append(max(token, 0))
    drafts = [data.draw(st.sampled_from([token, token, token, 9])) for token in plain[:k]]
    drafts = [max(draft, 0) for draft in drafts]
    logits = np.concatenate([random_logits(2), *[model([*prompt, *drafts[:i]]) for i in range(k + 1)]])
    tokens, logprobs = draw_rows(sampler(), logits, draft_rows(first, drafts))
    count = num_accepted(drafts, tokens)
    tokens, logprobs = tokens[:count], logprobs[:count]
    wrong = next((i for i in range(k) if drafts[i] != plain[i]), k)
    assert tokens == plain[: wrong + 1]
    assert logprobs == plain_logprobs[: wrong + 1]
