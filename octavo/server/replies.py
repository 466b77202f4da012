"""What completions and chat share in answering: the envelope of a response, the usage, and errors after a stream has begun."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.output_processor import ChoiceUpdate
from octavo.server import aside, errors, faults, sse
from octavo.server.body import ClientGone
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, Prompt
from octavo.server.pacing import Pacer
from octavo.server.protocol import SamplingFields, StreamOptions
from octavo.server.responses import Beam, Offsets, PromptTokensDetails, Usage


class Envelope(msgspec.Struct, kw_only=True):
    """What every chunk of one response repeats. ``warnings`` are said once."""

    id: str
    created: int
    model: str
    fingerprint: str
    warnings: list[str] | UnsetType
    cached_details: bool

    def warn(self, warnings: list[str]) -> None:
        """Adds to what is said once."""
        if warnings:
            self.warnings = [*(self.warnings or []), *warnings]

    def once(self) -> list[str] | UnsetType:
        """The warnings, the first time it is asked."""
        warnings, self.warnings = self.warnings, UNSET
        return warnings


class Usages:
    """Tokens of every prompt and choice so far. A prompt with n choices counts once; what was drawn and not chosen counts.

    A stream ends with them if ``wanted``, and has them in every chunk if ``continuous``."""

    def __init__(self, prompt_lengths: Sequence[int], n: int, *, details: bool, options: StreamOptions | None) -> None:
        self.wanted = options is not None and bool(options.include_usage)
        self.continuous = self.wanted and options is not None and bool(options.continuous_usage_stats)
        self._prompt_lengths = prompt_lengths
        self._n = n
        self._details = details
        self._generated = [0] * (len(prompt_lengths) * n)
        self._cached = [0] * len(prompt_lengths)

    def note(self, update: ChoiceUpdate) -> None:
        self._generated[update.index] = update.num_tokens + update.num_discarded
        prompt = update.index // self._n
        self._cached[prompt] = max(self._cached[prompt], update.cached_tokens)

    def total(self) -> Usage:
        return self._usage(sum(self._prompt_lengths), sum(self._generated), sum(self._cached))

    def in_chunk(self, index: int) -> Usage | UnsetType:
        """One choice's, with its prompt, if they are ``continuous``."""
        if not self.continuous:
            return UNSET
        prompt = index // self._n
        return self._usage(self._prompt_lengths[prompt], self._generated[index], self._cached[prompt])

    def _usage(self, prompt: int, generated: int, cached: int) -> Usage:
        details = PromptTokensDetails(cached) if self._details else None
        return Usage(prompt, prompt + generated, generated, details)


def offsets_of(prompt: Prompt, request: SamplingFields) -> Offsets:
    """The offsets of a prompt's tokens, where they were asked for."""
    return prompt.offsets if request.return_token_offsets else UNSET


def beams_of(update: ChoiceUpdate, *, with_token_ids: bool) -> list[Beam]:
    """The running beams as a chunk carries them."""
    return [
        Beam(
            text=beam.text,
            cumulative_logprob=beam.cumulative_logprob,
            token_ids=beam.token_ids if with_token_ids else UNSET,
        )
        for beam in update.beams or ()
    ]


class JsonResponse(Response):
    """A body that goes out in slices if it is long."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= aside.WRITTEN_AT_ONCE:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in aside.slices(bytes(self.body)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def json_response(value: msgspec.Struct) -> Response:
    return JsonResponse(msgspec.json.encode(value))


class Answer(Protocol):
    """An answer in the form of one of the APIs. It goes out when it is complete, by the first three, or while it grows."""

    def collect(self, updates: Sequence[ChoiceUpdate]) -> None:
        """Keeps what is new."""

    def whole(self) -> msgspec.Struct:
        """The body."""

    def forget(self) -> None:
        """Drops what was kept, a little at a time."""

    def events(self, updates: Sequence[ChoiceUpdate]) -> bytes:
        """The chunks for what is new; nothing if no client would see a difference."""

    def last_events(self) -> bytes:
        """After every choice is complete."""

    def failure_events(self, error: ApiError) -> bytes:
        """In place of everything that is left."""


async def reply(generation: Generation, answer: Answer, request: SamplingFields, *, receive: Receive) -> Response:
    """Begins the generation and answers: with events, once the engine has taken it, or all at once."""
    generation.submit()
    if not request.stream:
        async with sse.watch_client(receive, generation.client_gone):
            return await _whole(answer, generation)
    try:
        await generation.answered()
    except Exception:
        generation.close()
        raise
    events = _stream(answer, generation, interval=request.stream_interval)
    return sse.EventStream(events, generation.client_gone)


async def _whole(answer: Answer, generation: Generation) -> Response:
    """An answer that goes out at once."""
    try:
        while updates := await generation.updates():
            answer.collect(updates)
    finally:
        generation.close()
    record, asked = generation.record, generation.params
    alternatives = max(len(asked.logprob_token_ids or ()) or asked.logprobs or 0, asked.prompt_logprobs or 0)
    entries = (record.output_tokens + record.prompt_tokens) * (1 + alternatives)
    return await aside.run(entries > aside.MANY_ENTRIES, _put_together, answer)


def _put_together(answer: Answer) -> Response:
    """The response. What it was made of is freed where it was made: of a long answer's log-probabilities that takes a while."""
    response = json_response(answer.whole())
    answer.forget()
    return response


async def _stream(answer: Answer, generation: Generation, *, interval: int | None) -> AsyncGenerator[bytes]:
    """The events of an answer, for ``interval`` tokens each; when it fails, the error in place of the rest, because the status
    line is long gone."""
    may_be_much = generation.params.prompt_logprobs is not None
    try:
        async with contextlib.aclosing(_paced(generation, interval or 1)) as paced:
            async for updates in paced:
                is_much = may_be_much and any(
                    len(update.prompt_logprobs or ()) > aside.MANY_ENTRIES // 20 for update in updates
                )
                if piece := await aside.run(is_much, answer.events, updates):
                    faults.point("stream")
                    yield piece
        faults.point("stream")
        yield answer.last_events()
    except ClientGone:
        return
    except Exception as error:
        yield answer.failure_events(errors.answer_to(error, generation.log, generation.record.request_id))
    finally:
        generation.close()


async def _paced(generation: Generation, interval: int) -> AsyncGenerator[list[ChoiceUpdate]]:
    """What is new, ``interval`` tokens of a choice at a time. Before a failure comes what was held back when it happened."""
    pacer = Pacer(interval)
    try:
        while new := await generation.updates():
            yield pacer.take(new)
    except ClientGone:
        raise
    except Exception:
        yield pacer.rest()
        raise
