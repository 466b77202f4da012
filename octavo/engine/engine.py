"""The serving loop's heart: plan, compute, commit, with a queue of steps in flight between planning and committing.

Owns the queue; the scheduler decides, the executor computes. One thread calls it. With one step in flight it is synchronous,
with two the next step is planned while the current one is computed.
"""

import time
from collections import deque
from collections.abc import Sequence

from octavo.engine.scheduler import Scheduler
from octavo.executor.base import Executor, PendingOutput
from octavo.metrics import EngineStats
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step import SchedulerOutput

GRAMMAR_WAIT = 0.02
"""Seconds that a step with nothing to compute waits for a grammar."""


class EngineStuckError(RuntimeError):
    """There is work, nothing is in flight and nothing can be planned. A bug; waiting would never end it."""


class EngineBusyError(RuntimeError):
    """What was asked for needs an engine that has nothing else to do."""


class Engine:
    """``add`` and ``abort`` at any time, ``step`` while ``has_work``."""

    def __init__(self, scheduler: Scheduler, executor: Executor, *, max_in_flight: int = 1) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._max_in_flight = max_in_flight
        self._in_flight: deque[tuple[SchedulerOutput, PendingOutput]] = deque()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._in_flight)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ParameterError: it can never fit, or its id is taken.
        """
        self.scheduler.add(request)

    def abort(self, request_id: str, branch: int | None = None) -> RequestMetrics | None:
        """End a request or one of its branches; its blocks are free at once. Unknown ids are ignored. Returns the request's
        metrics if this ended it."""
        return self.scheduler.abort(request_id, branch)

    def step(self) -> list[TokenDelta]:
        """Plan as far ahead as allowed, wait for the oldest step in flight, and return what it brought for clients."""
        while len(self._in_flight) < self._max_in_flight and (plan := self.scheduler.schedule()):
            self._in_flight.append((plan, self.executor.submit(plan)))
        if not self._in_flight:
            if self.scheduler.await_grammar(GRAMMAR_WAIT):
                return []
            if self.scheduler.has_work:
                raise EngineStuckError("no sequence can be scheduled and none is in flight")
            return []
        plan, future = self._in_flight.popleft()
        try:
            output = future.result()
        except BaseException:
            self.scheduler.forget(plan)
            raise
        return self.scheduler.commit(plan, output)

    def pin_prefix(self, token_ids: Sequence[int], *, cache_scope: str = "") -> int:
        """Compute a prefix and keep its full blocks in the device pool; returns how many tokens they hold. Nothing else may be
        under way.

        Raises:
            ParameterError: it cannot be pinned; nothing is.
            EngineBusyError: there is other work.
        """
        if self.scheduler.has_work:
            raise EngineBusyError("a prefix can only be pinned while nothing is generated")
        self.scheduler.limits.check_pin(token_ids, cache_scope)
        kv = self.scheduler.kv
        tokens = list(token_ids[: len(token_ids) // kv.block_size * kv.block_size])
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        self.add(
            Request(
                id="pinned-prefix",
                prompt_token_ids=tokens,
                params=params,
                seed=0,
                arrival_time=time.monotonic(),
                cache_scope=cache_scope,
            )
        )
        while self.has_work:
            self.step()
        return kv.pin(tokens, cache_scope)

    def unpin_prefix(self, token_ids: Sequence[int], *, cache_scope: str = "") -> bool:
        """Let go of a pinned prefix, which then is cached like any other. Returns whether it was pinned."""
        return self.scheduler.kv.unpin(token_ids, cache_scope)

    def stats(self) -> EngineStats:
        return self.scheduler.snapshot()

    def shutdown(self) -> None:
        self.executor.shutdown()
