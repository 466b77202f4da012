"""Replaying arrivals: latencies and means that are known beforehand, in virtual time."""

import random
from itertools import accumulate

import pytest

from octavo.bench.paper.driver import Arrival, replay
from octavo.build_simulated import Simulated, simulate
from octavo.config import EngineConfig, KVAllocation
from octavo.executor.cost_model import StepWork
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step import StepTimings


def second_each(work: StepWork) -> StepTimings:
    return StepTimings(forward=1.0)


def engine(*, num_blocks: int = 64, allocation: KVAllocation = "paged", overlap: bool = False) -> Simulated:
    config = EngineConfig(
        model="none",
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        kv_allocation=allocation,
        enable_prefix_caching=False,
        async_scheduling=overlap,
    )
    return simulate(config, second_each, num_blocks=num_blocks, max_model_len=32, vocab_size=100)


def arrival(index: int, *, at: float, prompt: int = 4, output: int = 4, n: int = 1) -> Arrival:
    params = SamplingParams(n=n, temperature=1.0 if n > 1 else 0.0, max_tokens=output, ignore_eos=True)
    request = Request(id=str(index), prompt_token_ids=[1 + index] * prompt, params=params, seed=index, arrival_time=0.0)
    return Arrival(at, request, output, n)


def test_requests_that_never_meet() -> None:
    """A step a second: four tokens take four seconds, whenever they are asked for."""
    simulated = engine()
    found = replay(simulated.engine, [arrival(i, at=10.0 * i) for i in range(3)], simulated.clock)
    assert found.normalized_latency == pytest.approx(1.0)
    assert (found.num_requests, found.num_finished, found.output_tokens) == (3, 3, 12)
    assert found.seconds == pytest.approx(24.0) and not found.gave_up and found.preemptions == 0


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    simulated = engine()
    found = replay(simulated.engine, [arrival(0, at=0.0), arrival(1, at=0.5)], simulated.clock)
    assert found.normalized_latency == pytest.approx((4.0 / 4 + 4.5 / 4) / 2)


@pytest.mark.parametrize("overlap", [False, True])
def test_times_of_arrival_need_not_be_round(overlap: bool) -> None:
    """Sums of floating point numbers: who sleeps until an arrival must find it there."""
    draws = random.Random(1)
    moments = list(accumulate(draws.expovariate(0.3) for _ in range(300)))
    simulated = engine(overlap=overlap)
    simulated.clock.advance(0.1 + 0.2)
    found = replay(simulated.engine, [arrival(i, at=at, output=2) for i, at in enumerate(moments)], simulated.clock)
    assert found.num_finished == 300 and found.normalized_latency >= 1.0


def test_requests_and_slots_at_once() -> None:
    """Two at a time by memory, out of eight that are all there; the pool is always full of their regions."""
    simulated = engine(num_blocks=16, allocation="orca-max")
    found = replay(simulated.engine, [arrival(i, at=0.0, output=24) for i in range(8)], simulated.clock)
    assert found.requests_at_once == pytest.approx(2.0, abs=0.15) and found.total_slots == 64
    assert found.output_rate == pytest.approx(2.0, rel=0.1)
    tokens = found.part_of_wanted("tokens")
    assert 0.4 < tokens < 0.55 and found.tokens_of_allocated == pytest.approx(tokens, abs=0.02)
    assert sum(
        found.part_of_wanted(name) for name in ("tokens", "reserved", "internal", "rounding", "unusable")
    ) == pytest.approx(1)


def test_sharing_is_counted_against_blocks_without_it() -> None:
    """Three branches share 16 of their 16 to 24 tokens: four blocks once instead of three times."""
    simulated = engine()
    requests = [arrival(i, at=0.0, prompt=16, output=8, n=3) for i in range(20)]
    found = replay(simulated.engine, requests, simulated.clock)
    assert 8 / 18 < found.saved_by_sharing < 8 / 12
    assert found.saved_at_end == pytest.approx(8 / 18, abs=0.03)  # all 24 tokens are there: 2 of 6 blocks each, twice
    assert found.output_tokens == 20 * 3 * 8 and found.sequences_at_once > found.requests_at_once


def test_a_lost_run_is_given_up_and_leaves_an_idle_engine() -> None:
    simulated = engine(num_blocks=8, allocation="orca-max")
    requests = [arrival(i, at=0.0, output=24) for i in range(50)]
    found = replay(simulated.engine, requests, simulated.clock, limit=3.0)
    assert found.gave_up and found.normalized_latency > 3.0 and found.num_finished < 50
    assert not simulated.engine.has_work and simulated.engine.scheduler.kv.device.num_used == 0
    again = replay(simulated.engine, [arrival(99, at=0.0)], simulated.clock)
    assert again.num_finished == 1 and again.normalized_latency == pytest.approx(1.0)


def test_the_same_run_again_is_the_same() -> None:
    def run() -> object:
        simulated = engine(num_blocks=12, overlap=True)
        return replay(simulated.engine, [arrival(i, at=0.7 * i, output=12) for i in range(30)], simulated.clock)

    assert run() == run()
