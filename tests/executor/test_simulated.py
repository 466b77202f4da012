"""The simulated engine: real scheduling in virtual time."""

import random
from collections import defaultdict

import pytest

from octavo.build_simulated import Simulated, preset_named, simulate, simulate_preset
from octavo.clock import Clock, VirtualClock, WallClock
from octavo.config import ConfigError, EngineConfig
from octavo.executor.cost_model import StepWork
from octavo.executor.simulated import SimulatedExecutor
from octavo.request import Request
from octavo.sampling_params import BeamSearch, SamplingParams
from octavo.step import StepTimings

VOCABULARY = 300


def slow_cost(work: StepWork) -> StepTimings:
    return StepTimings(copies=1e-3 * work.swapped_tokens, forward=0.01 + 1e-3 * work.num_tokens)


def engine(*, num_blocks: int = 64, num_host_blocks: int = 0, **changes: object) -> Simulated:
    sizes = {"block_size": 4, "max_num_seqs": 16, "max_num_batched_tokens": 64}
    fields = {"model": "m", "spec_method": "none", **sizes, **changes}
    config = EngineConfig(**fields)  # type: ignore[arg-type]
    return simulate(
        config, slow_cost, num_blocks=num_blocks, max_model_len=80, vocab_size=VOCABULARY, num_host_blocks=num_host_blocks
    )


def requests(count: int, seed: int = 1) -> list[Request]:
    rng = random.Random(seed)
    kinds = [
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
        SamplingParams(n=3, max_tokens=12, ignore_eos=True),
        SamplingParams(n=2, max_tokens=12, beam=BeamSearch(width=4), ignore_eos=True),
    ]
    return [
        Request(
            id=str(i),
            prompt_token_ids=[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 40))],
            params=kinds[i % len(kinds)],
            seed=i,
            arrival_time=0.0,
        )
        for i in range(count)
    ]


def outputs(simulated: Simulated, arriving: list[Request]) -> dict[tuple[str, int], list[int]]:
    """Everything at once; the clock must never stand still in a step that computes, nor go back."""
    got: dict[tuple[str, int], list[int]] = defaultdict(list)
    for request in arriving:
        simulated.engine.add(request)
    while simulated.engine.has_work:
        before = simulated.clock()
        for delta in simulated.engine.step():
            got[delta.request_id, delta.branch] += delta.token_ids
        assert simulated.clock() > before
    return dict(got)


@pytest.mark.parametrize(
    ("num_blocks", "num_host_blocks", "changes"),
    [
        (24, 0, {}),
        (24, 200, {"preemption_mode": "swap"}),
        (40, 0, {"max_num_batched_tokens": 16}),
        (64, 0, {"enable_prefix_caching": False, "max_num_seqs": 5}),
        (500, 0, {"async_scheduling": False}),
        (90, 0, {"block_size": 1}),
    ],
)
def test_outputs_depend_on_the_request_alone(num_blocks: int, num_host_blocks: int, changes: dict[str, object]) -> None:
    arriving = requests(12)
    expected = outputs(engine(num_blocks=500), arriving)
    assert len({tuple(tokens) for tokens in expected.values()}) == len(expected)
    got = outputs(engine(num_blocks=num_blocks, num_host_blocks=num_host_blocks, **changes), arriving)
    assert got == expected


def test_small_pools_are_under_pressure_in_that_test() -> None:
    recomputing, swapping = engine(num_blocks=24), engine(num_blocks=24, num_host_blocks=200, preemption_mode="swap")
    for simulated in (recomputing, swapping):
        outputs(simulated, requests(12))
        assert simulated.engine.scheduler.counters.preemptions > 0
    assert swapping.executor.totals.swapped_tokens > 0
    assert swapping.executor.totals.copy_seconds == pytest.approx(1e-3 * swapping.executor.totals.swapped_tokens)


@pytest.mark.parametrize("overlapping", [False, True])
def test_time_is_the_sum_of_the_steps(overlapping: bool) -> None:
    simulated = engine(num_blocks=500, async_scheduling=overlapping)
    start = simulated.clock()
    outputs(simulated, requests(6))
    totals = simulated.executor.totals
    assert simulated.clock() - start == pytest.approx(totals.seconds)
    assert totals.seconds == pytest.approx(0.01 * totals.steps + 1e-3 * totals.tokens)


def test_times_of_a_request_are_virtual() -> None:
    simulated = engine(async_scheduling=False)
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    arrival = simulated.clock()
    simulated.clock.sleep_until(arrival + 2.0)
    request = Request(id="a", prompt_token_ids=[1] * 10, params=params, seed=0, arrival_time=arrival)
    simulated.engine.add(request)
    metrics = None
    while simulated.engine.has_work:
        metrics = next((delta.metrics for delta in simulated.engine.step() if delta.metrics), metrics)
    assert metrics is not None
    assert metrics.queue_time == pytest.approx(2.0)
    assert metrics.first_token_time == pytest.approx(2.0 + 0.01 + 0.01)
    assert metrics.finished_time == pytest.approx(2.0 + 0.02 + 4 * 0.011)
    assert metrics.mean_itl == pytest.approx(0.011)


@pytest.mark.parametrize("overlapping", [False, True])
def test_an_aborted_request_counts_the_tokens_that_came(overlapping: bool) -> None:
    simulated = engine(async_scheduling=overlapping)
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    simulated.engine.add(Request(id="a", prompt_token_ids=[1] * 10, params=params, seed=0, arrival_time=simulated.clock()))
    came = 0
    while came < 3:
        came += sum(len(delta.token_ids) for delta in simulated.engine.step())
    metrics = simulated.engine.abort("a")
    assert metrics is not None and metrics.num_generated_tokens == came
    assert metrics.mean_itl == pytest.approx(0.011)


def test_beams_go_apart_and_share_what_they_have_in_common() -> None:
    simulated = engine(num_blocks=200)
    params = SamplingParams(n=4, max_tokens=30, beam=BeamSearch(width=4), ignore_eos=True)
    request = Request(id="a", prompt_token_ids=[1] * 13, params=params, seed=0, arrival_time=0.0)
    simulated.engine.add(request)
    shared = apart = 0
    finals: list[list[int]] = []
    while simulated.engine.has_work:
        for delta in simulated.engine.step():
            finals.append(delta.token_ids)
        tables = [[block.id for block in seq.blocks] for seq in simulated.engine.scheduler.live_sequences]
        if len(tables) == 4:
            apart += len({table[-1] for table in tables}) > 1
            shared += len({block for table in tables for block in table}) < sum(map(len, tables))
    assert len(finals) == 4 and len({tuple(final) for final in finals}) == 4
    assert apart > 5 and shared > 20


def test_another_seed_draws_other_tokens() -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    drawn = []
    for seed in (1, 2):
        request = Request(id="a", prompt_token_ids=[5], params=params, seed=seed, arrival_time=0.0)
        drawn.append(outputs(engine(), [request])["a", 0])
    assert drawn[0] != drawn[1] and all(0 <= token < VOCABULARY for token in drawn[0] + drawn[1])


def test_drafts_are_refused_and_nothing_is_lost() -> None:
    arriving = [request for request in requests(9) if request.params.beam is None]
    repetitive = [
        Request(id=r.id, prompt_token_ids=[7, 8, 9] * 6, params=r.params, seed=r.seed, arrival_time=0.0) for r in arriving
    ]
    speculating = engine(spec_method="ngram", spec_tokens=3, num_blocks=500)
    assert outputs(speculating, repetitive) == outputs(engine(num_blocks=500), repetitive)


def test_a_preset_runs() -> None:
    config = EngineConfig(model="m", max_num_batched_tokens=2560, enable_prefix_caching=False, async_scheduling=False)
    simulated = simulate_preset(config, preset_named("opt-13b"))
    assert simulated.engine.scheduler.kv.device.num_blocks == 15_700 // 16
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    start = simulated.clock()
    request = Request(id="a", prompt_token_ids=list(range(200)), params=params, seed=0, arrival_time=start)
    assert len(outputs(simulated, [request])["a", 0]) == 100
    assert 100 * 0.0165 < simulated.clock() - start < 100 * 0.04  # 26 GB of weights at up to 1,555 GB/s, and a host


def test_what_cannot_be_simulated() -> None:
    with pytest.raises(ConfigError, match="80 tokens does not fit into 19 blocks of 4 tokens"):
        engine(num_blocks=19)
    with pytest.raises(ConfigError, match=r"no simulated machine 'opt-1b'; there are: opt-13b, opt-66b, opt-175b, llama-13b"):
        preset_named("opt-1b")
    with pytest.raises(ConfigError, match="must be at least --max-num-seqs"):
        engine(max_num_batched_tokens=8)


def test_both_clocks_have_one_face() -> None:
    clocks: list[Clock] = [VirtualClock(), WallClock()]
    for clock in clocks:
        start = clock()
        clock.sleep_until(start - 1.0)
        clock.sleep_until(start + 0.01)
        assert start > 0
        assert clock() >= start + 0.01


def test_virtual_time_only_grows() -> None:
    clock = VirtualClock(5.0)
    clock.sleep_until(3.0)
    clock.advance(0.0)
    assert clock() == 5.0
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="time does not go back"):
            clock.advance(wrong)


def test_the_executor_waits_to_be_asked() -> None:
    simulated = engine(async_scheduling=False)
    params = SamplingParams(temperature=0.0, max_tokens=2)
    simulated.engine.add(Request(id="a", prompt_token_ids=[1], params=params, seed=0, arrival_time=0.0))
    plan = simulated.engine.scheduler.schedule()
    assert plan is not None and isinstance(simulated.executor, SimulatedExecutor)
    before = simulated.clock()
    pending = simulated.executor.submit(plan)
    assert simulated.clock() == before
    output = pending.result()
    assert simulated.clock() == before + output.timings.forward


def test_groups_do_not_come_and_go_where_that_costs() -> None:
    """Requests of 30 to 250 tokens in a pool for 768: without room to grow, every other one would be computed again."""
    config = EngineConfig(model="m", enable_prefix_caching=False)
    simulated = simulate(config, slow_cost, num_blocks=48, max_model_len=300, vocab_size=VOCABULARY)
    rng = random.Random(3)
    for i in range(90):
        params = SamplingParams(temperature=0.0, max_tokens=rng.choice([10, 40, 80, 200]), ignore_eos=True)
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(20, 50))]
        simulated.engine.add(Request(id=str(i), prompt_token_ids=prompt, params=params, seed=i, arrival_time=0.0))
    while simulated.engine.has_work:
        simulated.engine.step()
    assert 0 < simulated.engine.scheduler.counters.preemptions < 30
