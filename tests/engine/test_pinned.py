"""Pinned prefixes in the scheduler: whatever happens around them they stay, and what was accepted beside them ends."""

from dataclasses import dataclass
from typing import Any

import pytest

from octavo.engine.engine import EngineBusyError
from octavo.memory.kv_cache_manager import KVCacheManager
from octavo.request import Request
from octavo.sampling_params import ParameterError
from tests.engine.fake import Scenario
from tests.engine.test_scheduler import BLOCK, Harness


@dataclass
class PinnedScenario(Scenario):
    """A scenario whose shared prompt beginning is pinned in a pool that is no larger for it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.prefix: list[int] = []
        self.num_pinned = 0
        if not self.kv.enable_prefix_caching:
            self.arrivals = []
            return
        self.scheduler.limits.check_pin = lambda token_ids, cache_scope: None  # type: ignore[method-assign]  # little room
        self.prefix = self.shared[: self.rng.randint(1, 12)]
        try:
            self.engine.pin_prefix(self.prefix)
        except ParameterError:
            self.prefix = []
        self.arrivals = [request for request in self.arrivals if self.accepted(request)]

    def accepted(self, request: Request) -> bool:
        try:
            self.engine.add(request)
        except ParameterError:
            return False
        self.engine.abort(request.id)
        return True

    def _verify(self) -> None:
        assert isinstance(self.kv, KVCacheManager)
        if self.prefix:
            digests = self.kv._prefix_digests(self.prefix, "")
            self.num_pinned = len(digests)
            assert self.kv.pinned.num_leading(digests) == len(digests) == self.kv.pinned.num_blocks
            self.engine.unpin_prefix(self.prefix)
        super()._verify()


def test_any_schedule_beside_a_pinned_prefix() -> None:
    ended = pinned = 0
    for seed in range(300_000, 300_300):
        scenario = PinnedScenario(seed)
        scenario.run()
        ended += len(scenario.finished)
        pinned += scenario.num_pinned > 0
    assert ended > 600 and pinned > 100


def test_every_accepted_request_ends_beside_a_pinned_prefix() -> None:
    ended = 0
    for seed in range(310_000, 310_300):
        scenario = PinnedScenario(seed, with_aborts=False)
        scenario.run(check_every_step=False)
        assert scenario.finished == set(scenario.requests)
        ended += len(scenario.finished)
    assert ended > 600


def pinning(**changes: Any) -> Harness:
    return Harness(enable_prefix_caching=True, **{"num_blocks": 20, "max_model_len": 48, **changes})


def prefix_of(name: str, length: int) -> list[int]:
    return [1 + (len(name) + i) % 20 for i in range(length)]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_pinned_prefix_is_computed_once(depth: int) -> None:
    harness = pinning(depth=depth)
    assert harness.engine.pin_prefix(prefix_of("a", 4 * BLOCK + 3)) == 4 * BLOCK
    stats = harness.engine.stats()
    assert (stats.blocks_pinned, stats.blocks_used, stats.block_references) == (4, 4, 0)
    harness.scheduler.kv.forget_cached()
    harness.add("a", prompt_len=5 * BLOCK)
    harness.engine.step()
    assert harness.scheduler._groups["a"].num_cached_tokens == 4 * BLOCK
    while harness.engine.has_work:
        harness.engine.step()
    assert harness.engine.stats().blocks_used == 4
    assert harness.engine.unpin_prefix(prefix_of("a", 4 * BLOCK)) and harness.engine.stats().blocks_used == 0


def test_a_pinned_prefix_is_found_in_its_scope_alone() -> None:
    harness = pinning()
    assert harness.engine.pin_prefix(prefix_of("a", 4 * BLOCK), cache_scope="t") == 4 * BLOCK
    for name, scope, cached in (("a", "t", 4 * BLOCK), ("b", "", 0)):
        harness.add(name, prompt_len=4 * BLOCK + 1, scope=scope, max_tokens=1)
        (delta,) = harness.engine.step()
        assert delta.num_cached_tokens == cached
    assert not harness.engine.unpin_prefix(prefix_of("a", 4 * BLOCK))
    assert harness.engine.unpin_prefix(prefix_of("a", 4 * BLOCK), cache_scope="t")


@pytest.mark.parametrize(("length", "words"), [(3, "nothing to pin"), (36, "would be pinned"), (49, "would be pinned")])
def test_what_cannot_be_pinned_is_refused(length: int, words: str) -> None:
    harness = pinning()
    with pytest.raises(ParameterError, match=words):
        harness.engine.pin_prefix(prefix_of("a", length))
    assert harness.kv.pinned.num_blocks == 0 and not harness.engine.has_work
    with pytest.raises(ParameterError, match="enable_prefix_caching"):
        Harness().engine.pin_prefix(prefix_of("a", 16))
    with pytest.raises(ParameterError, match="maximum context length"):
        pinning(num_blocks=64).engine.pin_prefix(prefix_of("a", 48))


def test_a_prefix_is_not_pinned_beside_other_work() -> None:
    harness = pinning()
    harness.add("other")
    with pytest.raises(EngineBusyError):
        harness.engine.pin_prefix(prefix_of("a", 8))
    harness.finish()


def test_pinned_blocks_are_not_promised_to_others() -> None:
    harness = pinning()
    harness.engine.pin_prefix(prefix_of("a", 8 * BLOCK))
    with pytest.raises(ParameterError, match="there are only 12"):
        harness.add("bb", prompt_len=9 * BLOCK, n=4)
    harness.add("a", prompt_len=9 * BLOCK, n=4)
    with pytest.raises(ParameterError, match="there are only 12"):
        harness.add("a" * 21, prompt_len=9 * BLOCK, n=4, prompt_logprobs=0)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_group_that_holds_pinned_blocks_comes_back_although_the_rest_is_too_small_for_it(mode: str) -> None:
    harness = pinning(scheduling_policy="priority", preemption_mode=mode, num_host_blocks=40)
    harness.engine.pin_prefix(prefix_of("a", 8 * BLOCK))
    harness.add("bb", prompt_len=5 * BLOCK, priority=0, max_tokens=24)
    harness.add("a", prompt_len=9 * BLOCK, priority=1, n=4, max_tokens=9)  # at its end 17 blocks, where 12 are not pinned
    preempted = []
    while harness.engine.has_work:
        preempted += [d.metrics.num_preemptions for d in harness.engine.step() if d.metrics and d.request_id == "a"]
    assert len(preempted) == 1 and preempted[0] >= 1 and harness.kv.pinned.num_blocks == harness.kv.device.num_used == 8
