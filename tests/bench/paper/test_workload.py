"""Which requests a run has."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from octavo.bench.paper.bench import Bench
from octavo.bench.paper.driver import Replayed
from octavo.bench.paper.scenes import SHRINK, long_scene, scene
from octavo.bench.paper.workload import TRACE_NAMES, Serve, spread
from octavo.bench.traces import TraceRequest
from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.executor.presets import PRESETS
from tests.bench.paper.conftest import MakeBench, replayed


def test_a_short_run_has_lengths_from_everywhere() -> None:
    requests = [TraceRequest([0] * (1 + i), 1) for i in range(1000)]
    for seed in range(5):
        lengths = sorted(len(request.prompt_token_ids) for request in spread(requests, 10, seed))
        assert all(100 * i < length <= 100 * (i + 1) + 1 for i, length in enumerate(lengths))
    assert sorted(len(r.prompt_token_ids) for r in spread(requests, 1000, 3)) == list(range(1, 1001))
    assert len(spread(requests, 2500, 0)) == 2500
    assert spread(requests, 10, 1) == spread(requests, 10, 1) != spread(requests, 10, 2)


def test_a_short_run_has_prompts_and_outputs_like_its_trace() -> None:
    random = np.random.default_rng(0)
    prompts, outputs = random.lognormal(3.5, 1.8, 1000).astype(int) + 1, random.integers(1, 600, 1000)
    requests = [TraceRequest([0] * prompt, output) for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True)]
    for seed in range(5):
        chosen = spread(requests, 8, seed)
        assert sum(len(r.prompt_token_ids) for r in chosen) / 8 == pytest.approx(prompts.mean(), rel=0.15)
        assert sum(r.output_len for r in chosen) / 8 == pytest.approx(outputs.mean(), rel=0.15)


@pytest.mark.parametrize("trace", TRACE_NAMES)
def test_every_trace_can_be_served_here(make_bench: MakeBench, trace: str) -> None:
    bench = make_bench()
    serve = scene(bench, "here", trace, num_requests=12)
    arrivals = bench.traces.arrivals(serve)
    assert len({arrival.request.id for arrival in arrivals}) == len(arrivals) == 12
    for arrival in arrivals:
        assert arrival.at == 0.0 and arrival.request.params.ignore_eos
        assert arrival.request.params.max_tokens == arrival.output_len >= 1
        assert 1 <= len(arrival.request.prompt_token_ids) <= serve.max_model_len - arrival.output_len


def test_prefixes_stay_whole(make_bench: MakeBench) -> None:
    bench = make_bench()
    prompts = [
        a.request.prompt_token_ids for a in bench.traces.arrivals(scene(bench, "here", "translation-80", num_requests=6))
    ]
    assert all(prompt[:80] == prompts[0][:80] and len(prompt) > 80 for prompt in prompts)
    assert len({tuple(prompt[80:]) for prompt in prompts}) == 6


def test_a_shared_prefix_is_resident_before_the_first_request_and_for_that_run_only(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    pinned: list[int] = []

    def counted(engine: Engine, *args: object, **named: object) -> Replayed:
        kv = engine.scheduler.kv
        pinned.append(kv.num_pinned)
        assert kv.device.num_used == kv.num_pinned
        return replayed()

    monkeypatch.setattr("octavo.bench.paper.bench.replay", counted)
    monkeypatch.setattr(bench, "say", lambda line: None)
    for machine, trace, shared in (("here", "translation-80", 5), ("llama-13b", "translation-341", 21)):
        serve = scene(bench, machine, trace, num_requests=4)
        bench.served(msgspec.structs.replace(serve, pinned=True, max_model_len=512))
        bench.served(msgspec.structs.replace(serve, max_model_len=512))
        assert pinned[-2:] == [shared, 0]
    bench.close()


@pytest.mark.parametrize("machine", ["here", "opt-13b"])
def test_a_run_with_other_settings_is_another_run(
    tiny: str, make_bench: MakeBench, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    serve = scene(bench, machine, "alpaca", num_requests=4)
    computed: list[float] = []

    def run(self: Bench, serve: Serve) -> Replayed:
        computed.append(self.config.swap_space)
        return replayed()

    monkeypatch.setattr(Bench, "_serve", run)
    for swap_space in (0.0, 1.0, 0.0):
        Bench(EngineConfig(model=tiny, swap_space=swap_space), bench.options).served(serve)
    assert computed == [0.0, 1.0]


def test_a_trace_of_another_tokenizer_is_described_anew(tiny: str, make_bench: MakeBench, tmp_path: Path) -> None:
    serve = scene(make_bench(), "opt-13b", "sharegpt", num_requests=4)
    for model in (tiny, str(shutil.copytree(tiny, tmp_path / "other"))):
        Bench(EngineConfig(model=model), make_bench().options)._describe(serve)
    assert len(list((tmp_path / "out" / "runs").glob("trace-*.json"))) == 2


def test_lengths_are_divided_where_it_is_said(make_bench: MakeBench) -> None:
    full, quick = make_bench(quick=False), make_bench()
    long, short = (msgspec.structs.replace(long_scene(bench), num_requests=40) for bench in (full, quick))
    assert (long.shrink, short.shrink) == (1, SHRINK)
    whole = sum(arrival.output_len for arrival in full.traces.arrivals(long))
    part = sum(arrival.output_len for arrival in quick.traces.arrivals(short))
    assert part == pytest.approx(whole / SHRINK, rel=0.1)


def test_arrivals_come_at_the_rate(make_bench: MakeBench) -> None:
    bench = make_bench()
    serve = msgspec.structs.replace(scene(bench, "here", "alpaca", num_requests=2000), rate=50.0)
    moments = [arrival.at for arrival in bench.traces.arrivals(serve)]
    assert moments == sorted(moments) and moments[-1] == pytest.approx(40.0, rel=0.1)


def test_the_papers_machines_have_the_papers_lengths(make_bench: MakeBench) -> None:
    bench = make_bench()
    trace = bench.traces.of("sharegpt", paper=True)
    assert trace.mean_input == pytest.approx(161.31, rel=0.02) and trace.mean_output == pytest.approx(337.99, rel=0.02)
    assert scene(bench, "opt-13b", "sharegpt").kv_slots == PRESETS["opt-13b"].kv_slots
