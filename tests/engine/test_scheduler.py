"""What the scheduler promises one by one: order, budget, room for decodes, refusals, aborts, metrics."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.engine.engine import Engine, EngineStuckError
from octavo.engine.scheduler import Scheduler
from octavo.engine.swap_cost import SwapCost
from octavo.memory.kv_cache_manager import KVCacheManager
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.sampling_params import BeamSearch, ParameterError, SamplingParams, StructuredOutputsParams
from octavo.step import BlockCopies, ModelOutput, SchedulerOutput, StepTimings, TokenLogprobs
from tests.engine.fake import FakeExecutor
from tests.engine.fake_grammar import EOS

BLOCK = 4


class Harness:
    """A scheduler over ``num_blocks`` blocks of 4 tokens and the fake device."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        num_host_blocks: int = 0,
        depth: int = 1,
        max_model_len: int = 64,
        eos_token_ids: tuple[int, ...] = (),
        grammars: Any = None,
        clock: Callable[[], float] = time.monotonic,
        **changes: Any,
    ):
        settings = {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
            "enable_prefix_caching": False,
            "spec_method": "none",
            **changes,
        }
        config = EngineConfig(model="fake", block_size=BLOCK, **settings)
        self.kv = KVCacheManager(
            block_size=BLOCK,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_rows=config.max_num_seqs,
            max_blocks=-(-max_model_len // BLOCK),
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self.scheduler = Scheduler(
            config, self.kv, max_model_len=max_model_len, eos_token_ids=eos_token_ids, grammars=grammars, clock=clock
        )
        self.executor = FakeExecutor(block_size=BLOCK, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
        self.engine = Engine(self.scheduler, self.executor, max_in_flight=depth)

    def add(
        self,
        name: str,
        prompt_len: int = 4,
        *,
        priority: int = 0,
        tenant: str = "",
        scope: str = "",
        seed: int = 1,
        **params: Any,
    ) -> None:
        settings = {"max_tokens": 4, "ignore_eos": True, **params}
        ids = [1 + (len(name) + i) % 20 for i in range(prompt_len)]
        request = Request(
            id=name,
            prompt_token_ids=ids,
            params=SamplingParams(**settings),
            seed=seed,
            arrival_time=0.0,
            priority=priority,
            tenant=tenant,
            cache_scope=scope,
        )
        self.engine.add(request)

    def plan(self) -> dict[int, int]:
        """The next plan as {sequence id: tokens}; it is then carried out."""
        plan = self.scheduler.schedule()
        assert plan is not None
        self.executor.submit(plan)
        self.scheduler.commit(plan, self.executor.run_oldest())
        return {seq.seq_id: len(seq.token_ids) for seq in plan.sequences}

    def steps_take(self, **seconds: float) -> None:
        """What the device says of every step from now on."""
        run, timings = self.executor.run_oldest, StepTimings(**seconds)
        self.executor.run_oldest = lambda: msgspec.structs.replace(run(), timings=timings)  # type: ignore[method-assign]

    def finish(self) -> list[TokenDelta]:
        deltas = []
        while self.engine.has_work:
            deltas += self.engine.step()
        self.kv.check([])
        assert self.kv.device.num_free == self.kv.device.num_blocks
        return deltas


def order_of_ends(deltas: list[TokenDelta]) -> list[str]:
    return [delta.request_id for delta in deltas if delta.metrics is not None]


def metrics_of(deltas: list[TokenDelta]) -> dict[str, RequestMetrics]:
    return {delta.request_id: delta.metrics for delta in deltas if delta.metrics is not None}


def test_first_come_first_served() -> None:
    harness = Harness(max_num_seqs=1)
    for name in "abc":
        harness.add(name)
    assert order_of_ends(harness.finish()) == ["a", "b", "c"]


def test_lower_priority_values_come_first_and_are_preempted_last() -> None:
    harness = Harness(max_num_seqs=1, scheduling_policy="priority")
    for name, priority in (("late", 2), ("first", 0), ("second", 1), ("first too", 0)):
        harness.add(name, priority=priority)
    assert order_of_ends(harness.finish()) == ["first", "first too", "second", "late"]

    tight = Harness(num_blocks=14, scheduling_policy="priority", preemption_mode="recompute")
    tight.add("cheap", 8, priority=5, max_tokens=40)
    tight.add("dear", 8, priority=1, max_tokens=40)
    ends = metrics_of(tight.finish())
    assert list(ends) == ["dear", "cheap"]
    assert ends["dear"].num_preemptions == 0 and ends["cheap"].num_preemptions > 0
    assert ends["cheap"].num_swaps == 0


def one_of_two_swapped_out() -> Harness:
    """The one of lower priority."""
    harness = Harness(num_blocks=14, num_host_blocks=14, scheduling_policy="priority", preemption_mode="swap")
    harness.add("low", 8, priority=5, max_tokens=40)
    harness.add("mid", 8, priority=1, max_tokens=40)
    while not harness.engine.stats().num_swapped:
        harness.engine.step()
    return harness


def test_who_is_swapped_out_holds_up_nobody_of_higher_priority() -> None:
    harness = one_of_two_swapped_out()
    harness.add("high")
    assert harness.plan() == {1: 1, 2: 4}
    assert order_of_ends(harness.finish()) == ["high", "mid", "low"]


def test_what_is_moved_out_and_in_is_counted_apart() -> None:
    harness = one_of_two_swapped_out()
    stats, slots = harness.engine.stats(), harness.scheduler.kv_slots()
    assert stats.swaps_out > 0 == stats.swaps_in and harness.kv.counters.swap_out == stats.swaps_out
    assert slots.unusable == stats.blocks_free * BLOCK > 0 == slots.free, "while somebody waits for more of them"
    ends = metrics_of(harness.finish())
    assert ends["low"].num_swaps == ends["low"].num_preemptions == 1 and ends["mid"].num_swaps == 0
    moved = harness.engine.stats()
    assert moved.swaps_in == moved.swaps_out == stats.swaps_out


@pytest.mark.parametrize("mode", ["auto", "swap"])
def test_steps_tell_what_swapping_costs_and_who_asked_for_it_pays(mode: str) -> None:
    harness = Harness(num_blocks=14, num_host_blocks=60, preemption_mode=mode)
    harness.steps_take(copies=10.0)
    for name in ("a", "bb", "ccc", "dddd"):
        harness.add(name, 8, max_tokens=40)
    ends = metrics_of(harness.finish()).values()
    preemptions, swaps = sum(one.num_preemptions for one in ends), sum(one.num_swaps for one in ends)
    assert preemptions > 2 and swaps == (preemptions if mode == "swap" else 1)


def test_what_is_found_again_after_a_preemption_is_no_hit() -> None:
    harness = Harness(num_blocks=14, enable_prefix_caching=True, preemption_mode="recompute")
    for name in ("a", "bb"):
        harness.add(name, 8, max_tokens=40)
    ends = metrics_of(harness.finish())
    assert ends["bb"].num_preemptions > 0 == ends["bb"].num_cached_tokens
    stats = harness.engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (16, 0)


def test_a_long_prompt_is_chunked_and_leaves_room_for_decodes() -> None:
    harness = Harness(max_num_batched_tokens=16, max_model_len=128)
    for name in "abc":
        harness.add(name, max_tokens=20)
    harness.plan()
    harness.add("long", 60)
    assert harness.plan() == {0: 1, 1: 1, 2: 1, 3: 13}
    assert harness.plan() == {0: 1, 1: 1, 2: 1, 3: 13}
    harness.add("next", 4)
    assert harness.plan() == {0: 1, 1: 1, 2: 1, 3: 9, 4: 4}
    assert harness.plan() == {0: 1, 1: 1, 2: 1, 3: 12, 4: 1}


def test_a_prompt_that_fits_into_a_step_gets_half_of_each_beside_a_longer_one() -> None:
    harness = Harness(max_num_batched_tokens=16, max_model_len=128)
    harness.add("long", 80)
    assert harness.plan() == {0: 16}
    harness.add("next", 14)
    assert harness.plan() == {0: 8, 1: 8}
    assert harness.plan() == {0: 10, 1: 6}


def test_without_chunked_prefill_a_prompt_waits_for_a_step_of_its_own() -> None:
    harness = Harness(max_num_batched_tokens=32, max_model_len=32, enable_chunked_prefill=False)
    harness.add("a", 24)
    harness.add("b", 24)
    assert harness.plan() == {0: 24}
    assert harness.plan() == {0: 1, 1: 24}


@pytest.mark.parametrize("chunked", [False, True])
def test_a_prompt_whose_log_probabilities_are_wanted_is_split_whatever_the_others_are(chunked: bool) -> None:
    harness = Harness(enable_chunked_prefill=chunked, max_num_batched_tokens=512, max_model_len=512, num_blocks=256)
    harness.add("x", 300, prompt_logprobs=0)
    assert [harness.plan() for _ in range(3)] == [{0: 256}, {0: 44}, {0: 1}]
    assert order_of_ends(harness.finish()) == ["x"]


@pytest.mark.parametrize("params", [{}, {"n": 3, "temperature": 0.0}])
def test_log_probabilities_of_the_prompt_are_told_once(params: dict[str, Any]) -> None:
    harness = Harness()
    harness.add("x", 3, prompt_logprobs=0, **params)
    plan = harness.scheduler.schedule()
    assert plan is not None
    harness.executor.submit(plan)
    found = [TokenLogprobs(token, -0.5, 1, [], []) for token in plan.sequences[0].prompt_targets or ()]
    output = msgspec.structs.replace(harness.executor.run_oldest(), prompt_logprobs=[found])
    first, *others = harness.scheduler.commit(plan, output) + harness.finish()
    assert first.branch == 0 and first.prompt_logprobs == found and len(found) == 2
    assert len(others) > 2 and all(delta.prompt_logprobs is None for delta in others)


@pytest.mark.parametrize(("token", "stop"), [(EOS, None), (EOS + 1, EOS + 1)])
def test_a_last_token_that_ends_the_output_is_the_reason(token: int, stop: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.engine.fake.next_token", lambda context, seed, mask=None: token if len(context) == 6 else 9)
    harness = Harness(eos_token_ids=(EOS,))
    harness.add("x", 4, max_tokens=3, ignore_eos=False, stop_token_ids=[EOS + 1])
    harness.add("y", 4, max_tokens=2, ignore_eos=False, stop_token_ids=[EOS + 1])
    ends = {d.request_id: (d.finish_reason, d.stop_reason) for d in harness.finish() if d.finish_reason is not None}
    assert ends == {"x": ("stop", stop), "y": ("length", None)}


def grammar_that_comes(future: "Future[Any]") -> Any:
    return SimpleNamespace(compile=lambda *_, **__: future)


FORM = StructuredOutputsParams(regex="a")


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone(cancelled: bool) -> None:
    future: Future[Any] = Future()
    harness = Harness(grammars=grammar_that_comes(future))
    harness.add("good")
    alone = [delta.token_ids for delta in harness.finish()]
    harness.add("bad", structured_outputs=FORM)
    harness.add("good")
    if cancelled:
        future.cancel()
    else:
        future.set_exception(ValueError("no"))
    deltas = harness.finish()
    bad = [(delta.finish_reason, delta.token_ids) for delta in deltas if delta.request_id == "bad"]
    assert bad == [("error", [])]
    assert [delta.token_ids for delta in deltas if delta.request_id == "good"] == alone


def test_a_budget_without_a_way_to_reason_is_refused_by_its_own_name() -> None:
    harness = Harness(grammars=grammar_that_comes(Future()))
    with pytest.raises(ParameterError, match="how it reasons") as caught:
        harness.add("x", structured_outputs=FORM, thinking_token_budget=3)
    assert caught.value.param == "thinking_token_budget" and not harness.engine.has_work


def test_who_waits_for_a_grammar_waits_and_nobody_compiles_for_who_is_gone() -> None:
    future: Future[Any] = Future()
    harness = Harness(grammars=grammar_that_comes(future))
    harness.add("x", structured_outputs=FORM)
    assert harness.scheduler.schedule() is None
    assert harness.engine.stats().num_waiting == 1
    assert harness.engine.abort("x") is not None and future.cancelled()
    assert harness.engine.stats().num_waiting == 0 and not harness.engine.has_work


def test_room_is_left_for_what_runs_to_grow_where_yielding_is_dear() -> None:
    """Three blocks are free beside the first sequence's two: the second would fit, and soon one of them would have to yield."""
    dear = Harness(num_blocks=8, preemption_mode="recompute")
    cheap = Harness(num_blocks=8, num_host_blocks=8, preemption_mode="auto")
    for harness in (dear, cheap):
        harness.add("running", 8, max_tokens=20)
        harness.plan()
        harness.add("next", 8, max_tokens=20)
    assert set(dear.plan()) == {0}
    assert set(cheap.plan()) == {0, 1}
    for harness in (dear, cheap):
        assert order_of_ends(harness.finish()) == ["running", "next"]
    assert dear.scheduler.counters.preemptions == 0 < cheap.scheduler.counters.preemptions


@pytest.mark.parametrize(
    ("num_blocks", "lengths", "n", "expected"),
    [
        (5, (1, 2, 2), 1, [{0, 1, 2}] * 4 + [{1}, {0, 1}]),
        (8, (4, 4, 1), 2, [{0, 1, 2}] + [{0, 1, 2, 3}] * 4 + [{0, 1, 3}]),
    ],
    ids=["it-needs-none", "it-needs-the-one-that-is-free"],
)
def test_who_needs_no_block_goes_on_while_another_waits_for_some(
    num_blocks: int, lengths: tuple[int, ...], n: int, expected: list[set[int]]
) -> None:
    """The first lacks as many as it has branches, and the last, which has work in flight, is to yield them."""
    harness = Harness(num_blocks=num_blocks, num_host_blocks=8)
    for name, prompt_len, branches in zip(("first", "second", "last"), lengths, (n, 1, 1), strict=True):
        harness.add(name, prompt_len, max_tokens=12, n=branches)
    in_flight: deque[SchedulerOutput] = deque()
    planned: list[set[int]] = []
    while len(planned) < len(expected):
        while len(in_flight) < 2 and (plan := harness.scheduler.schedule()) is not None:
            in_flight.append(plan)
            planned.append({seq.seq_id for seq in plan.sequences})
            harness.executor.submit(plan)
        harness.scheduler.commit(in_flight.popleft(), harness.executor.run_oldest())
    assert planned[: len(expected)] == expected


def test_no_more_sequences_than_allowed() -> None:
    harness = Harness(max_num_seqs=4)
    harness.add("three", n=3, max_tokens=2)
    harness.add("two", n=2, max_tokens=2)
    assert set(harness.plan()) == {0}
    assert len(order_of_ends(harness.finish())) == 2


@pytest.mark.parametrize(
    ("prompt_len", "params", "param", "numbers"),
    [
        (0, {}, "prompt", "empty"),
        (64, {}, "input_tokens", "64 tokens"),
        (8, {"n": 9}, "n", "max_num_seqs is 8"),
        (8, {"max_tokens": 40}, "max_tokens", "needs up to 12 KV blocks of 4 tokens"),
        (8, {"n": 3, "max_tokens": 13}, "n", "needs up to 11 KV blocks"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(
    prompt_len: int, params: dict[str, Any], param: str, numbers: str
) -> None:
    harness = Harness(num_blocks=10)
    with pytest.raises(ParameterError, match=numbers) as caught:
        harness.add("x", prompt_len, **params)
    assert caught.value.param == param
    assert not harness.engine.has_work


def test_an_id_is_used_once() -> None:
    harness = Harness()
    harness.add("same")
    with pytest.raises(ParameterError, match="already in use"):
        harness.add("same")
    harness.finish()


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_frees_at_once_in_every_state(depth: int) -> None:
    harness = Harness(num_blocks=12, num_host_blocks=12, preemption_mode="swap", depth=depth)
    for name in ("a", "b", "c"):
        harness.add(name, 12, max_tokens=30)
    for _ in range(14):
        harness.engine.step()
    stats = harness.engine.stats()
    assert stats.num_swapped + stats.num_waiting > 0 and stats.num_running > 0
    for name in ("a", "b", "c", "nobody"):
        harness.engine.abort(name)
    assert harness.engine.stats().blocks_used == 0 and harness.kv.host.num_used == 0
    assert harness.finish() == []


@pytest.mark.parametrize(
    "params",
    [
        {"n": 3},
        {"n": 1, "best_of": 3},
        {"n": 3, "temperature": 0.0},
        {"n": 1, "beam": BeamSearch(width=3)},
        {"beam": BeamSearch(width=3, report=True)},
    ],
)
def test_what_was_generated_is_told_however_a_request_ends(params: dict[str, Any]) -> None:
    each = 1 if params.get("temperature") == 0.0 else 3
    harness = Harness(max_model_len=128)
    harness.add("whole", max_tokens=7, **params)
    (metrics,) = [delta.metrics for delta in harness.finish() if delta.metrics is not None]
    assert metrics.num_generated_tokens == harness.engine.stats().generation_tokens == 7 * each
    harness.add("aborted", max_tokens=50, **params)
    for _ in range(5):
        harness.engine.step()
    ended = harness.engine.abort("aborted")
    assert ended is not None and ended.num_generated_tokens == 5 * each
    assert harness.engine.stats().generation_tokens == 12 * each


def test_a_branch_can_end_alone() -> None:
    harness = Harness()
    harness.add("x", n=3, max_tokens=6)
    harness.engine.step()
    assert harness.engine.abort("x", 1) is None
    branches = {delta.branch for delta in harness.finish()}
    assert branches == {0, 2}


def test_a_branch_that_there_is_not_ends_nothing() -> None:
    harness = Harness()
    for name, params in (("drawn", {"n": 2}), ("mirrored", {"n": 2, "temperature": 0.0})):
        harness.add(name, **params)
        for branch in (2, 3, -1):
            assert harness.engine.abort(name, branch) is None
        harness.engine.step()
        assert harness.engine.abort(name, 2) is None
        assert {delta.branch for delta in harness.finish()} == {0, 1}


def test_branches_come_back_when_there_is_room_for_all_of_them() -> None:
    """If the first one were enough, the others would be computed only to yield again: 8 times here, and 1.8 tokens for each."""
    harness = Harness(
        num_blocks=130, max_num_seqs=64, max_num_batched_tokens=64, max_model_len=128, preemption_mode="recompute"
    )
    for name in "abcd":
        harness.add(name, 16, n=8, max_tokens=50, temperature=1.0)
    computed = 0
    while harness.engine.has_work:
        computed += sum(harness.plan().values())
    assert 1 <= harness.scheduler.counters.preemptions <= 4
    assert computed < 1.5 * 4 * (16 + 8 * 49)


def test_no_tokens_are_kept_for_who_waits_until_all_branches_fit() -> None:
    """Half of a step would be for the first branch of the group that has yielded, which has no room for the others."""
    harness = Harness(
        num_blocks=20, max_num_batched_tokens=24, max_model_len=128, preemption_mode="recompute", scheduling_policy="priority"
    )
    harness.add("runs", max_tokens=20)
    harness.add("yields", priority=2, n=3, max_tokens=20)
    while not harness.scheduler.counters.preemptions:
        harness.plan()
    harness.add("long", 40, priority=1, max_tokens=2)
    plans = [harness.plan() for _ in range(5)]
    assert [plan[4] for plan in plans if 4 in plan] == [24, 16, 1]
    harness.finish()


def test_what_a_request_allows_is_a_mask_of_every_draw() -> None:
    harness = Harness(spec_method="ngram")
    harness.add("some", allowed_token_ids=[9, 2, 9], temperature=0.0, max_tokens=12)
    harness.add("all", temperature=0.0, max_tokens=12)
    masks = set()
    while harness.engine.has_work:
        plan = harness.scheduler.schedule()
        assert plan is not None
        masks |= {(seq.seq_id, None if seq.token_mask is None else seq.token_mask.tobytes()) for seq in plan.sequences}
        harness.executor.submit(plan)
        harness.scheduler.commit(plan, harness.executor.run_oldest())
    assert masks == {(0, bytes([0b100, 0b10])), (1, None)}


def test_greedy_branches_are_one_sequence_and_end_when_all_are_aborted() -> None:
    harness = Harness()
    harness.add("x", n=3, temperature=0.0)
    deltas = harness.engine.step()
    assert [delta.branch for delta in deltas] == [0, 1, 2] and harness.kv.device.num_used == 1
    assert harness.engine.abort("x", 0) is None and harness.engine.abort("x", 2) is None
    assert [delta.branch for delta in harness.engine.step()] == [1]
    assert harness.engine.abort("x", 1) is not None
    assert harness.finish() == []


def test_a_draw_that_failed_ends_its_sequence_alone() -> None:
    harness = Harness(depth=2)
    harness.add("bad")
    harness.add("good")
    plan = harness.scheduler.schedule()
    assert plan is not None
    entry = TokenLogprobs(3, -0.5, 1, [], [])
    output = ModelOutput(step_id=plan.step_id, token_ids=[[-1], [3]], logprobs=[[entry], [entry]])
    bad, good = harness.scheduler.commit(plan, output)
    assert (bad.finish_reason, bad.token_ids, good.finish_reason, good.token_ids) == ("error", [], None, [3])
    assert good.cumulative_logprob == -0.5


def test_who_was_given_up_is_not_told_of_an_error() -> None:
    harness = Harness()
    harness.add("x", n=3, temperature=0.0)
    harness.plan()
    harness.engine.abort("x", 1)
    plan = harness.scheduler.schedule()
    assert plan is not None
    deltas = harness.scheduler.commit(plan, ModelOutput(step_id=plan.step_id, token_ids=[[]], errors=["lost"]))
    assert [(delta.branch, delta.error, delta.metrics is not None) for delta in deltas] == [
        (0, "lost", False),
        (2, "lost", True),
    ]
    assert not harness.engine.has_work


def test_work_that_can_never_be_scheduled_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    harness.add("x")
    monkeypatch.setattr(harness.scheduler, "schedule", lambda: None)
    with pytest.raises(EngineStuckError):
        harness.engine.step()


def test_nothing_is_kept_of_a_step_that_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    harness.add("x")
    with monkeypatch.context() as patched:
        patched.setattr(harness.executor, "run_oldest", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            harness.engine.step()
    harness.engine.abort("x")
    assert not harness.engine.has_work and not harness.scheduler._planned


def test_metrics_tell_sharing_and_cached_tokens() -> None:
    harness = Harness(enable_prefix_caching=True)
    harness.add("x", 10, n=2, max_tokens=2)
    (first,) = [d.metrics for d in harness.finish() if d.metrics is not None]
    assert (first.blocks_allocated, first.blocks_shared, first.copy_on_writes) == (4, 3, 1)
    harness.add("x", 10, n=2, max_tokens=2)
    (second,) = [d.metrics for d in harness.finish() if d.metrics is not None]
    assert second.num_cached_tokens == 8
    stats = harness.engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.generation_tokens) == (20, 8, 8)
    assert stats.blocks_used + stats.blocks_cached + stats.blocks_free == stats.blocks_total


def test_swap_or_recompute_follows_what_was_measured() -> None:
    cost = SwapCost()

    def observe(*, copy_seconds: float, forward_seconds: float) -> None:
        copies = BlockCopies(swap_out=[(0, 0)] * 10, swap_in=[], copy=[])
        plan = SchedulerOutput(step_id=0, sequences=[], block_tables=None, copies=copies)
        timings = StepTimings(copies=copy_seconds, forward=forward_seconds)
        for _ in range(60):
            cost.observe(plan, ModelOutput(step_id=0, token_ids=[], timings=timings))

    observe(copy_seconds=1e-6, forward_seconds=0.0)
    assert cost.part_of_recomputing(num_blocks=10, num_tokens=160) < 1.0
    observe(copy_seconds=10.0, forward_seconds=0.0)
    assert cost.part_of_recomputing(num_blocks=10, num_tokens=160) == 1.0


def test_the_cost_of_swapping_is_told_as_a_part_of_recomputing() -> None:
    cost = SwapCost()
    part = cost.part_of_recomputing(num_blocks=10, num_tokens=160)
    assert part == pytest.approx(2 * 10 * 1e-4 / (160 * 1e-3))
    assert cost.part_of_recomputing(num_blocks=1000, num_tokens=1) == 1.0
    assert cost.part_of_recomputing(num_blocks=0, num_tokens=0) == 1.0
