"""Whatever is batched, chunked, cached, forked, preempted, swapped, speculated or overlapped: the output is the naive one."""

import pytest

from octavo.config import KVAllocation
from octavo.memory.contiguous import RESERVATIONS
from tests.engine.fake import Scenario

RUNS, CHUNK = 2400, 200


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_any_schedule_equals_the_naive_loop(first: int) -> None:
    for seed in range(first, first + CHUNK):
        Scenario(seed).run()


@pytest.mark.parametrize("first", range(100_000, 100_600, 200))
def test_every_request_ends_without_aborts_in_the_smallest_pool(first: int) -> None:
    for seed in range(first, first + 200):
        scenario = Scenario(seed, with_aborts=False)
        scenario.run(check_every_step=False)
        assert scenario.finished == set(scenario.requests)


@pytest.mark.parametrize("kv_allocation", RESERVATIONS)
def test_any_schedule_over_contiguous_regions(kv_allocation: KVAllocation) -> None:
    for seed in range(200_000, 200_250):
        scenario = Scenario(seed, with_aborts=seed % 3 > 0, kv_allocation=kv_allocation)
        scenario.run()
        assert scenario.with_aborts or scenario.finished == set(scenario.requests)
