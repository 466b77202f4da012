"""Lets requests arrive at an engine and watches it: the same loop for an engine that computes and for one in virtual time.

Knows neither models nor policies. Every request is answered in full: its length is its ``max_tokens``. What is said of the
engine as a whole (requests at once, slots, tokens a second) is a mean over time while it is under load: see ``_Watch``.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from octavo.bench.report import percentile
from octavo.clock import Clock
from octavo.metrics import EngineStats
from octavo.outputs import TokenDelta
from octavo.request import Request

SAMPLED = 7
"""Steps from one look at the engine to the next: a number that lengths are seldom multiples of."""

ENOUGH = 0.2
"""Part of a run that must have been under load for means to be taken of that part alone."""

SLOTS = ("tokens", "reserved", "internal", "rounding", "unusable", "cached", "free", "saved")
"""Fields of the KV cache's record of its slots."""


class Branch(Protocol):
    """One sequence of a request: what is counted of it. It holds a ``row`` of at least 0 while it runs."""

    row: int

    @property
    def num_output_tokens(self) -> int: ...


class Scheduler(Protocol):
    """What is looked at."""

    @property
    def live_sequences(self) -> Sequence[Branch]: ...

    def kv_slots(self) -> Any:
        """The KV cache at this moment: ``total`` and the fields ``SLOTS``."""
        ...

    def blocks_of_requests(self) -> Iterable[tuple[str, int, int]]:
        """Of every request that holds blocks: its id, the entries of its block tables, and the blocks that these are."""
        ...


class Engine(Protocol):
    """What is driven: the engine's own interface, as far as needed."""

    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def has_work(self) -> bool: ...
    def add(self, request: Request) -> None: ...
    def abort(self, request_id: str) -> object: ...
    def step(self) -> list[TokenDelta]: ...
    def stats(self) -> EngineStats: ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, ``at`` so many seconds after the beginning. Each of its ``branches`` becomes ``output_len`` tokens long, which
    is what its latency is divided by."""

    at: float
    request: Request
    output_len: int
    branches: int = 1


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a trace. Times in seconds.

    ``normalized_latency`` is the mean over requests of end-to-end latency by output length, ``latency_percentiles`` are of the
    same numbers, by percent as text. ``gave_up``: the mean was certain to pass the limit, so the run was ended and the mean is
    a lower bound. ``seconds``: from the first arrival to the last token. Mean counts under load: ``requests_at_once``,
    ``sequences_at_once``, ``output_rate`` in tokens a second (of all branches together) and ``slots``. ``saved_at_end``: of the
    entries of block tables that requests have at their longest, when they end or a step before their first branch does, the
    part that refers to a block of another branch.
    """

    normalized_latency: float
    latency_percentiles: dict[str, float]
    gave_up: bool
    num_requests: int
    num_finished: int
    output_tokens: int
    seconds: float
    loaded_seconds: float
    requests_at_once: float
    sequences_at_once: float
    output_rate: float
    slots: dict[str, float]
    total_slots: int
    preemptions: int
    swapped_blocks: int
    copied_blocks: int
    steps: int
    saved_at_end: float = 0.0

    @property
    def whole_rate(self) -> float:
        """Tokens a second from the first arrival to the last token: the same stretch of two runs, also where nobody waits."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_of_allocated(self) -> float:
        """Part of the allocated slots that holds tokens."""
        allocated = sum(self.slots[name] for name in ("tokens", "reserved", "internal", "rounding"))
        return self.slots["tokens"] / allocated if allocated else 1.0

    def part_of_wanted(self, *names: str) -> float:
        """Part of the slots that somebody asks for: all but free ones while nobody waits for them."""
        wanted = self.total_slots - self.slots["cached"] - self.slots["free"]
        return sum(self.slots[name] for name in names) / wanted if wanted else 0.0

    @property
    def saved_by_sharing(self) -> float:
        """Blocks that sharing saves, as a part of those that there would be without."""
        used = self.slots["tokens"] + self.slots["internal"]
        return self.slots["saved"] / (used + self.slots["saved"]) if used else 0.0


@dataclass(slots=True)
class _Watch:
    """Means over time. Requests that arrive over time: from the tenth part of them on, when the engine has filled, to the last
    arrival. Those that are all there at once: as long as some wait, or always if none ever does."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*SLOTS, "requests", "sequences"), 0.0))
    seconds: float = 0.0
    tokens: int = 0

    def add(self, seconds: float, tokens: int, state: dict[str, float]) -> None:
        self.seconds += seconds
        self.tokens += tokens
        for name, value in state.items():
            self.sums[name] += value * seconds

    def mean(self, name: str) -> float:
        return self.sums[name] / self.seconds if self.seconds else 0.0


def replay(engine: Engine, arrivals: Sequence[Arrival], clock: Clock, *, limit: float | None = None) -> Replayed:
    """Let ``arrivals``, in order, come to an idle engine.

    Args:
        limit: seconds a token; once the mean normalized latency is certain to be above, the rest is aborted.
    """
    return _Run(engine, arrivals, clock, limit).result()


class _Run:
    """One replay."""

    def __init__(self, engine: Engine, arrivals: Sequence[Arrival], clock: Clock, limit: float | None) -> None:
        self._engine, self._clock, self._limit = engine, clock, limit
        self._arrivals = {arrival.request.id: arrival for arrival in arrivals}
        self._pending = deque(arrivals)
        self._unfinished: dict[str, Arrival] = {}
        self._latencies: list[float] = []
        self._finished_tokens = self._num_finished = 0
        self._start = clock()
        self._all_at_once = not arrivals or arrivals[-1].at == 0.0
        self._loaded_from = arrivals[len(arrivals) // 10].at if arrivals else 0.0
        self._loaded, self._whole = _Watch(), _Watch()
        self._before = engine.stats()
        self._gave_up = False
        self._branched = any(arrival.branches > 1 for arrival in arrivals)
        self._holdings: dict[str, tuple[int, int]] = {}

    def result(self) -> Replayed:
        seen_at, seen_tokens = self._clock(), 0
        steps = 0
        while self._pending or self._engine.has_work:
            self._let_come()
            if not self._engine.has_work:
                self._clock.sleep_until(self._start + self._pending[0].at)
                seen_at = self._clock()
                continue
            self._step()
            steps += 1
            if steps % SAMPLED == 0 or not self._engine.has_work:
                now, live = self._clock(), self._engine.scheduler.live_sequences
                tokens = self._output_tokens(live)
                self._look(now - seen_at, tokens - seen_tokens, live)
                seen_at, seen_tokens = now, tokens
                if self._is_lost(now):
                    self._give_up()
        return self._summary(self._clock() - self._start, steps)

    def _let_come(self) -> None:
        now = self._clock()
        while self._pending and self._start + self._pending[0].at <= now:  # the very sum that is slept until
            arrival = self._pending.popleft()
            self._unfinished[arrival.request.id] = arrival
            self._engine.add(msgspec.structs.replace(arrival.request, arrival_time=self._start + arrival.at))

    def _step(self) -> None:
        if self._branched:  # before each step, because what ends in it is gone afterwards
            for request_id, entries, blocks in self._engine.scheduler.blocks_of_requests():
                if entries >= self._holdings.get(request_id, (0, 0))[0]:  # less when branches end one by one
                    self._holdings[request_id] = entries, blocks
        for delta in self._engine.step():
            if delta.metrics is not None and delta.metrics.finished_time is not None:
                arrival = self._unfinished.pop(delta.request_id)
                self._latencies.append(delta.metrics.finished_time / arrival.output_len)
                self._finished_tokens += arrival.output_len * arrival.branches
                self._num_finished += 1

    def _output_tokens(self, live: Sequence[Branch]) -> int:
        """So far, of all branches: counted in sequences, because beams are told of when their search has ended."""
        return self._finished_tokens + sum(seq.num_output_tokens for seq in live)

    def _look(self, seconds: float, tokens: int, live: Sequence[Branch]) -> None:
        stats, slots = self._engine.stats(), self._engine.scheduler.kv_slots()
        state = {name: float(getattr(slots, name)) for name in SLOTS}
        state["requests"] = float(stats.num_running)
        state["sequences"] = float(sum(seq.row >= 0 for seq in live))
        now = self._clock() - self._start
        arriving = bool(self._pending) and now >= self._loaded_from
        waited_for = stats.num_waiting + stats.num_swapped > 0
        if waited_for if self._all_at_once else arriving:
            self._loaded.add(seconds, tokens, state)
        self._whole.add(seconds, tokens, state)

    def _is_lost(self, now: float) -> bool:
        """Whether the mean will be above the limit however fast the rest is."""
        if self._limit is None:
            return False
        waited = sum((now - self._start - arrival.at) / arrival.output_len for arrival in self._unfinished.values())
        return sum(self._latencies) + waited > self._limit * len(self._arrivals)

    def _give_up(self) -> None:
        now = self._clock()
        self._gave_up = True
        for request_id, arrival in self._unfinished.items():
            self._engine.abort(request_id)
            self._latencies.append((now - self._start - arrival.at) / arrival.output_len)
        self._unfinished.clear()
        self._pending.clear()
        while self._engine.has_work:
            self._engine.step()

    def _summary(self, seconds: float, steps: int) -> Replayed:
        watch = self._loaded if self._loaded.seconds > ENOUGH * self._whole.seconds else self._whole
        stats, before = self._engine.stats(), self._before
        total = self._engine.scheduler.kv_slots().total
        latencies = self._latencies or [0.0]
        entries, blocks = (sum(counts) for counts in zip(*self._holdings.values(), strict=True)) if self._holdings else (1, 1)
        return Replayed(
            normalized_latency=sum(latencies) / max(1, len(self._arrivals)),
            latency_percentiles={str(p): percentile(latencies, p) for p in (50, 90, 99)},
            gave_up=self._gave_up,
            num_requests=len(self._arrivals),
            num_finished=self._num_finished,
            output_tokens=self._finished_tokens,
            seconds=seconds,
            loaded_seconds=watch.seconds,
            requests_at_once=watch.mean("requests"),
            sequences_at_once=watch.mean("sequences"),
            output_rate=watch.tokens / watch.seconds if watch.seconds else 0.0,
            slots={name: watch.mean(name) for name in SLOTS},
            total_slots=total,
            preemptions=stats.preemptions - before.preemptions,
            swapped_blocks=stats.swaps_in + stats.swaps_out - before.swaps_in - before.swaps_out,
            copied_blocks=stats.copy_on_writes - before.copy_on_writes,
            steps=steps,
            saved_at_end=1 - blocks / entries,
        )
