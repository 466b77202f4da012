"""What operators fear, done to a running server on purpose, each with what has to come of it.

``python -m tests.server.chaos MODEL [SECONDS]`` does all of it at full length; the tests do the same, shorter.
"""

import asyncio
import json
import operator
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

from tests.server.prober import Prober
from tests.server.tiny import RunningServer

COMPLETIONS = "/v1/completions"
PROBE = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "logprobs": 1}
PATIENCE = 120.0
DRAIN_SECONDS = 30.0
"""The default of ``--drain-timeout``."""


def probe(server: RunningServer) -> bytes:
    """The answer to a fixed prompt, but for its id and its time."""
    answer = httpx.post(server.url + COMPLETIONS, json=PROBE, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return json.dumps(answer.json()["choices"]).encode()


def open_files(server: RunningServer) -> tuple[int, ...]:
    """Open descriptors of the API process, of the engine process and of each that compiles grammars."""
    pids = (server.process.pid, server.engine_pid(), *server.grammar_pids())
    return tuple(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


@dataclass
class Baseline:
    """A server at rest, once every process that it starts has been started: what must be the same after everything."""

    server: RunningServer
    answer: bytes = b""
    files: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.answer = probe(self.server)
        confined = {"prompt": "hi", "guided_choice": ["the first grammar"]}
        assert httpx.post(self.server.url + COMPLETIONS, json=confined, timeout=PATIENCE).status_code == 200
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
        while len(now := open_files(self.server)) != len(self.files) or any(map(operator.gt, now, self.files)):
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


async def stream(
    url: str, fields: dict[str, Any], *, leave_after: float | None = None, outcome: Outcome | None = None
) -> Outcome:
    """One streamed request on a connection of its own; its client may leave. ``outcome`` can be watched meanwhile."""
    outcome = outcome or Outcome()
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
                outcome.done = True
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


async def clients_that_leave(
    server: RunningServer, seconds: float, *, least: int = 10, a_second: int = 5, at_once: int = 12
) -> Counter[str]:
    """For a while, clients come, and five of them leave each second, at any moment of their request; on a slow machine for
    longer, until ``least`` have left and as many have stayed."""
    draw, ends, number = random.Random(1), time.monotonic() + seconds, 0
    found: Counter[str] = Counter()
    running: set[asyncio.Task[Outcome]] = set()
    next_leaver = time.monotonic()
    while time.monotonic() < ends or min(found["left"], found["length"]) < least:
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
    pid, killed = server.engine_pid(), asyncio.Event()
    outcomes: list[Outcome] = []

    async def client(number: int) -> None:
        while not killed.is_set():  # one ends and the next begins, of lengths that do not end together
            outcomes.append(Outcome())
            await stream(server.url, long_request(number, 400 - 30 * number), outcome=outcomes[-1])

    clients = [asyncio.create_task(client(i)) for i in range(streams)]
    while sum(bool(outcome.text) and not outcome.finish_reason for outcome in outcomes) < min(4, streams):
        await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    killed.set()
    await asyncio.gather(*clients)
    for outcome in outcomes:
        assert outcome.done and outcome.kind in ("length", "engine_restarted")
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


async def sigterm_with_too_much(server: RunningServer, *, requests: int, tokens: int, patience: float) -> Counter[str]:
    """More than can be finished in time: each client gets its whole answer or is told, all within ``patience`` seconds, who
    comes later is sent away, and the process ends with 0."""
    ways = (stream, whole)  # of each, every third request is short
    work = [(ways[i % 2], long_request(i, tokens if i % 3 else 20)) for i in range(requests)]
    tasks = [asyncio.create_task(way(server.url, fields)) for way, fields in work]
    while not any(task.done() for task in tasks):
        states = [await asyncio.to_thread(server.metric, f"octavo_requests_{state}") for state in ("running", "waiting")]
        if sum(states) >= 0.9 * requests:
            break
        await asyncio.sleep(0.05)
    begin = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    while httpx.get(f"{server.url}/healthz/ready").status_code == 200:
        await asyncio.sleep(0.01)
    late = await whole(server.url, long_request(0))
    outcomes = await asyncio.gather(*tasks)
    assert await asyncio.to_thread(server.join) == 0
    took = time.monotonic() - begin
    assert late.status == 503 and late.retry_after > 0
    for outcome in outcomes:
        assert outcome.done and outcome.kind in ("length", "Service Unavailable"), outcome
    assert took < patience, f"{took:.1f} s after the signal"
    return Counter(outcome.kind for outcome in outcomes)


async def whole(url: str, fields: dict[str, Any]) -> Outcome:
    """One request that is answered at once."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as client:
        response = await client.post(COMPLETIONS, json=fields)
    answer = response.json()
    outcome = Outcome(status=response.status_code, done=True, retry_after=int(response.headers.get("retry-after", 0)))
    if response.status_code == 200:
        outcome.text, outcome.finish_reason = answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]
    else:
        outcome.error = answer["error"]
    return outcome


def bomb(number: int) -> dict[str, Any]:
    """A form of an answer that takes seconds or gigabytes to compile, none like another."""
    chain = "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(3000)) + '\nr3000: "a"'
    pattern = "(a|b|c){1,5000}d{1,5000}"
    lists = {"type": "array", "minItems": 1000, "items": {"type": "string", "pattern": pattern}}
    kinds: list[dict[str, Any]] = [
        {"guided_grammar": f"{chain}\n// {number}"},
        {"guided_json": {"type": "integer", "multipleOf": 9999991 + number, "minimum": 0, "maximum": 10**18}},
        {"guided_regex": f"(((a{{1,{900 + number}}}){{1,900}}){{1,900}}){{1,900}}"},
        {"guided_json": {"type": "array", "minItems": 100_000 + number, "maxItems": 200_000, "items": lists}},
    ]
    return kinds[number % len(kinds)]


async def grammar_bombs(server: RunningServer, count: int) -> tuple[Counter[str], float]:
    """Hostile grammars, all at once. Each is refused for what it is or sent away with the time after which to come again; ones
    that are meant are answered meanwhile. Returns what came of them, and what the slowest good one took.

    One thread sends all: a thread for each, with a client of its own, would keep more cores busy than the server has left.
    """

    async def send(number: int) -> str:
        fields = {"prompt": "hi", "max_tokens": 4, **bomb(number)}
        answer = await client.post(COMPLETIONS, json=fields, timeout=10 * PATIENCE)
        assert answer.status_code in (200, 400, 503), answer.text
        assert answer.status_code != 503 or int(answer.headers["retry-after"]) >= 1
        waits = f" after {answer.headers['retry-after']} s" if answer.status_code == 503 else ""
        return f"{answer.status_code}{waits}"

    slowest, number = 0.0, 0
    everything = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=everything, verify=False) as client:
        answers = [asyncio.create_task(send(i)) for i in range(count)]
        while not all(answer.done() for answer in answers):
            number, begin = number + 1, time.monotonic()
            good = await client.post(COMPLETIONS, json={"prompt": "hi", "guided_choice": [f"fine {number}"]})
            assert good.json()["choices"][0]["text"] == f"fine {number}"
            slowest = max(slowest, time.monotonic() - begin)
            await asyncio.sleep(0.1)
        return Counter([await answer for answer in answers]), slowest


def main(model: str, seconds: float) -> None:
    """All of it, on one server, and the end of it on another with the default time to drain."""
    found = Path(model) if Path(model).exists() else model
    flags = ["--max-num-seqs", "16", "--drain-timeout", "120"]
    server = RunningServer(found, *flags).wait_ready()
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
    for path in ("/ping", "/healthz/live"):
        with Prober(server.url, path) as prober:
            begin = time.monotonic()
            came, slowest = asyncio.run(grammar_bombs(server, 200))
            print(
                f"200 grammar bombs: {time.monotonic() - begin:.1f} s, a good one {slowest:.2f} s at most, {dict(came)}",
                flush=True,
            )
        print(f"{path} beside them: {prober.found}", flush=True)
        assert prober.found.statuses == [200]
        baseline.check()
    print("SIGTERM under load:", dict(asyncio.run(sigterm_under_load(server))), flush=True)
    drained = RunningServer(found, "--max-num-seqs", "64").wait_ready()
    came = asyncio.run(sigterm_with_too_much(drained, requests=200, tokens=1500, patience=DRAIN_SECONDS + 5))
    print("SIGTERM with more than can be finished:", dict(came), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 120.0)
