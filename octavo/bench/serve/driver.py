"""Sends every prompt when it is due and collects what came of it. Owns the order of events of a run, and its progress line.

A request's times begin when it is sent: one that waits for ``--max-concurrency`` has not been. Knows no statistics.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.bench.serve.client import LoadClient, Outcome
from octavo.bench.serve.data import Prompt
from octavo.bench.serve.options import LoadOptions

_TICK = 0.5


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``outcomes`` in the order of ``prompts``. ``duration``: seconds from the first arrival to the last answer."""

    prompts: list[Prompt]
    outcomes: list[Outcome]
    duration: float
    request_rate: float


class Driver:
    """Of one server. ``bodies`` of requests are made before the clock runs."""

    def __init__(self, options: LoadOptions, *, model: str) -> None:
        self._options = options
        self._model = model
        self._encode = msgspec.json.Encoder().encode

    def run(self, prompts: Sequence[Prompt], due: Sequence[float], *, rate: float, warmups: Sequence[Prompt] = ()) -> Run:
        """One measurement, after the warm-ups. ``due``: seconds from the start."""
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._measure(list(prompts), due, rate, warmups))

    async def _measure(self, prompts: list[Prompt], due: Sequence[float], rate: float, warmups: Sequence[Prompt]) -> Run:
        options = self._options
        client = LoadClient(options.url, options.path, headers=options.headers, insecure=options.insecure)
        bodies = [self._encode(self.body(prompt)) for prompt in prompts]
        await asyncio.gather(*(client.send(self._encode(self.body(prompt))) for prompt in warmups))
        slots = asyncio.Semaphore(options.max_concurrency or len(bodies))
        with Progress(len(bodies), disabled=options.disable_tqdm) as progress:
            start = time.perf_counter()
            tasks = []
            for body, at in zip(bodies, due, strict=True):
                await _sleep_until(start + at)
                tasks.append(asyncio.create_task(_one(client, body, slots, progress)))
            outcomes = await asyncio.gather(*tasks)
            duration = time.perf_counter() - start
        client.close()
        return Run(prompts=prompts, outcomes=outcomes, duration=duration, request_rate=rate)

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """A request's JSON."""
        said: dict[str, Any] = {"prompt": prompt.text}
        if self._options.is_chat:
            said = {"messages": [{"role": "user", "content": prompt.text}]}
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self._model, **said, "max_tokens": prompt.output_len, **streaming, **self._options.fields}


async def _one(client: LoadClient, body: bytes, slots: asyncio.Semaphore, progress: "Progress") -> Outcome:
    arrived = time.perf_counter()
    async with slots:
        outcome = await client.send(body, on_start=progress.started)
    outcome.queued = outcome.started - arrived
    progress.ended(outcome)
    return outcome


async def _sleep_until(when: float) -> None:
    delay = when - time.perf_counter()
    if delay > 0:
        await asyncio.sleep(delay)


class Progress:
    """A live line on a terminal: how many are done, running and failed, and how fast tokens come."""

    def __init__(self, total: int, *, disabled: bool) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, unit="req", dynamic_ncols=True, disable=disabled or None)
        self._running = self._failed = self._tokens = 0
        self._start = time.perf_counter()
        self._ticker: asyncio.Task[None] | None = None

    def __enter__(self) -> "Progress":
        if not self._bar.disable:
            self._ticker = asyncio.create_task(self._tick())
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._show()
        self._bar.close()

    def started(self) -> None:
        self._running += 1

    def ended(self, outcome: Outcome) -> None:
        self._running -= 1
        self._failed += bool(outcome.error)
        self._tokens += len(outcome.itl) + bool(outcome.ttft)
        self._bar.update()

    async def _tick(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                self._show()
                await asyncio.sleep(_TICK)

    def _show(self) -> None:
        if not self._bar.disable:
            seconds = max(1e-9, time.perf_counter() - self._start)
            self._bar.set_postfix_str(
                f"{self._running} running, {self._failed} failed, {self._tokens / seconds:.0f} tok/s of answered ones"
            )
