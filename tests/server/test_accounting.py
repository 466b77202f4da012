"""What a request's record says: the sums over its prompts, and the times between its tokens."""

import asyncio
from types import SimpleNamespace

import pytest

from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.server.accounting import RequestRecord
from octavo.server.generation import Generation
from tests.server.fakes import Bench


def generation(bench: Bench, *ids: str) -> Generation:
    """A request of one prompt for each of ``ids``, to an engine that says nothing by itself."""
    bench.engine.silent = True
    params = SamplingParams(max_tokens=5)
    return Generation(
        [Request(id=name, prompt_token_ids=[5, 6], params=params, seed=0, arrival_time=0.0) for name in ids],
        client=bench.engine,
        tokenizer=bench.tokenizer,
        metrics=bench.service.metrics,
        record=RequestRecord(request_id="r", arrival=0.0),
        log=bench.service.log,
    )


def test_several_prompts_cost_their_sum_and_waited_for_the_first_to_begin(bench: Bench) -> None:
    counts = ("num_preemptions", "num_swaps", "blocks_allocated", "blocks_shared", "copy_on_writes")

    async def scene() -> RequestRecord:
        asked = generation(bench, "a", "b", "c")
        asked.submit()
        for i, (name, waited) in enumerate({"a": 0.5, "b": 0.25, "c": 0.75}.items(), start=1):
            cost = RequestMetrics(arrival_time=0.0, queue_time=waited, **{count: i + k for k, count in enumerate(counts)})
            bench.engine.mailboxes[name].put_account(cost)
        await asked.settle()
        return asked.record

    record = asyncio.run(scene())
    line = record.log_fields()
    assert line["queue_ms"] == 250.0
    assert [line["preemptions"], record.swaps, *(line[count] for count in counts[2:])] == [6, 9, 12, 15, 18]


def test_tokens_that_come_at_once_share_the_time_since_the_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.generation.time", SimpleNamespace(monotonic=iter((10.0, 11.0)).__next__))

    async def scene() -> None:
        asked = generation(bench, "a")
        asked.submit()
        for token_ids in ([5], [6, 7, 8, 9]):
            bench.engine.mailboxes["a"].put(TokenDelta(request_id="a", branch=0, token_ids=token_ids))
            await asked.updates()

    asyncio.run(scene())
    times = bench.service.metrics.inter_token_latency
    assert (times.count, times.total) == (4, 1.0)


@pytest.mark.parametrize(("prompts", "branches"), [(2, 1), (1, 2)])
def test_the_time_of_a_token_is_that_of_one_branch_of_one_prompt(prompts: int, branches: int) -> None:
    record = RequestRecord(request_id="r", arrival=0.0, model_requests=prompts, branches=branches)
    record.output_tokens, record.first_token, record.ended = 10, 1.0, 5.0
    assert record.time_per_token == 1.0
