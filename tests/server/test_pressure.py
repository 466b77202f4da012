"""A storm on the smallest legal pool: clients of every kind, a third of which leave, and afterwards nothing is different."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.tiny import RunningServer

CONTEXT = 256
BLOCK = 16
REQUESTS = 64
PROBE = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest.fixture(params=[("auto", 1.0), ("swap", 1.0), ("recompute", 1.0), ("auto", 1.5)], ids=str)
def cramped(tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """One longest request fits, or one and a half, and swapping has room."""
    mode, fit = request.param
    blocks = str(int(fit * CONTEXT / BLOCK))
    flags = ["--max-model-len", str(CONTEXT), "--block-size", str(BLOCK), "--num-gpu-blocks-override", blocks]
    flags += ["--max-num-seqs", "8", "--preemption-mode", mode]
    server = RunningServer(tiny_model, "--served-model-name", "tiny", *flags).wait_ready()
    yield server
    server.kill()


class Guest:
    """One client: what it asks, whether it stays, and what it was given."""

    def __init__(self, number: int, draw: random.Random) -> None:
        self.chat = draw.random() < 0.3
        self.leaves = draw.random() < 0.4
        self.patience = draw.uniform(0.0, 0.3)
        self.events = draw.randrange(0, 30)
        self.arrives_after = draw.uniform(0.0, 0.2)
        length = draw.choice([3, 30, 100])
        self.tokens = 90 if self.leaves else draw.choice([1, 8, 40, 90])
        most = CONTEXT // BLOCK // -(-(length + 40 + self.tokens) // BLOCK)  # branches that fit, with room for a template
        self.n = min(most, draw.choice([1, 1, 2, 4]))
        self.fields: dict[str, Any] = {
            "n": self.n,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "temperature": draw.choice([0.0, 1.0]),
            "seed": number,
            "stream": draw.random() < 0.5,
        }
        if self.chat:
            self.fields["messages"] = [{"role": "user", "content": "word " * (length // 3)}]
        else:
            self.fields["prompt"] = [draw.randrange(10, 800) for _ in range(length)]
        if self.fields["stream"]:
            self.fields["stream_options"] = {"include_usage": True}
        self.answer: bytes | None = None

    async def visit(self, client: httpx.AsyncClient) -> None:
        """Those that leave do so after some events of a stream, or some time without an answer."""
        await asyncio.sleep(self.arrives_after)
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        try:
            async with (
                asyncio.timeout(self.patience if self.leaves and not self.fields["stream"] else None),
                client.stream("POST", path, json=self.fields) as response,
            ):
                found = bytearray()
                async for piece in response.aiter_raw():
                    found += piece
                    if self.leaves and self.fields["stream"] and found.count(b"data: ") > self.events:
                        return
                assert response.status_code == 200, bytes(found)
                self.answer = bytes(found)
        except TimeoutError:
            return

    def check(self) -> None:
        """The answer is there, complete, and as long as it was asked to be."""
        if self.answer is None:
            assert self.leaves
            return
        texts, reasons, usage = self._streamed() if self.fields["stream"] else self._whole()
        assert reasons == ["length"] * self.n and all(texts)
        assert usage["completion_tokens"] == self.n * self.tokens
        if self.fields["temperature"] == 0.0:
            assert len(set(texts)) == 1

    def _whole(self) -> tuple[list[str], list[str], dict[str, int]]:
        answer = json.loads(self.answer or b"")
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        texts = [choice["message"]["content"] if self.chat else choice["text"] for choice in choices]
        return texts, [choice["finish_reason"] for choice in choices], answer["usage"]

    def _streamed(self) -> tuple[list[str], list[str], dict[str, int]]:
        *events, done = (self.answer or b"").decode().strip().split("\n\n")
        assert done == "data: [DONE]"
        usage: dict[str, int] = {}
        texts, reasons = [""] * self.n, [""] * self.n
        for event in events:
            chunk = json.loads(event.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                index = choice["index"]
                assert not reasons[index], "nothing follows the end of a choice"
                texts[index] += choice["delta"].get("content", "") if self.chat else choice["text"]
                reasons[index] = choice["finish_reason"] or ""
        return texts, reasons, usage


async def storm(url: str, guests: list[Guest]) -> None:
    """Every guest has a connection of its own, so that leaving closes it."""

    async def come_and_go(guest: Guest) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await guest.visit(client)

    await asyncio.gather(*map(come_and_go, guests))


def probe(server: RunningServer) -> str:
    answer = httpx.post(f"{server.url}/v1/completions", json=PROBE, timeout=60).json()
    return str(answer["choices"][0]["text"])


def open_files(server: RunningServer) -> tuple[int, ...]:
    """Open descriptors of the API process and of the engine process."""
    return tuple(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (server.process.pid, server.engine_pid()))


def settled_files(server: RunningServer) -> tuple[int, ...]:
    """The fewest in a while: connections of earlier requests may still be closing."""
    samples = []
    for _ in range(20):
        samples.append(open_files(server))
        time.sleep(0.025)
    return tuple(map(min, *samples))


def test_a_storm_leaves_nothing_behind(cramped: RunningServer) -> None:
    before = probe(cramped)
    assert CONTEXT // BLOCK <= cramped.metric("octavo_kv_blocks", state="total") <= 3 * CONTEXT // BLOCK // 2
    files = settled_files(cramped)
    draw = random.Random(20)
    guests = [Guest(number, draw) for number in range(REQUESTS)]
    asyncio.run(storm(cramped.url, guests))
    for guest in guests:
        guest.check()
    left = sum(guest.answer is None for guest in guests)
    assert REQUESTS // 6 <= left <= REQUESTS // 2, "about a third leave before they have their answer"
    cramped.wait_metric("octavo_kv_blocks", 0, state="used")
    for name in ("octavo_requests_running", "octavo_requests_waiting", "octavo_requests_swapped", "octavo_requests_pending"):
        cramped.wait_metric(name, 0)
    assert cramped.metric("octavo_preemptions_total") > 0
    swapped = [cramped.metric("octavo_swapped_blocks_total", direction=direction) for direction in ("out", "in")]
    mode = cramped.process.args[-1]  # type: ignore[index]  # a list, as it was given
    assert mode == "auto" or (min(swapped) > 0) == (mode == "swap")
    assert cramped.metric("octavo_engine_restarts_total") == 0
    assert probe(cramped) == before
    deadline = time.monotonic() + 20
    while (now := open_files(cramped)) != files:
        assert time.monotonic() < deadline, f"open files {files} before, {now} after"
        time.sleep(0.05)
    assert cramped.stop() == 0
