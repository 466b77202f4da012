"""Beam search gives the beams that ``transformers`` gives: token for token in float32, with their scores."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from octavo import LLM, BeamSearchParams, SamplingParams, build
from octavo.config import EngineConfig
from octavo.outputs import TokenDelta
from octavo.request import Request
from octavo.sampling_params import BeamSearch, EarlyStopping, ParameterError
from octavo.weights.checkpoint import open_checkpoint
from tests.models.variants import build as build_checkpoint

NEW_TOKENS = 16
LENGTH_PENALTIES = (-0.5, 1.0, 2.0)
EARLY_STOPPING: tuple[EarlyStopping, ...] = (False, True, "never")
PROMPTS = [[int(token) for token in np.random.default_rng(seed).integers(3, 128, 12)] for seed in range(3)]


def generate(path: Path, requests: list[tuple[list[int], SamplingParams]], **config: Any) -> list[list[TokenDelta]]:
    """The final deltas of every request, in the order of its branches."""
    settings = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 400, **config}
    loaded = build.load(EngineConfig(model=str(path), **settings))
    engine, bad_words = loaded.engine, {}
    for i, (ids, params) in enumerate(requests):
        bad_words[i] = tuple(tuple(int(token) for token in word.split()) for word in params.bad_words or ())
        request = Request(
            id=str(i),
            prompt_token_ids=ids,
            params=params,
            seed=0,
            arrival_time=time.monotonic(),
            bad_words_token_ids=bad_words[i],
        )
        engine.add(request)
    outputs: list[list[TokenDelta]] = [[] for _ in requests]
    while engine.has_work:
        for delta in engine.step():
            outputs[int(delta.request_id)].append(delta)
    assert engine.stats().blocks_used == 0
    engine.shutdown()
    return outputs


def expected(
    model: Any, prompts: list[list[int]], params: SamplingParams, eos: tuple[int, ...], **more: Any
) -> list[list[tuple[list[int], float]]]:
    """What ``transformers`` returns for each of ``prompts``, which are equally long: (output tokens, score) of each beam."""
    beam = params.beam
    assert beam is not None
    out = model.generate(
        torch.tensor(prompts),
        attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
        do_sample=False,
        num_beams=beam.width,
        num_return_sequences=params.n,
        length_penalty=beam.length_penalty,
        early_stopping=beam.early_stopping,
        max_new_tokens=params.max_tokens,
        eos_token_id=[*eos, *(params.stop_token_ids or ())] or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **more,
    )
    start = len(prompts[0])
    lengths = (out.beam_indices >= 0).sum(1).tolist()
    tokens = [row[start : start + length].tolist() for row, length in zip(out.sequences, lengths, strict=True)]
    beams = list(zip(tokens, out.sequences_scores.tolist(), strict=True))
    return [beams[i : i + params.n] for i in range(0, len(beams), params.n)]


def assert_same_beams(deltas: list[TokenDelta], beams: list[tuple[list[int], float]], params: SamplingParams) -> None:
    assert params.beam is not None
    assert [delta.branch for delta in deltas] == list(range(params.n))
    assert [delta.token_ids for delta in deltas] == [tokens for tokens, _ in beams], params
    scores = [params.beam.score(delta.cumulative_logprob or 0.0, len(delta.token_ids)) for delta in deltas]
    assert scores == pytest.approx([score for _, score in beams], rel=1e-4, abs=1e-4)
    assert [delta.metrics is not None for delta in deltas] == [False] * (params.n - 1) + [True]


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Small batches are computed faster so, and far faster beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("llama")
    return directory, build_checkpoint("llama3", directory)


@pytest.fixture(scope="module")
def ends(tiny: tuple[Path, Any]) -> tuple[int, ...]:
    """Tokens that this model often says a few tokens after a prompt."""
    said: list[int] = []
    for ids in PROMPTS:
        out = tiny[1].generate(torch.tensor([ids]), num_beams=4, num_return_sequences=4, max_new_tokens=8, eos_token_id=None)
        said += out[:, len(ids) + 3 :].flatten().tolist()
    common = sorted(set(said), key=lambda token: (-said.count(token), token))
    return tuple(token for token in common if token != 2)[:2]


def test_every_width_penalty_and_way_to_stop(tiny: tuple[Path, Any], ends: tuple[int, ...]) -> None:
    directory, model = tiny
    cases = []
    for width, penalty, early in itertools.product((2, 4, 6, 8), LENGTH_PENALTIES, EARLY_STOPPING):
        beam = BeamSearch(width=width, length_penalty=penalty, early_stopping=early)
        cases.append(SamplingParams(n=width, beam=beam, max_tokens=NEW_TOKENS, stop_token_ids=ends))
    outputs = generate(directory, [(ids, params) for params in cases for ids in PROMPTS], max_num_seqs=32)
    for i, params in enumerate(cases):
        mine = outputs[i * len(PROMPTS) :]
        for deltas, beams in zip(mine, expected(model, PROMPTS, params, (2,)), strict=False):
            assert_same_beams(deltas, beams, params)
    reasons = [delta.finish_reason for deltas in outputs for delta in deltas]
    assert min(reasons.count("stop"), reasons.count("length")) > len(reasons) // 10, "both ways to end are tried"
    stops = {delta.stop_reason for deltas in outputs for delta in deltas if delta.finish_reason == "stop"}
    assert set(ends) & stops, "a stop token is named"


FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "repetition penalty": ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    "least length": ({"min_tokens": 9}, {"min_new_tokens": 9}),
    "bias": (
        {"logit_bias": {5: 3.0, 9: -2.0, 77: 1.5}},
        {"sequence_bias": [[[5], 3.0], [[9], -2.0], [[77], 1.5]]},
    ),
    "allowed tokens": (
        {"allowed_token_ids": list(range(20, 70))},
        {"prefix_allowed_tokens_fn": lambda _batch, _ids: list(range(20, 70))},
    ),
    "several": (
        {"repetition_penalty": 0.8, "min_tokens": 4, "logit_bias": {30: 2.0}, "bad_words": ["31", "32"]},
        {"repetition_penalty": 0.8, "min_new_tokens": 4, "sequence_bias": [[[30], 2.0]], "bad_words_ids": [[31], [32]]},
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_change_log_probabilities(tiny: tuple[Path, Any], ends: tuple[int, ...], name: str) -> None:
    directory, model = tiny
    ours, theirs = FEATURES[name]
    plain = SamplingParams(n=4, beam=BeamSearch(width=4), max_tokens=NEW_TOKENS, stop_token_ids=ends)
    params = msgspec.structs.replace(plain, logprobs=2, **ours)
    outputs = generate(directory, [(ids, params) for ids in PROMPTS])
    for deltas, beams in zip(outputs, expected(model, PROMPTS, params, (2,), **theirs), strict=True):
        assert_same_beams(deltas, beams, params)
    without = generate(directory, [(ids, plain) for ids in PROMPTS])
    assert [[d.token_ids for d in deltas] for deltas in outputs] != [[d.token_ids for d in deltas] for deltas in without]


def test_bad_words_are_kept_out_of_beams(tiny: tuple[Path, Any]) -> None:
    directory, model = tiny
    params = SamplingParams(n=4, beam=BeamSearch(width=4), max_tokens=NEW_TOKENS)
    [deltas] = generate(directory, [(PROMPTS[1], params)])
    said = deltas[0].token_ids
    words = [[said[2]], said[5:7]]
    banned = msgspec.structs.replace(params, bad_words=tuple(" ".join(map(str, word)) for word in words))
    [others] = generate(directory, [(PROMPTS[1], banned)])
    [beams] = expected(model, PROMPTS[1:2], params, (2,), bad_words_ids=words)
    assert_same_beams(others, beams, params)
    assert all(said[2] not in delta.token_ids for delta in others)


def test_the_model_s_own_end_can_be_ignored(tiny: tuple[Path, Any], ends: tuple[int, ...], tmp_path: Path) -> None:
    """The same checkpoint, whose config now says that the model ends with what it often says."""
    directory, model = tiny
    for file in directory.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = msgspec.json.decode((directory / "config.json").read_bytes())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_bytes(msgspec.json.encode({**config, "eos_token_id": list(ends)}))
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert open_checkpoint(tmp_path).config.eos_token_ids == ends
    beam = BeamSearch(width=3, early_stopping=True)
    ending = SamplingParams(n=3, beam=beam, max_tokens=NEW_TOKENS, min_tokens=2)
    ignoring = SamplingParams(n=3, beam=beam, max_tokens=NEW_TOKENS, min_tokens=2, ignore_eos=True)
    for params, eos in ((ending, ends), (ignoring, ())):
        outputs = generate(tmp_path, [(ids, params) for ids in PROMPTS])
        for deltas, beams in zip(outputs, expected(model, PROMPTS, params, eos, min_new_tokens=2), strict=True):
            assert_same_beams(deltas, beams, params)
        told = {(delta.finish_reason, delta.stop_reason) for deltas in outputs for delta in deltas}
        assert (("stop", None) in told) == bool(eos) and {stop_reason for _, stop_reason in told} == {None}, "none is named"


def test_fewer_beams_are_returned_than_searched_and_an_output_may_end_at_the_context(tiny: tuple[Path, Any]) -> None:
    directory, model = tiny
    params = SamplingParams(n=2, beam=BeamSearch(width=5, early_stopping="never"), max_tokens=None, ignore_eos=True)
    outputs = generate(directory, [(ids, params) for ids in PROMPTS], max_model_len=32)
    bounded = msgspec.structs.replace(params, max_tokens=32 - len(PROMPTS[0]))
    for deltas, beams in zip(outputs, expected(model, PROMPTS, bounded, ()), strict=True):
        assert_same_beams(deltas, beams, bounded)


def test_log_probabilities_are_the_model_s_own(tiny: tuple[Path, Any]) -> None:
    directory, model = tiny
    beam = BeamSearch(width=3)
    plain = SamplingParams(n=3, beam=beam, max_tokens=6, logprobs=3, prompt_logprobs=1, ignore_eos=True)
    shaped = SamplingParams(
        n=3, beam=beam, max_tokens=6, logprobs=3, logit_bias=dict.fromkeys(range(128), -0.5), ignore_eos=True
    )
    outputs = generate(directory, [(PROMPTS[1], plain), (PROMPTS[1], shaped)])
    for deltas, params in zip(outputs, (plain, shaped), strict=True):
        for delta in deltas:
            with torch.no_grad():
                logits = model(torch.tensor([PROMPTS[1] + delta.token_ids])).logits[0].double()
            logprobs = torch.log_softmax(logits, -1)[len(PROMPTS[1]) - 1 : -1]
            assert delta.logprobs is not None and len(delta.logprobs) == len(delta.token_ids)
            for entry, token, row in zip(delta.logprobs, delta.token_ids, logprobs, strict=True):
                assert entry.token_id == token and entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
                assert entry.rank == 1 + int((row > row[token]).sum())
                assert entry.top_ids == row.topk(3).indices.tolist()
                assert entry.top_logprobs == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
            own = sum(entry.logprob for entry in delta.logprobs)
            same = delta.cumulative_logprob == pytest.approx(own)
            assert same == (params is plain), "the sum is that of the search, biases included"
    first, *others = outputs[0]
    assert first.prompt_logprobs is not None and len(first.prompt_logprobs) == len(PROMPTS[1]) - 1
    assert all(delta.prompt_logprobs is None for delta in others)


def test_running_beams_are_reported(tiny: tuple[Path, Any]) -> None:
    params = SamplingParams(n=2, beam=BeamSearch(width=3, report=True), max_tokens=5, ignore_eos=True, prompt_logprobs=0)
    [deltas] = generate(tiny[0], [(PROMPTS[0], params)])
    reports, final = deltas[:-2], deltas[-2:]
    assert [delta.branch for delta in reports] == [0] * 4 and not any(delta.token_ids for delta in reports)
    assert [delta.prompt_logprobs is not None for delta in deltas] == [True] + [False] * 5
    for length, delta in enumerate(reports, 1):
        assert delta.beams is not None and [len(beam.token_ids) for beam in delta.beams] == [length] * 3
        totals = [beam.cumulative_logprob for beam in delta.beams]
        assert totals == sorted(totals, reverse=True)
    running = [beam.token_ids for beam in reports[-1].beams or ()]
    assert all(delta.token_ids[:-1] in running and delta.beams is None for delta in final)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    llm = LLM(model="smollm2", dtype="float32", max_model_len=256, num_gpu_blocks_override=256, max_num_seqs=16)
    yield llm
    llm.shutdown()


def test_the_real_model_s_beams(llm: LLM, reference: Any) -> None:
    tokenizer = llm.get_tokenizer()
    stops = tokenizer.encode(".,\n")
    texts = ("The capital of France is Paris", "Water boils at a lower temperature", "My favourite colour is blue because")
    prompts = [tokenizer.encode(text)[:5] for text in texts]
    cases: list[tuple[int, float, EarlyStopping]] = [(4, 1.0, False), (6, 2.0, "never"), (2, -0.5, True)]
    for width, penalty, early in cases:
        params = BeamSearchParams(
            beam_width=width, max_tokens=12, length_penalty=penalty, early_stopping=early, stop_token_ids=stops
        )
        outputs = llm.beam_search(prompts, params)
        theirs = expected(reference, prompts, params.sampling_params(), (2,))
        for ids, output, beams in zip(prompts, outputs, theirs, strict=True):
            assert [one.tokens for one in output.sequences] == [ids + tokens for tokens, _ in beams]
            assert [one.score for one in output.sequences] == pytest.approx([score for _, score in beams], rel=1e-4)


def test_offline_beams_read_like_other_outputs(llm: LLM) -> None:
    prompt = "The capital of France is"
    params = BeamSearchParams(beam_width=4, n=3, max_tokens=8, logprobs=1)
    (output,) = llm.beam_search(prompt, params)
    assert output.prompt == prompt and output.metrics is not None and len(output.sequences) == 3
    assert [one.score for one in output.sequences] == sorted((one.score for one in output.sequences), reverse=True)
    (same,) = llm.generate(prompt, params.sampling_params(), use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    for one, branch in zip(output.sequences, same.outputs, strict=True):
        assert one.tokens == output.prompt_token_ids + branch.token_ids and one.logprobs == branch.logprobs
        assert one.text == tokenizer.decode(one.tokens) and one.text.endswith(branch.text) and one.text.startswith(prompt)
        assert one.cum_logprob == branch.cumulative_logprob
        assert one.cum_logprob == pytest.approx(
            sum(e[t].logprob for e, t in zip(one.logprobs or (), branch.token_ids, strict=True))
        )
    several = llm.beam_search([prompt, prompt], [params, BeamSearchParams(beam_width=2, max_tokens=3)])
    assert [len(each.sequences) for each in several] == [3, 2]
    assert [one.tokens for one in several[0].sequences] == [one.tokens for one in output.sequences]


def test_only_the_beams_that_exist_are_returned(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=3, allowed_token_ids=[500], ignore_eos=True)
    (output,) = llm.beam_search([[400, 401]], params)
    assert [one.tokens for one in output.sequences] == [[400, 401, 500, 500, 500]]
    (same,) = llm.generate([[400, 401]], params.sampling_params(), use_tqdm=False)
    assert [len(branch.token_ids) for branch in same.outputs] == [3, 0, 0, 0]


def test_beams_share_their_blocks(llm: LLM) -> None:
    llm.reset_prefix_cache()
    (output,) = llm.beam_search([list(range(300, 364))], BeamSearchParams(beam_width=4, max_tokens=12, ignore_eos=True))
    metrics = output.metrics
    assert metrics is not None and metrics.first_token_time is not None and metrics.finished_time is not None
    assert 0 <= (metrics.queue_time or 0.0) < metrics.first_token_time < metrics.finished_time
    assert metrics.mean_itl == pytest.approx((metrics.finished_time - metrics.first_token_time) / 11)
    assert metrics.blocks_allocated == 4 + 4 + metrics.copy_on_writes, "the prompt once, then a block for each beam"
    assert metrics.blocks_shared >= 12 and metrics.copy_on_writes > 0


def test_the_best_of_several_draws(llm: LLM) -> None:
    prompt = "My favourite colour is"
    drawn = SamplingParams(n=6, temperature=1.0, seed=5, max_tokens=8, logprobs=0)
    (everything,) = llm.generate(prompt, drawn, use_tqdm=False)
    totals = {tuple(branch.token_ids): branch.cumulative_logprob or 0.0 for branch in everything.outputs}
    assert len(totals) == 6
    (best,) = llm.generate(prompt, SamplingParams(n=2, best_of=6, temperature=1.0, seed=5, max_tokens=8), use_tqdm=False)
    likeliest = sorted(totals, key=lambda tokens: -totals[tokens])[:2]
    assert [tuple(branch.token_ids) for branch in best.outputs] == likeliest
    assert [branch.index for branch in best.outputs] == [0, 1] and best.finished
    assert [branch.cumulative_logprob for branch in best.outputs] == [totals[tokens] for tokens in likeliest]
    assert all(branch.logprobs is None for branch in best.outputs), "nobody asked for them"
    greedy = SamplingParams(n=1, best_of=3, temperature=0.0, max_tokens=4)
    (one,) = llm.generate([[400, 401]], greedy, use_tqdm=False)
    assert len(one.outputs) == 1 and one.metrics is not None and one.metrics.blocks_allocated == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 17}, "beam_width"),
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 2, "length_penalty": float("nan")}, "length_penalty"),
        ({"beam_width": 2, "length_penalty": 11.0}, "length_penalty"),
        ({"beam_width": 2, "early_stopping": "sometimes"}, "early_stopping"),
        ({"beam_width": 2, "temperature": -1.0}, "temperature"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens"),
        ({"beam_width": 2, "min_tokens": 17}, "min_tokens"),
        ({"beam_width": 2, "logprobs": -1}, "logprobs"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterError) as caught:
        BeamSearchParams(**fields)
    assert caught.value.param == param


def test_beams_and_best_of_exclude_what_makes_no_sense_with_them() -> None:
    beam = BeamSearch(width=4)
    for fields, param in (
        ({"beam": beam, "best_of": 3}, "best_of"),
        ({"beam": beam, "n": 5}, "n"),
        ({"beam": beam, "stop": "x"}, "stop"),
        ({"n": 3, "best_of": 2}, "best_of"),
    ):
        with pytest.raises(ParameterError) as caught:
            SamplingParams(**fields)
        assert caught.value.param == param
    params = BeamSearchParams(beam_width=4, n=2).sampling_params()
    assert (params.n, params.num_branches, params.num_outputs, params.selects) == (2, 4, 2, False)
    params = SamplingParams(n=2, best_of=5)
    assert (params.num_branches, params.num_outputs, params.selects) == (5, 5, True)
    assert not SamplingParams(n=2, best_of=2).selects
