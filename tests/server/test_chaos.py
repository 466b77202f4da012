"""Each thing that operators fear ends as it was promised and leaves nothing behind. Also: the bits through HTTP under load."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo import LLM, SamplingParams
from octavo.outputs import RequestOutput
from tests.server import chaos
from tests.server.prober import Prober
from tests.server.tiny import RunningServer

REQUESTS = 48


@pytest.fixture(scope="module")
def stormy(tiny_model: Path) -> Iterator[RunningServer]:
    flags = ["--served-model-name", "tiny", "--max-num-seqs", "8", "--max-num-queued-reqs", "64"]
    server = RunningServer(tiny_model, *flags).wait_ready()
    yield server
    server.kill()


@pytest.fixture
def baseline(stormy: RunningServer) -> Iterator[chaos.Baseline]:
    before = chaos.Baseline(stormy)
    yield before
    before.check()


def test_clients_that_leave_at_any_moment(stormy: RunningServer, baseline: chaos.Baseline) -> None:
    engine = stormy.engine_pid()
    found = asyncio.run(chaos.clients_that_leave(stormy, 3.0))
    assert found["left"] >= 10 and found["length"] >= 10
    assert stormy.engine_pid() == engine


def test_the_engine_killed_under_load(stormy: RunningServer, baseline: chaos.Baseline) -> None:
    found = asyncio.run(chaos.kill_engine(stormy))
    assert found["engine_restarted"] >= 1


def test_a_queue_of_two_thousand(stormy: RunningServer, baseline: chaos.Baseline) -> None:
    engine = stormy.engine_pid()
    found = asyncio.run(chaos.queue_of(stormy, 2000, limit=64))
    assert found["Service Unavailable"] > 0 and stormy.engine_pid() == engine


def test_a_prompt_of_a_million_tokens(stormy: RunningServer, baseline: chaos.Baseline) -> None:
    engine = stormy.engine_pid()
    chaos.million_tokens(stormy)
    assert stormy.engine_pid() == engine


def test_sigterm_under_load(tiny_model: Path) -> None:
    server = RunningServer(tiny_model, "--served-model-name", "tiny", "--max-num-seqs", "8").wait_ready()
    try:
        asyncio.run(chaos.sigterm_under_load(server))
    finally:
        server.kill()


def test_sigterm_with_more_than_can_be_finished(tiny_model: Path) -> None:
    server = RunningServer(tiny_model, "--max-num-seqs", "4", "--drain-timeout", "1.5").wait_ready()
    try:
        came = asyncio.run(chaos.sigterm_with_too_much(server, requests=150, tokens=450, patience=60))
        assert came["Service Unavailable"] > 0
    finally:
        server.kill()


def test_hostile_grammars_beside_good_ones_and_probes(stormy: RunningServer, baseline: chaos.Baseline) -> None:
    engine = stormy.engine_pid()
    with Prober(stormy.url) as live, Prober(stormy.url, "/ping") as ready:
        came, _ = asyncio.run(chaos.grammar_bombs(stormy, 12))
    assert came["400"] > 0 and live.found.statuses == ready.found.statuses == [200]
    assert live.found.count > 3 and stormy.engine_pid() == engine


# ---------------------------------------------------------------------------------------------------------------- the bits


def work() -> list[tuple[list[int], dict[str, Any]]]:
    """Prompts, half of which begin like others, and fields that HTTP and a program have in common."""
    draw = random.Random(11)
    shared = [draw.randrange(10, 800) for _ in range(60)]
    found = []
    for number in range(REQUESTS):
        prompt = [*shared[: draw.choice([0, 0, 20, 50, 60])], *(draw.randrange(10, 800) for _ in range(draw.randint(1, 60)))]
        fields: dict[str, Any] = {"max_tokens": draw.randint(1, 80), "seed": number, "n": draw.choice([1, 1, 2, 3])}
        fields |= {"temperature": draw.choice([0.0, 0.7, 1.3]), "ignore_eos": draw.random() < 0.5, "logprobs": 3}
        if draw.random() < 0.3:
            fields["repetition_penalty"] = 1.3
        if draw.random() < 0.2:
            fields |= {"top_k": 20, "top_p": 0.8}
        found.append((prompt, fields))
    return found


def offline(model: Path) -> list[RequestOutput]:
    """Every request on its own."""
    llm = LLM(str(model), swap_space=0.01)
    try:
        return [llm.generate(ids, SamplingParams(**fields), use_tqdm=False)[0] for ids, fields in work()]
    finally:
        llm.shutdown()


async def over_http(url: str) -> list[dict[str, Any]]:
    """All of it at random moments, beside clients that leave."""
    draw = random.Random(12)

    async def one(prompt: list[int], fields: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(draw.uniform(0.0, 0.2))
        async with httpx.AsyncClient(timeout=60, verify=False) as client:
            answer = await client.post(
                f"{url}/v1/completions",
                json={"prompt": prompt, "return_token_ids": True, "return_tokens_as_token_ids": True, **fields},
            )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def leave(number: int) -> None:
        await asyncio.sleep(draw.uniform(0.0, 0.2))
        await chaos.stream(url, chaos.long_request(number), leave_after=draw.uniform(0.0, 0.2))

    leavers = [asyncio.create_task(leave(number)) for number in range(REQUESTS // 2)]
    answers = await asyncio.gather(*(one(*item) for item in work()))
    await asyncio.gather(*leavers)
    return list(answers)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_bits_through_http_under_load_are_those_of_a_program(tiny_model: Path, policy: str) -> None:
    """On a pool in which few requests fit, with chunks so small that prompts are split."""
    flags = ["--served-model-name", "tiny", "--num-gpu-blocks-override", "40", "--max-num-seqs", "12"]
    flags += ["--max-num-batched-tokens", "48", "--scheduling-policy", policy, "--max-model-len", "256"]
    server = RunningServer(tiny_model, *flags).wait_ready()
    try:
        answers = asyncio.run(over_http(server.url))
        server.wait_metric("octavo_kv_blocks", 0, state="used")
        assert server.stop() == 0
    finally:
        server.kill()
    for answer, expected in zip(answers, offline(tiny_model), strict=True):
        for choice, output in zip(answer["choices"], expected.outputs, strict=True):
            assert choice["token_ids"] == output.token_ids
            assert (choice["text"], choice["finish_reason"]) == (output.text, output.finish_reason)
            assert choice["logprobs"]["token_logprobs"] == [
                entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs or [], strict=True)
            ]
