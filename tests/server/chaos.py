"""What operators fear, done to a running server on purpose, each with what has to come of it.

``python -m tests.server.chaos MODEL [SECONDS]`` does all of it at full length; the tests do the same, shorter.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.server.tiny import RunningServer

COMPLETIONS = "/v1/completions"
PROBE = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "logprobs": 1}
PATIENCE = 120.0


def probe(server: RunningServer) -> bytes:
    """The answer to a fixed prompt, but for its id and its time."""
    answer = httpx.post(server.url + COMPLETIONS, json=PROBE, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return json.dumps(answer.json()["choices"]).encode()


def open_files(server: RunningServer) -> tuple[int, ...]:
    """Open descriptors of the API process and of the engine process."""
    return tuple(len(os.listdir(f"/proc/{pid}/fd")) for pid in (server.process.pid, server.engine_pid()))


@dataclass
class Baseline:
    """A server at rest: what must be the same after everything."""

    server: RunningServer
    answer: bytes = b""
    files: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.answer = probe(self.server)
        self.files = min((self._rested() for _ in range(20)), default=())

    def _rested(self) -> tuple[int, ...]:
        time.sleep(0.02)
        return open_files(self.server)

    def check(self) -> None:
        """Everything is free, the same prompt gives the same bytes, and no file is left open."""
        self.server.wait_metric("octavo_kv_blocks", 0, state="used")
        for name in ("running", "waiting", "swapped", "pending"):
            self.server.wait_metric(f"octavo_requests_{name}", 0)
        assert probe(self.server) == self.answer
        deadline = time.monotonic() + 30
        while any(now > before for now, before in zip(open_files(self.server), self.files, strict=True)):
            assert time.monotonic() < deadline, f"open files: {self.files} before, {open_files(self.server)} after"
            time.sleep(0.05)
        assert httpx.get(f"{self.server.url}/healthz/ready").status_code == 200


@dataclass
class Outcome:
    """How one request ended: with its text, with an error, or because its client left."""

    status: int = 0
    text: str = ""
    finish_reason: str | None = None
    error: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    retry_after: int = 0
    left: bool = False

    @property
    def kind(self) -> str:
        if self.left:
            return "left"
        return self.error.get("type", "?") if self.error else str(self.finish_reason)


async def stream(url: str, fields: dict[str, Any], *, leave_after: float | None = None) -> Outcome:
    """One streamed request on a connection of its own; its client may leave."""
    outcome = Outcome()
    try:
        async with (
            asyncio.timeout(leave_after),
            httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as client,
            client.stream("POST", COMPLETIONS, json={**fields, "stream": True}) as response,
        ):
            outcome.status = response.status_code
            if response.status_code != 200:
                outcome.error = json.loads(await response.aread())["error"]
                outcome.retry_after = int(response.headers.get("retry-after", 0))
                return outcome
            rest = b""
            async for piece in response.aiter_bytes():
                *events, rest = (rest + piece).split(b"\n\n")
                for event in events:
                    _take(outcome, event)
            assert not rest
    except TimeoutError:
        outcome.left = True
    return outcome


def _take(outcome: Outcome, event: bytes) -> None:
    assert not outcome.done, "nothing follows the end of a stream"
    data = event.removeprefix(b"data: ")
    if data == b"[DONE]":
        outcome.done = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        outcome.error = chunk["error"]
        return
    for choice in chunk["choices"]:
        outcome.text += choice["text"]
        outcome.finish_reason = choice["finish_reason"] or outcome.finish_reason


def long_request(number: int, tokens: int = 200) -> dict[str, Any]:
    return {"prompt": f"Story number {number} begins", "max_tokens": tokens, "seed": number, "ignore_eos": True}


async def clients_that_leave(server: RunningServer, seconds: float, *, a_second: int = 5, at_once: int = 12) -> Counter[str]:
    """For a while, clients come, and five of them leave each second, at any moment of their request."""
    draw, ends, number = random.Random(1), time.monotonic() + seconds, 0
    found: Counter[str] = Counter()
    running: set[asyncio.Task[Outcome]] = set()
    next_leaver = time.monotonic()
    while time.monotonic() < ends:
        while len(running) < at_once:
            number += 1
            leaves = time.monotonic() >= next_leaver
            if leaves:
                next_leaver += 1 / a_second
            patience = draw.choice([0.0005, 0.005, 0.05, draw.uniform(0.0, 0.3)]) if leaves else None
            tokens = 400 if leaves else draw.choice([2, 20, 100])
            running.add(asyncio.create_task(stream(server.url, long_request(number, tokens), leave_after=patience)))
        ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        found.update(task.result().kind for task in ended)
    found.update(outcome.kind for outcome in await asyncio.gather(*running))
    assert set(found) <= {"left", "length"}, found
    return found


async def kill_engine(server: RunningServer, *, streams: int = 8) -> Counter[str]:
    """Every stream that had a token is told; the others are answered by the next engine."""
    pid, tasks = server.engine_pid(), [asyncio.create_task(stream(server.url, long_request(i, 400))) for i in range(streams)]
    await asyncio.sleep(0.1)
    while await asyncio.to_thread(server.metric, "octavo_requests_running") < min(4, streams):
        tasks += [asyncio.create_task(stream(server.url, long_request(i, 400))) for i in range(streams)]
        await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    outcomes = await asyncio.gather(*tasks)
    for outcome in outcomes:
        assert outcome.kind in ("length", "engine_restarted")
        assert outcome.done or outcome.status == 503
    await asyncio.to_thread(server.wait_metric, "octavo_ready", 1)
    return Counter(outcome.kind for outcome in outcomes)


async def queue_of(server: RunningServer, count: int, *, limit: int) -> Counter[str]:
    """More requests at once than may wait: those that are taken are answered, the others are told when to come again."""
    outcomes = await asyncio.gather(*(stream(server.url, long_request(i, 3)) for i in range(count)))
    for outcome in outcomes:
        assert outcome.kind == "length" or (outcome.status == 503 and 1 <= outcome.retry_after <= 60), outcome
    found = Counter(outcome.kind for outcome in outcomes)
    assert found["length"] >= min(count, limit)
    return found


def million_tokens(server: RunningServer) -> None:
    """Refused before it costs anything, as text and as token ids, and whether or not its body may be so long."""
    for prompt in ("word " * 800_000, "a" * 4_100_000, [5] * 1_000_000, [5] * 2_000_000):
        begin = time.monotonic()
        answer = httpx.post(server.url + COMPLETIONS, json={"prompt": prompt}, timeout=PATIENCE)
        assert answer.status_code in (400, 413), answer.text[:200]
        assert answer.json()["error"]["message"]
        assert time.monotonic() - begin < PATIENCE


async def sigterm_under_load(server: RunningServer, *, streams: int = 32) -> Counter[str]:
    """Whatever was taken is finished, the process ends with 0."""
    tasks = [asyncio.create_task(stream(server.url, long_request(i, 300))) for i in range(streams)]
    while not any(task.done() for task in tasks):  # the first answer comes after all have been taken
        states = [await asyncio.to_thread(server.metric, f"octavo_requests_{state}") for state in ("running", "waiting")]
        if sum(states) == streams:
            break
        await asyncio.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    outcomes = await asyncio.gather(*tasks)
    kinds = Counter(outcome.kind for outcome in outcomes)
    assert set(kinds) == {"length"} and all(outcome.done for outcome in outcomes), kinds
    assert await asyncio.to_thread(server.join) == 0
    return kinds


def main(model: str, seconds: float) -> None:
    """All of it, on one server."""
    flags = ["--max-num-seqs", "16", "--drain-timeout", "120"]
    server = RunningServer(Path(model) if Path(model).exists() else model, *flags).wait_ready()
    baseline = Baseline(server)
    print("clients that leave:", dict(asyncio.run(clients_that_leave(server, seconds))), flush=True)
    baseline.check()
    print("kill -9 of the engine:", dict(asyncio.run(kill_engine(server))), flush=True)
    baseline.check()
    print("a queue of 2,000:", dict(asyncio.run(queue_of(server, 2000, limit=512))), flush=True)
    baseline.check()
    million_tokens(server)
    print("a prompt of 1,000,000 tokens: refused", flush=True)
    baseline.check()
    print("SIGTERM under load:", dict(asyncio.run(sigterm_under_load(server))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 120.0)
