"""What a request's metrics say that its KV cache cost, against what the pool was asked for."""

from typing import Any

import pytest

from octavo.memory.block_pool import Block
from octavo.outputs import RequestMetrics
from tests.engine.fake import Scenario
from tests.engine.test_scheduler import BLOCK, Harness


class Count:
    """How often the device pool handed out a block."""

    def __init__(self, kv: Any) -> None:
        self.allocations = 0
        self._allocate, kv.device.allocate = kv.device.allocate, self.allocate

    def allocate(self) -> Block:
        self.allocations += 1
        block: Block = self._allocate()
        return block


def metrics_of(harness: Harness) -> dict[str, RequestMetrics]:
    found: dict[str, RequestMetrics] = {}
    while harness.engine.has_work:
        found |= {delta.request_id: delta.metrics for delta in harness.engine.step() if delta.metrics is not None}
    return found


def costs(metrics: RequestMetrics) -> tuple[int, int, int]:
    return metrics.blocks_allocated, metrics.blocks_shared, metrics.copy_on_writes


def test_a_prefix_hit_is_shared_and_not_allocated() -> None:
    harness = Harness(enable_prefix_caching=True)
    harness.add("a", prompt_len=4 * BLOCK + 2)
    assert costs(metrics_of(harness)["a"]) == (6, 0, 0), "5 blocks for the prompt, one more for three of four new tokens"
    harness.add("a", prompt_len=4 * BLOCK + 2)
    metrics = metrics_of(harness)["a"]
    assert costs(metrics) == (2, 4, 0) and metrics.num_cached_tokens == 4 * BLOCK


def test_branches_share_what_they_found_and_what_they_computed() -> None:
    harness = Harness(enable_prefix_caching=True)
    harness.add("a", prompt_len=4 * BLOCK)
    metrics_of(harness)
    harness.add("a", prompt_len=4 * BLOCK + 2, n=3, max_tokens=2)
    # 4 blocks found; the fifth computed and then shared, with the other four, by two branches, both of which copy it.
    assert costs(metrics_of(harness)["a"]) == (1 + 2, 4 + 2 * 5, 2)


def test_a_prompt_that_ends_with_its_block_is_never_copied() -> None:
    harness = Harness()
    harness.add("a", prompt_len=2 * BLOCK, n=4, max_tokens=3)
    assert costs(metrics_of(harness)["a"]) == (2 + 4, 3 * 2, 0)


def test_greedy_branches_cost_one() -> None:
    harness = Harness()
    harness.add("a", prompt_len=BLOCK, n=4, temperature=0.0, max_tokens=3)
    assert costs(metrics_of(harness)["a"]) == (2, 0, 0)


def test_an_aborted_request_tells_what_it_cost() -> None:
    harness = Harness()
    harness.add("a", prompt_len=BLOCK + 1, n=2, max_tokens=9)
    harness.engine.step()
    harness.engine.step()
    metrics = harness.engine.abort("a")
    assert metrics is not None and costs(metrics) == (2 + 1, 2, 1)


@pytest.mark.parametrize("first", [400_000, 410_000])
def test_every_block_is_on_somebodys_account(first: int) -> None:
    shared = copied = 0
    for seed in range(first, first + 150):
        scenario = Scenario(seed, with_aborts=False)
        count, step = Count(scenario.kv), scenario.engine.step
        told: list[RequestMetrics] = []

        def watched(told: list[RequestMetrics] = told, step: Any = step) -> Any:
            deltas = step()
            told += [delta.metrics for delta in deltas if delta.metrics is not None]
            return deltas

        scenario.engine.step = watched  # type: ignore[method-assign]
        scenario.run(check_every_step=False)
        assert sum(metrics.blocks_allocated for metrics in told) == count.allocations, seed
        assert sum(metrics.copy_on_writes for metrics in told) == scenario.kv.counters.copy_on_write, seed
        shared += sum(metrics.blocks_shared for metrics in told)
        copied += scenario.kv.counters.copy_on_write
    assert shared > 1000 and copied > 100


def test_what_sharing_saves_right_now() -> None:
    harness = Harness()
    harness.add("a", prompt_len=4 * BLOCK, n=4, max_tokens=9)
    assert harness.engine.stats().memory_saved == 0.0
    harness.engine.step()
    stats = harness.engine.stats()
    assert (stats.block_references, stats.blocks_referenced, stats.memory_saved) == (16, 4, 0.75)
    harness.engine.step()
    stats = harness.engine.stats()
    assert (stats.block_references, stats.blocks_referenced, stats.memory_saved) == (20, 8, 0.6)
    harness.finish()
    assert harness.engine.stats().memory_saved == 0.0
