"""The baselines as policies: whole batches begin and end together; what is reserved is never preempted; ends are told once."""

import itertools

import pytest

from octavo.config import EngineConfig, KVAllocation
from octavo.engine.engine import Engine
from octavo.engine.scheduler import Scheduler
from octavo.memory.contiguous import RESERVATIONS, ContiguousKVManager
from octavo.outputs import TokenDelta
from octavo.request import Request
from octavo.sampling_params import ParameterError, SamplingParams
from tests.engine.fake import FakeExecutor

BLOCK, MAX_MODEL_LEN = 4, 32


class Harness:
    """A scheduler over regions in ``num_blocks`` blocks of 4 tokens; its clock counts the times that it is read."""

    def __init__(
        self,
        kv_allocation: KVAllocation = "fastertransformer",
        *,
        num_blocks: int = 64,
        depth: int = 1,
        max_num_batched_tokens: int = 32,
    ) -> None:
        config = EngineConfig(
            model="fake",
            block_size=BLOCK,
            max_num_seqs=8,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_allocation=kv_allocation,
        )
        self.kv = ContiguousKVManager(
            allocation=kv_allocation, block_size=BLOCK, num_blocks=num_blocks, num_rows=8, max_model_len=MAX_MODEL_LEN
        )
        ticks = itertools.count(1)
        self.scheduler = Scheduler(config, self.kv, max_model_len=MAX_MODEL_LEN, clock=lambda: float(next(ticks)))
        executor = FakeExecutor(block_size=BLOCK, num_blocks=num_blocks, num_host_blocks=0)
        self.engine = Engine(self.scheduler, executor, max_in_flight=depth)

    def add(self, name: str, *, prompt_len: int = 4, max_tokens: int = 4, n: int = 1) -> None:
        params = SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True)
        ids = [1 + i % 20 for i in range(prompt_len)]
        self.engine.add(Request(id=name, prompt_token_ids=ids, params=params, seed=1, arrival_time=0.0))

    def steps(self) -> list[list[TokenDelta]]:
        made = []
        while self.engine.has_work:
            made.append(self.engine.step())
        assert self.kv.device.num_used == 0 and self.scheduler.counters.preemptions == 0
        return made


def ends(steps: list[list[TokenDelta]]) -> list[list[str]]:
    """The requests that end, step by step, without the steps in which none does."""
    told = [[delta.request_id for delta in step if delta.metrics is not None] for step in steps]
    return [each for each in told if each]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_batch_begins_when_nothing_runs_and_ends_as_one(depth: int) -> None:
    harness = Harness(depth=depth)
    for name, length in (("short", 2), ("long", 8), ("middle", 5)):
        harness.add(name, max_tokens=length)
    early = harness.engine.step()
    harness.add("next", max_tokens=1)
    harness.add("last", max_tokens=3)
    steps = [early, *harness.steps()]
    assert ends(steps) == [["short", "middle", "long"], ["next", "last"]]
    short = [delta.token_ids for step in steps for delta in step if delta.request_id == "short"]
    assert [len(tokens) for tokens in short] == [1, 1], "tokens before the last are told as they come"
    finished = {d.request_id: d.metrics.finished_time for step in steps for d in step if d.metrics is not None}
    assert finished["short"] == finished["middle"] == finished["long"], "the batch's end is everyone's"


def test_at_iteration_level_requests_come_and_go() -> None:
    harness = Harness("orca-max")
    for name, length in (("short", 2), ("long", 8)):
        harness.add(name, max_tokens=length)
    early = harness.engine.step()
    harness.add("next", max_tokens=1)
    assert ends([early, *harness.steps()]) == [["short", "next"], ["long"]]


def test_a_batch_is_what_fits() -> None:
    harness = Harness(num_blocks=24)  # three regions of eight blocks
    for name in "abcd":
        harness.add(name)
    assert ends(harness.steps()) == [["a", "b", "c"], ["d"]]


def test_prompts_longer_than_a_step_are_still_one_batch() -> None:
    harness = Harness(max_num_batched_tokens=8)
    for name in "abc":
        harness.add(name, prompt_len=20, max_tokens=2)
    first = harness.engine.step()
    assert ends([first, *harness.steps()]) == [["a", "b", "c"]]


@pytest.mark.parametrize("depth", [1, 2])
def test_what_ended_is_told_though_the_rest_of_its_batch_is_aborted(depth: int) -> None:
    harness = Harness(depth=depth)
    harness.add("short", max_tokens=1)
    harness.add("long", max_tokens=20)
    assert ends([harness.engine.step() for _ in range(3)]) == []
    harness.add("waits", max_tokens=2)
    assert harness.engine.abort("long") is not None
    assert ends(harness.steps()) == [["short"], ["waits"]]
    harness.add("short", max_tokens=1)
    harness.add("long", max_tokens=20)
    harness.engine.step()
    assert harness.engine.abort("long") is not None
    assert ends(harness.steps()) == [["short"]], "also when nobody waits"


def test_an_abort_forgets_what_is_held_back() -> None:
    harness = Harness()
    harness.add("gone", max_tokens=1)
    harness.add("stays", max_tokens=4)
    harness.engine.step()
    assert harness.engine.abort("gone") is not None, "its metrics: it has ended"
    assert ends(harness.steps()) == [["stays"]]


def test_a_branch_that_is_aborted_leaves_the_metrics_to_its_siblings() -> None:
    harness = Harness()
    harness.add("both", max_tokens=1, n=2)
    harness.add("long", max_tokens=4)
    harness.engine.step()
    assert harness.engine.abort("both", 1) is None
    told = [delta for step in harness.steps() for delta in step if delta.request_id == "both"]
    assert [(delta.branch, delta.metrics is not None) for delta in told] == [(0, True)]
    harness.add("both", max_tokens=1, n=2)
    harness.add("long", max_tokens=4)
    harness.engine.step()
    assert harness.engine.abort("both", 0) is None and harness.engine.abort("both", 1) is not None
    assert ends(harness.steps()) == [["long"]]


@pytest.mark.parametrize("kv_allocation", RESERVATIONS)
def test_a_group_that_can_never_be_reserved_is_refused(kv_allocation: KVAllocation) -> None:
    harness = Harness(kv_allocation, num_blocks=12)
    harness.add("fits", prompt_len=14, max_tokens=16)
    with pytest.raises(ParameterError, match="needs up to 16 KV blocks"):
        harness.add("too wide", prompt_len=14, max_tokens=16, n=2)
    assert ends(harness.steps()) == [["fits"]]


def test_nothing_is_cached_so_nothing_can_be_pinned() -> None:
    with pytest.raises(ParameterError, match="enable_prefix_caching"):
        Harness("orca-max").engine.pin_prefix([1, 2, 3, 4])


def test_free_slots_are_wasted_only_while_somebody_waits_for_more() -> None:
    harness = Harness("orca-oracle", num_blocks=12)
    harness.add("first", prompt_len=4, max_tokens=12)
    harness.add("second", prompt_len=4, max_tokens=10)
    harness.engine.step()
    slots = harness.scheduler.kv_slots()
    assert (slots.tokens, slots.reserved, slots.rounding, slots.free, slots.unusable) == (8, 22, 2, 16, 0)
    harness.add("wide", prompt_len=16, max_tokens=16)
    harness.add("narrow", prompt_len=4, max_tokens=4)
    slots = harness.scheduler.kv_slots()
    assert (slots.free, slots.unusable, slots.external, slots.wanted) == (0, 16, 18, 48), "the order is kept: narrow waits too"
    harness.steps()


@pytest.mark.parametrize("kv_allocation", ["orca-oracle", "orca-pow2"])
def test_who_begins_without_a_token_has_its_region(kv_allocation: KVAllocation) -> None:
    """What the prompt that is being computed leaves of each step is kept for short ones, so that the long one begins without a
    token. The short one that comes later must not take the room that the long one was promised."""
    harness = Harness(kv_allocation, num_blocks=18, max_num_batched_tokens=8)
    harness.add("running", prompt_len=28)
    harness.engine.step()
    harness.add("long", prompt_len=20)
    harness.add("short", prompt_len=2)
    harness.engine.step()
    harness.add("shorter", prompt_len=2)
    harness.engine.step()
    assert {name for name, *_ in harness.scheduler.blocks_of_requests()} == {"running", "long", "short"}
    assert {name for step in ends(harness.steps()) for name in step} == {"running", "long", "short", "shorter"}
