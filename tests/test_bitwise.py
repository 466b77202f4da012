"""The one invariant, on the real model: whatever is batched, chunked, cached, preempted, swapped or overlapped around a
request, its tokens and their log-probabilities are the same, bit for bit.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from octavo import build, build_resolve
from octavo.backends.base import Backend
from octavo.backends.cpu import lanes
from octavo.backends.cpu.recorded import RecordedForward
from octavo.backends.cpu.topology import default_threads
from octavo.config import EngineConfig, KVAllocation, KVCacheDtype, ModelConfig
from octavo.engine import speculation
from octavo.engine.engine import Engine
from octavo.layers.loader import WeightFormat
from octavo.memory.contiguous import RESERVATIONS
from octavo.models import Model, load_model
from octavo.request import Request
from octavo.sampling_params import BeamSearch, SamplingParams
from octavo.weights.checkpoint import open_checkpoint
from octavo.worker.isolation import Isolate

MAX_MODEL_LEN = 384
Outputs = dict[tuple[str, int], tuple[list[int], list[tuple[object, ...]]]]


@dataclass(frozen=True)
class LoadedModel:
    config: ModelConfig
    model: Model
    backend: Backend
    weight_format: WeightFormat
    kv_cache_dtype: KVCacheDtype
    activation_bits: Literal[8, 16]


def load(
    path: Path,
    dtype: str,
    weight_format: WeightFormat,
    kv_cache_dtype: KVCacheDtype = "auto",
    activation_bits: Literal[8, 16] = 8,
    *,
    num_threads: int | None = None,
) -> LoadedModel:
    checkpoint = open_checkpoint(path)
    config = EngineConfig(model="smollm2", num_threads=num_threads, activation_bits=activation_bits)
    backend = build.make_backend(config, dtype)
    model = load_model(checkpoint.config, checkpoint.source, backend, max_model_len=MAX_MODEL_LEN, weight_format=weight_format)
    return LoadedModel(checkpoint.config, model, backend, weight_format, kv_cache_dtype, activation_bits)


VARIANTS: dict[str, tuple[str, WeightFormat, KVCacheDtype, Literal[8, 16]]] = {
    "bfloat16": ("bfloat16", "plain", "auto", 8),
    "float32": ("float32", "plain", "auto", 8),
    "int8 cache": ("bfloat16", "plain", "int8", 8),
    "as stored": ("bfloat16", "stored", "auto", 8),
    "as stored, activations in 16 bits": ("bfloat16", "stored", "auto", 16),
    "int8": ("bfloat16", "int8", "auto", 8),
}
# Weights never see where keys and values lie: what only concerns that runs once for each kind of cache. In the order of the
# variants, so that a model is loaded once.
of_each_cache = pytest.mark.parametrize("loaded", ["bfloat16", "float32", "int8 cache"], indirect=True)
# For what other tests show as well: float32 takes longest.
all_but_float32 = pytest.mark.parametrize("loaded", [name for name in VARIANTS if name != "float32"], indirect=True)


@pytest.fixture(scope="module", params=VARIANTS)
def loaded(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[LoadedModel]:
    yield load(smollm2_path, *VARIANTS[request.param])


def requests() -> list[Request]:
    """Prompts of 1 to 300 tokens, some with a common beginning; greedy, sampled, branching, with and without penalties."""
    shared = [(7 * j) % 9000 + 100 for j in range(70)]
    lengths = [1, 2, 15, 16, 17, 33, 64, 100, 130, 300]
    prompts = [[(13 * j + 101 * i) % 40000 + 300 for j in range(length)] for i, length in enumerate(lengths)]
    prompts += [shared + [900 + i] * (i + 1) for i in range(4)]
    made = []
    for i, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=(0.0, 0.8, 1.0)[i % 3],
            top_p=0.95 if i % 2 else 1.0,
            top_k=50 if i % 5 == 1 else 0,
            n=3 if i % 4 == 2 else 1,
            repetition_penalty=1.1 if i % 6 == 4 else 1.0,
            max_tokens=12 + 3 * (i % 5),
            ignore_eos=True,
            logprobs=3,
        )
        made.append(Request(id=f"r{i}", prompt_token_ids=prompt, params=params, seed=1000 + i, arrival_time=time.monotonic()))
    return made + beam_requests(prompts)


def greedy_requests(*, max_tokens: int) -> list[Request]:
    """All that is wanted of them is their tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    prompts = [[(5 * j + i) % 300 + 400 for j in range(9)] for i in range(5)]
    return [Request(id=f"r{i}", prompt_token_ids=ids, params=params, seed=0, arrival_time=0.0) for i, ids in enumerate(prompts)]


def beam_requests(prompts: list[list[int]]) -> list[Request]:
    """Searches of several widths, from prompts that others use too; the middle one has what is computed on the host."""
    searches = (
        (prompts[5], {"beam": BeamSearch(width=4), "n": 4}),
        (prompts[7], {"beam": BeamSearch(width=3, early_stopping="never"), "n": 2, "repetition_penalty": 1.2, "min_tokens": 5}),
        (prompts[8], {"beam": BeamSearch(width=6, length_penalty=-0.5, early_stopping=True), "n": 6}),
    )
    made = []
    for i, (prompt, wanted) in enumerate(searches):
        params = SamplingParams(max_tokens=12, logprobs=2, stop_token_ids=[28, 30, 198], **wanted)  # type: ignore[arg-type]
        made.append(Request(id=f"beam{i}", prompt_token_ids=prompt, params=params, seed=0, arrival_time=time.monotonic()))
    return made


def engine_with(loaded: LoadedModel, *, num_blocks: int = 400, isolate: Isolate | None = None, **changes: Any) -> Engine:
    plain = {"async_scheduling": False, "enable_prefix_caching": False, "spec_method": "none", "swap_space": 0.25}
    settings: dict[str, Any] = {**plain, **changes}
    settings["kv_cache_dtype"] = loaded.kv_cache_dtype
    config = EngineConfig(model="smollm2", max_model_len=MAX_MODEL_LEN, **settings)
    spec = build_resolve.kv_cache_spec(config, loaded.config, loaded.backend.compute_dtype)
    kv, cache = build.make_kv_cache(config, spec, loaded.backend, max_model_len=MAX_MODEL_LEN, num_blocks=num_blocks)
    parts = build.Parts(
        backend=loaded.backend,
        model=loaded.model,
        model_config=loaded.config,
        kv=kv,
        cache=cache,
        max_model_len=MAX_MODEL_LEN,
        weight_format=loaded.weight_format,
    )
    return build.assemble(config, parts, isolate=isolate)


def run(engine: Engine, todo: list[Request], *, at_once: int = 1000) -> Outputs:
    outputs: Outputs = {}
    for start in range(0, len(todo), at_once):
        for request in todo[start : start + at_once]:
            engine.add(request)
        while engine.has_work:
            for delta in engine.step():
                tokens, logprobs = outputs.setdefault((delta.request_id, delta.branch), ([], []))
                tokens.extend(delta.token_ids)
                logprobs.extend(msgspec.structs.astuple(entry) for entry in delta.logprobs or ())
                if delta.finish_reason is not None:
                    logprobs.append((delta.cumulative_logprob,))
    engine.scheduler.kv.check([])
    engine.shutdown()
    return outputs


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> Outputs:
    """Op by op; everything below replays a recording unless it says otherwise."""
    return run(engine_with(loaded, enforce_eager=True), requests(), at_once=1)


def assert_same(got: Outputs, expected: Outputs) -> None:
    assert got.keys() == expected.keys()
    different = [key for key in expected if got[key] != expected[key]]
    assert not different, f"{different[0]}: {got[different[0]]} is not {expected[different[0]]}"


@pytest.mark.parametrize("overlap", [False, True], ids=["depth 1", "depth 2"])
def test_batched(loaded: LoadedModel, alone: Outputs, overlap: bool) -> None:
    assert_same(run(engine_with(loaded, async_scheduling=overlap), requests()), alone)


def test_in_lanes(loaded: LoadedModel, alone: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it would not be faster."""
    cut: list[int] = []
    monkeypatch.setattr(lanes, "LEAST_ROWS", 1)
    monkeypatch.setattr(lanes.Choice, "__init__", lambda choice: setattr(choice, "lanes", True))
    monkeypatch.setattr(lanes.Choice, "took", lambda choice, seconds, in_lanes: cut.append(1))
    assert_same(run(engine_with(loaded, async_scheduling=True), requests()), alone)
    assert len(cut) > 20 or default_threads() == 1


@all_but_float32
def test_recorded_alone(loaded: LoadedModel, alone: Outputs) -> None:
    assert_same(run(engine_with(loaded), requests(), at_once=1), alone)


@all_but_float32
def test_eager_batched(loaded: LoadedModel, alone: Outputs) -> None:
    assert_same(run(engine_with(loaded, enforce_eager=True), requests()), alone)


@pytest.mark.parametrize("budget", [16, 100])
def test_chunked(loaded: LoadedModel, alone: Outputs, budget: int) -> None:
    engine = engine_with(loaded, max_num_batched_tokens=budget, max_num_seqs=16, async_scheduling=budget == 100)
    assert_same(run(engine, requests()), alone)


@of_each_cache
@pytest.mark.parametrize("block_size", [1, 32])
def test_block_size(loaded: LoadedModel, alone: Outputs, block_size: int) -> None:
    engine = engine_with(loaded, block_size=block_size, num_blocks=6400 // block_size)
    assert_same(run(engine, requests()), alone)


@of_each_cache
def test_prefix_cached(loaded: LoadedModel, alone: Outputs) -> None:
    engine = engine_with(loaded, enable_prefix_caching=True, async_scheduling=True)
    todo = requests()
    for request in todo:  # fill the cache with everything once
        engine.add(msgspec.structs.replace(request, id=f"before-{request.id}"))
    while engine.has_work:
        engine.step()
    hits = engine.stats().prefix_cache_hits
    assert_same(run(engine, todo), alone)
    assert engine.stats().prefix_cache_hits > hits + 300


@of_each_cache
@pytest.mark.parametrize("overlap", [False, True], ids=["depth 1", "depth 2"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preempted(loaded: LoadedModel, alone: Outputs, mode: str, overlap: bool) -> None:
    engine = engine_with(loaded, num_blocks=28, preemption_mode=mode, async_scheduling=overlap)
    assert_same(run(engine, requests()), alone)
    stats = engine.stats()
    assert stats.preemptions > 0
    assert (stats.swaps_in > 0) == (mode == "swap")


@pytest.mark.parametrize("loaded", ["bfloat16"], indirect=True)  # a region is blocks in a row: no cache sees the difference
@pytest.mark.parametrize("kv_allocation", RESERVATIONS)
def test_contiguous(loaded: LoadedModel, alone: Outputs, kv_allocation: KVAllocation) -> None:
    overlap = kv_allocation in ("orca-pow2", "fastertransformer")
    engine = engine_with(loaded, num_blocks=200, kv_allocation=kv_allocation, async_scheduling=overlap)
    assert_same(run(engine, requests()), alone)


def test_speculated(loaded: LoadedModel, alone: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """In little and in much company, also where it would not be thought worth while."""
    monkeypatch.setattr(speculation.StepCost, "growth", lambda cost, sequences: 0.001)
    for at_once, few in ((2, speculation.FEW), (1000, 1000)):
        monkeypatch.setattr(speculation, "FEW", few)
        engine = engine_with(loaded, spec_method="ngram", spec_tokens=3, async_scheduling=True)
        assert_same(run(engine, requests(), at_once=at_once), alone)
        stats = engine.stats()
        assert stats.accepted_draft_tokens < stats.draft_tokens and stats.drafts > 0


@all_but_float32
def test_speculated_without_logits(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody wants more than the likeliest token it is found within the head, behind each draft, too."""
    monkeypatch.setattr(speculation.StepCost, "growth", lambda cost, sequences: 0.001)
    todo = greedy_requests(max_tokens=40)
    expected = run(engine_with(loaded), todo)
    assert_same(run(engine_with(loaded, async_scheduling=True), todo), expected)
    for at_once in (1, 3):
        engine = engine_with(loaded, spec_method="ngram", async_scheduling=at_once == 3)
        assert_same(run(engine, todo, at_once=at_once), expected)
        assert engine.stats().accepted_draft_tokens > 30


@pytest.mark.parametrize("loaded", ["bfloat16"], indirect=True)
@pytest.mark.parametrize("begun", [False, True], ids=["before the next one", "with the next one begun"])
def test_a_step_fails_and_is_computed_again(loaded: LoadedModel, begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third of those that begin the next one within their last call."""
    todo, calls, go_on = greedy_requests(max_tokens=20), [], RecordedForward.go_on
    expected = run(engine_with(loaded), todo)

    def going_on(graph: RecordedForward, *args: Any) -> list[int]:
        calls.append(args)
        if len(calls) % 3:
            return go_on(graph, *args)
        if begun:
            go_on(graph, *args)
        raise RuntimeError("broken")

    monkeypatch.setattr(RecordedForward, "go_on", going_on)
    assert_same(run(engine_with(loaded, async_scheduling=True, isolate=Isolate()), todo), expected)
    assert len(calls) > 9


def test_another_number_of_threads(loaded: LoadedModel, alone: Outputs, smollm2_path: Path) -> None:
    variant = (loaded.backend.compute_dtype, loaded.weight_format, loaded.kv_cache_dtype, loaded.activation_bits)
    other = load(smollm2_path, *variant, num_threads=1)
    assert_same(run(engine_with(other), requests()), alone)
