"""One client's request on its way through the engine: submit its prompts, turn deltas into updates, end it once.

Whatever happens (done, refused, client gone, engine lost), ``close`` aborts what the engine still holds, and ``settle``, after
the answer is out, counts the request. Knows nothing of JSON; completions and chat put the updates into their shapes.
"""

import asyncio
import contextlib
import itertools
import math
import os
import time

import msgspec

from octavo.output_processor import ChoiceUpdate, OutputProcessor
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.server import errors, faults
from octavo.server.accounting import RequestRecord, ServerMetrics
from octavo.server.body import ClientGone
from octavo.server.engine_client import EngineClient, Mailbox
from octavo.server.request_log import Log
from octavo.tokenizer import Tokenizer

ANSWER_WAIT = 1.0
"""Seconds for which a stream's response line waits for the engine's first word, so that a refusal can be a status code."""

ACCOUNT_WAIT = 1.0
"""Seconds for which the books of an answered request wait for the engine's account of one that was ended from here."""

LEFT_ACCOUNT_WAIT = 30.0
"""The same for a request whose client left: nobody waits for its end, and only the engine knows all that it cost."""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt as the client wrote it (None: as token ids) and as the engine takes it. ``offsets`` are the characters that each
    token stands for, if the client asked."""

    text: str | None
    token_ids: list[int]
    offsets: list[tuple[int, int]] | None = None


class Generation:
    """All prompts of one HTTP request. ``record`` is what its log line will say. ``prompt_only``: the client gets, and is
    charged for, nothing of what the engine generates."""

    def __init__(
        self,
        requests: list[Request],
        *,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: ServerMetrics,
        record: RequestRecord,
        log: Log,
        prompt_only: bool = False,
    ) -> None:
        self._requests = requests
        self._client = client
        self._metrics = metrics
        self.log = log
        self._mailbox = Mailbox()
        self._closed = False
        self._failure: Exception | None = None
        self._counts = False
        self._charged = True
        self._generated = 0
        self._cached: dict[str, int] = {}
        self._prompt_only = prompt_only
        offsets = itertools.accumulate((request.params.n for request in requests), initial=0)
        self._processors = {
            request.id: OutputProcessor(request, tokenizer, first_index=first)
            for request, first in zip(requests, offsets, strict=False)
        }
        self._unfinished = dict.fromkeys(self._processors)
        self._last_token: dict[int, float] = {}
        self.record = record
        record.prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        record.n = requests[0].params.n
        record.branches = self.params.num_branches if self._comes_late else record.n
        record.model_requests = len(requests)

    @property
    def params(self) -> SamplingParams:
        """What every prompt is decoded by."""
        return self._requests[0].params

    @property
    def _comes_late(self) -> bool:
        """Whether nothing is known of the outputs before all of them have ended."""
        return self.params.selects or self.params.beam is not None

    def submit(self) -> None:
        """Gives every prompt to the engine, or none. Raises ``ApiError``."""
        try:
            for request in self._requests:
                self._client.submit(request, self._mailbox)
        except Exception:
            self.close()
            raise
        self._counts = True

    async def answered(self) -> None:
        """Waits a moment for the engine's first word. Raises ``ApiError`` when that is a refusal."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_WAIT):
                    await self._mailbox.wait()
        except Exception as error:
            self._note_failure(error)
            raise

    async def updates(self) -> list[ChoiceUpdate]:
        """Waits for what is new and returns it, in order; nothing when every choice is complete. Raises ``ApiError`` and
        ``ClientGone``, after everything that came before them."""
        if self._failure is not None:
            raise self._failure
        updates: list[ChoiceUpdate] = []
        try:
            while self._unfinished and not updates:
                deltas = await self._mailbox.get()
                now = time.monotonic()
                for delta in deltas:
                    updates += self._process(delta, now)
        except Exception as error:
            self._note_failure(error)
            if not updates:
                raise
            self._failure = error
        return updates

    def client_gone(self) -> None:
        """The client closed its connection: nobody will read the rest."""
        if not self._closed:
            self.record.client_gone = True
            self._mailbox.fail(ClientGone())
            self.close()

    def close(self) -> None:
        """Ends what still runs. May be called again."""
        if self._closed:
            return
        self._closed = True
        for request_id in self._unfinished:
            self._client.abort(request_id)
        self.record.ended = time.monotonic()

    async def settle(self) -> int:
        """Fills the record with what the engine says the request cost, and counts it unless it was refused. Returns the tokens
        of its prompts and its outputs to charge, none for a refusal and for a failure of the server's before the client has
        got anything.

        Outputs are also what nobody sees: candidates of ``best_of`` that were not chosen, the other beams of a search, and what
        a client that left has not read."""
        for metrics in await self._mailbox.accounts(LEFT_ACCOUNT_WAIT if self.record.client_gone else ACCOUNT_WAIT):
            self._account(metrics)
        if not self._prompt_only and (self.record.client_gone or self.params.beam is not None):
            self.record.output_tokens = max(self.record.output_tokens, self._generated)
        if not self._counts:
            return 0
        self._counts = False
        self._metrics.observe(self.record)
        return self.record.prompt_tokens + self.record.output_tokens if self._charged else 0

    def _note_failure(self, error: Exception) -> None:
        """A failure is the request's outcome, but for a refusal: what was never taken is in no statistics of requests."""
        record = self.record
        if isinstance(error, ClientGone):
            return
        if isinstance(error, errors.ApiError) and error.status < 500:
            self._counts = False
        else:
            record.finish_reasons += ["error"] * (record.n * record.model_requests - len(record.finish_reasons))
            self._charged = record.stream and record.output_tokens > 0

    def _process(self, delta: TokenDelta, now: float) -> list[ChoiceUpdate]:
        if delta.error is not None:
            error_id = os.urandom(6).hex()
            self.log.error("engine_error", message=delta.error, request_id=self.record.request_id, error_id=error_id)
            raise errors.internal(error_id)
        faults.point("detokenize")
        processor = self._processors[delta.request_id]
        processed = processor.process(delta)
        if processed.abort:
            self._client.abort(delta.request_id, delta.branch)
        if processor.finished:
            self._unfinished.pop(delta.request_id, None)
        if (more := delta.num_cached_tokens - self._cached.get(delta.request_id, 0)) > 0:
            self._cached[delta.request_id] = delta.num_cached_tokens
            self.record.cached_tokens += more
        for update in processed.updates:
            self._clock(update, now)
            if update.finish_reason is not None:
                self.record.finish_reasons.append(update.finish_reason)
        return processed.updates

    def _clock(self, update: ChoiceUpdate, now: float) -> None:
        """Times between tokens; several tokens at once share the time since the last."""
        record, count = self.record, len(update.token_ids)
        if not self._prompt_only:
            record.output_tokens += count + update.num_discarded
            record.longest_output = max(record.longest_output, update.num_tokens)
        if not count:
            return
        if record.first_token is None:
            record.first_token = now
        last = self._last_token.get(update.index)
        if last is not None:
            self._metrics.inter_token_latency.observe((now - last) / count, count)
        self._last_token[update.index] = now

    def _account(self, metrics: RequestMetrics) -> None:
        record = self.record
        self._generated += metrics.num_generated_tokens
        if metrics.queue_time is not None:
            record.queue_time = min(math.inf if record.queue_time is None else record.queue_time, metrics.queue_time)
        if self._comes_late and record.first_token is not None and metrics.first_token_time is not None:
            record.first_token = min(record.first_token, record.arrival + metrics.first_token_time)
        record.preemptions += metrics.num_preemptions
        record.swaps += metrics.num_swaps
        record.blocks_allocated += metrics.blocks_allocated
        record.blocks_shared += metrics.blocks_shared
        record.copy_on_writes += metrics.copy_on_writes
