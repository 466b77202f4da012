"""POST /v1/completions: prompts in, text out, whole or streamed.

Choice ``i`` of prompt ``p`` has the index ``p * n + i``. ``echo`` puts the prompt before the text; with ``max_tokens`` 0 there
is nothing but the prompt, and with ``logprobs`` it is computed and its one sampled token dropped.
"""

import functools
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo.output_processor import ChoiceUpdate
from octavo.request import Thinking
from octavo.server import aside, body, errors, params, sse, structured
from octavo.server.errors import ApiError
from octavo.server.generation import Prompt
from octavo.server.logprobs import LogprobFormat, TextPlaces
from octavo.server.protocol import CompletionRequest
from octavo.server.replies import Envelope, Usages, beams_of, json_response, offsets_of, reply
from octavo.server.responses import (
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from octavo.server.service import Service
from octavo.step import TokenLogprobs
from octavo.structured.reasoning import LONGEST_TAIL, STYLES, text_leaves_open, thinking_in
from octavo.tokenizer import Tokenizer


class Completions:
    """The route. One instance serves all requests and keeps nothing between them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle(self, http: HttpRequest) -> Response:
        service = self._service
        request, warnings = await body.read(http.scope, http.receive, CompletionRequest, service.options, service.status)
        served = service.loaded()
        envelope = service.accept(http, request, prefix="cmpl-", warnings=warnings)
        await service.check_form(request, http)
        prompts = await self._prompts(request)
        answer = CompletionAnswer(request, prompts, envelope, LogprobFormat.of(request, served.tokenizer))
        generation = await service.generation(
            answer.computed_request(),
            prompts,
            http=http,
            request_id=envelope.id,
            prompt_logprobs=answer.num_prompt_logprobs,
            thinking=await self._thinking(request, prompts),
            prompt_only=answer.prompt_only,
        )
        if answer.prompt_only and answer.num_prompt_logprobs is None:
            return answer.echo_only()
        return await reply(generation, answer, request, receive=http.receive)

    async def _thinking(self, request: CompletionRequest, prompts: list[Prompt]) -> list[Thinking | None]:
        """How the outputs reason, if that is to be bounded, or if the prompt has begun it: a form of the text then waits for
        its end. Else a form holds from the first token on, because nothing is told apart here."""
        style, served = self._service.options.reasoning_parser, self._service.loaded()
        is_bounded = request.thinking_token_budget not in (None, -1)
        if style is None or not (is_bounded or structured.wanted(request) is not None):
            return [None] * len(prompts)

        def ways() -> list[Thinking | None]:
            tails = (prompt.token_ids[-LONGEST_TAIL:] for prompt in prompts)
            found = [text_leaves_open(_decode(served.tokenizer, tail, served.limits.vocab_size)) for tail in tails]
            return [thinking_in(STYLES[style], inside=inside) if inside or is_bounded else None for inside in found]

        is_much = sum(min(len(prompt.token_ids), LONGEST_TAIL) for prompt in prompts) > aside.MANY_ENTRIES
        return await aside.run(is_much, ways)

    async def _prompts(self, request: CompletionRequest) -> list[Prompt]:
        most = self._service.options.max_prompts
        strict = self._service.options.strict
        texts, ids = await aside.run(_is_long(request.prompt, most), split_prompts, request.prompt, most, strict)
        limits = self._service.loaded().limits
        offsets: Sequence[list[tuple[int, int]] | None] = [None] * len(texts or ids)
        if texts is not None:
            special = request.add_special_tokens is not False
            cut = await self._service.encode_prompts(texts, request, special=special)
            if request.return_token_offsets or (request.echo and params.requested_logprobs(request) is not None):
                offsets = await self._service.prompt_offsets(texts, request, special=special)
        else:
            cut = [params.truncated(token_ids, request, limits) for token_ids in ids]
        shown: list[str | None] = [None] * len(cut)
        if request.echo and texts is not None and request.truncate_prompt_tokens is None:
            shown = list(texts)
        elif request.echo:
            tokenizer = self._service.loaded().tokenizer
            is_much = sum(map(len, cut)) > aside.MANY_ENTRIES
            shown = await aside.run(is_much, lambda: [_decode(tokenizer, token_ids, limits.vocab_size) for token_ids in cut])
        return [Prompt(*parts) for parts in zip(shown, cut, offsets, strict=True)]


def _decode(tokenizer: Tokenizer, token_ids: list[int], vocab_size: int) -> str:
    return tokenizer.decode([i for i in token_ids if i < vocab_size])


def _is_long(prompt: Any, most: int) -> bool:
    """Whether token ids are so many that even looking at each takes a while. More lists than ``most`` are not looked at."""
    if not isinstance(prompt, list):
        return False
    lists = [item for item in prompt if isinstance(item, list)] if len(prompt) <= most else []
    return len(prompt) + sum(map(len, lists)) > aside.MANY_ENTRIES


def split_prompts(prompt: Any, limit: int, strict: bool) -> tuple[list[str] | None, list[list[int]]]:
    """Texts, or lists of token ids, which may be written with a point unless ``strict``. Raises ``ApiError`` 400 for anything
    else, and for more than ``limit``."""
    if isinstance(prompt, str) and prompt:
        return [prompt], []
    if prompt is None or prompt == "" or prompt == []:
        raise errors.invalid("A prompt must be provided and must not be empty.", "prompt")
    if not isinstance(prompt, list):
        raise errors.malformed("prompt: expected a string, token ids, or a list of either", "prompt")
    if (ids := _token_ids(prompt, strict)) is not None:
        return None, [ids]
    if len(prompt) > limit:
        raise errors.invalid(f"prompt must have at most {limit} entries, got {len(prompt)}.", "prompt")
    if all(isinstance(item, str) for item in prompt):
        return prompt, []
    lists = []
    for i, item in enumerate(prompt):
        ids = _token_ids(item, strict) if isinstance(item, list) else None
        if ids is None:
            raise errors.malformed(
                f"prompt[{i}]: expected strings only, or lists of token ids (integers from 0) only", f"prompt[{i}]"
            )
        lists.append(ids)
    return None, lists


def _token_ids(items: list[Any], strict: bool) -> list[int] | None:
    """``items`` as token ids; None if one of them is no whole number, or no id."""
    kinds = set(map(type, items))
    if not kinds <= ({int} if strict else {int, float}) or (items and not 0 <= min(items) <= max(items) < 2**31):
        return None
    if float not in kinds:
        return items
    return None if any(item % 1 for item in items) else list(map(int, items))


class CompletionAnswer:
    """One request's answer as it grows."""

    def __init__(
        self, request: CompletionRequest, prompts: Sequence[Prompt], envelope: Envelope, formatter: LogprobFormat
    ) -> None:
        self._request = request
        self._prompts = prompts
        self._envelope = envelope
        self._format = formatter
        self._n = request.n or 1
        self._parts: list[list[ChoiceUpdate]] = [[] for _ in range(len(prompts) * self._n)]
        self._places: list[TextPlaces | None] = [None] * len(self._parts)
        self._echoed = [not request.echo] * len(self._parts)
        self._reports_logprobs = params.requested_logprobs(request) is not None
        self._begun = [False] * len(self._parts)
        self._text_events: dict[int, sse.TextEvents] = {}
        self._prompt_logprobs: dict[int, Sequence[TokenLogprobs]] = {}
        self._usages = Usages(
            [len(prompt.token_ids) for prompt in prompts],
            self._n,
            details=envelope.cached_details,
            options=request.stream_options,
        )

    @property
    def prompt_only(self) -> bool:
        """Whether nothing is to be generated."""
        return bool(self._request.echo) and self._request.max_tokens == 0

    @property
    def num_prompt_logprobs(self) -> int | None:
        asked = self._request.prompt_logprobs
        reported = params.requested_logprobs(self._request)
        return max(asked or 0, reported) if self._request.echo and reported is not None else asked

    def computed_request(self) -> CompletionRequest:
        """What the engine is asked: it cannot generate nothing, so a prompt alone takes one token with it."""
        if not self.prompt_only:
            return self._request
        if self._request.logprob_token_ids:
            raise errors.invalid("`logprob_token_ids` needs tokens that are generated, not only `echo`.", "logprob_token_ids")
        return msgspec.structs.replace(self._request, max_tokens=1, min_tokens=None, best_of=None, use_beam_search=None)

    def collect(self, updates: Sequence[ChoiceUpdate]) -> None:
        for update in updates:
            self._note(update)
            self._parts[update.index].append(update)

    def forget(self) -> None:
        # One by one, unlike ``aside.forget``: each may hold many log-probabilities, and one statement frees without a pause.
        for parts in self._parts:
            while parts:
                parts.pop()

    def whole(self) -> CompletionResponse:
        """The response, when every choice is complete."""
        return self._response([self._choice(index) for index in range(len(self._parts))])

    def echo_only(self) -> Response:
        """A prompt sent back: nothing is computed. The request has passed the same checks as any other."""
        choices = [
            CompletionChoice(
                index=index,
                text=self._prompt(index).text or "",
                finish_reason="length",
                token_ids=[] if self._request.return_token_ids else None,
                prompt_token_ids=self._prompt(index).token_ids if self._request.return_token_ids else None,
                prompt_token_offsets=offsets_of(self._prompt(index), self._request),
            )
            for index in range(len(self._parts))
        ]
        if not self._request.stream:
            return json_response(self._response(choices))
        return sse.EventStream(self._echo_events(choices), on_gone=lambda: None)

    def events(self, updates: Sequence[ChoiceUpdate]) -> bytes:
        """The chunks for what is new."""
        pieces = []
        for update in updates:
            self._note(update)
            if update.beams is not None:
                pieces.append(self._beams_event(update))
            elif self._text_alone and update.finish_reason is None and self._begun[update.index]:
                if update.text:
                    pieces.append(self._text_event(update))
            elif self._worth_a_chunk(update):
                pieces.append(self._chunk(update))
        return b"".join(pieces)

    def _note(self, update: ChoiceUpdate) -> None:
        if not self.prompt_only:
            self._usages.note(update)
        if update.prompt_logprobs is not None:
            self._prompt_logprobs[update.index // self._n] = update.prompt_logprobs

    def _prompt(self, index: int) -> Prompt:
        return self._prompts[index // self._n]

    def _response(self, choices: list[CompletionChoice]) -> CompletionResponse:
        envelope = self._envelope
        return CompletionResponse(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            choices=choices,
            system_fingerprint=envelope.fingerprint,
            usage=self._usages.total(),
            warnings=envelope.warnings,
        )

    def _choice(self, index: int) -> CompletionChoice:
        parts = [] if self.prompt_only else self._parts[index]
        request, prompt = self._request, self._prompt(index)
        last = self._parts[index][-1]
        asked = request.prompt_logprobs is not None
        return CompletionChoice(
            index=index,
            text=(prompt.text or "" if request.echo else "") + "".join(part.text for part in parts),
            logprobs=self._logprobs(index, parts, with_prompt=bool(request.echo)),
            finish_reason="length" if self.prompt_only else last.finish_reason,
            stop_reason=None if self.prompt_only else last.stop_reason,
            token_ids=[token for part in parts for token in part.token_ids] if request.return_token_ids else None,
            prompt_logprobs=self._format.prompt(self._prompt_logprobs.get(index // self._n, [])) if asked else None,
            prompt_token_ids=prompt.token_ids if request.return_token_ids else None,
            prompt_token_offsets=offsets_of(prompt, request),
        )

    def _logprobs(self, index: int, parts: Sequence[ChoiceUpdate], *, with_prompt: bool) -> CompletionLogprobs | None:
        if not self._reports_logprobs:
            return None
        shape = CompletionLogprobs([], [], [], [])
        prompt = self._prompt(index)
        if with_prompt:
            # Offsets of a text that was cut are those before.
            spans = prompt.offsets if self._request.truncate_prompt_tokens is None else None
            shape = self._format.echoed(prompt.token_ids, self._prompt_logprobs.get(index // self._n, []), spans)
        places = self._places[index] = self._places[index] or self._format.places(
            prompt.token_ids,
            at=len(prompt.text or "") if self._request.echo else 0,
            skip_special_tokens=self._request.skip_special_tokens is not False,
        )
        self._format.completion((entry for part in parts for entry in part.logprobs or []), places, after=shape)
        return shape

    def _worth_a_chunk(self, update: ChoiceUpdate) -> bool:
        """A token whose text is held back changes nothing that the client can see, unless it asked for tokens."""
        request = self._request
        shows_tokens = self._reports_logprobs or bool(request.return_token_ids)
        return bool(update.text) or update.finish_reason is not None or shows_tokens or not self._echoed[update.index]

    def _chunk(self, update: ChoiceUpdate) -> bytes:
        request, index = self._request, update.index
        first = not self._echoed[index]
        generated = not self.prompt_only
        choice = CompletionChunkChoice(
            index=index,
            text=(self._prompt(index).text or "" if first else "") + (update.text if generated else ""),
            logprobs=self._logprobs(index, [update] if generated else [], with_prompt=first),
            finish_reason=update.finish_reason if generated else "length",
            stop_reason=update.stop_reason if generated else None,
            prompt_token_ids=self._prompt(index).token_ids if request.return_token_ids and not self._begun[index] else None,
            prompt_token_offsets=UNSET if self._begun[index] else offsets_of(self._prompt(index), request),
            token_ids=(update.token_ids if generated else []) if request.return_token_ids else None,
        )
        self._begun[index] = self._echoed[index] = True
        return self._event(choice)

    @functools.cached_property
    def _text_alone(self) -> bool:
        """Whether nothing but the text differs from one chunk of a choice to the next, its first and its last aside."""
        shows_more = self._reports_logprobs or self._request.return_token_ids or self._usages.continuous
        return not (self.prompt_only or shows_more)

    def _text_event(self, update: ChoiceUpdate) -> bytes:
        """What ``_chunk`` would make of an update whose text alone is new."""
        events = self._text_events.get(update.index)
        if events is None:
            choice = CompletionChunkChoice(index=update.index, text=sse.TextEvents.MARK)
            events = self._text_events[update.index] = sse.TextEvents(self._new_chunk([choice]))
        return events.event(update.text)

    def _beams_event(self, update: ChoiceUpdate) -> bytes:
        chunk = self._new_chunk([])
        chunk.beams = beams_of(update, with_token_ids=bool(self._request.return_token_ids))
        if len(self._prompts) > 1:
            chunk.prompt_index = update.index // self._n
        return sse.event(chunk)

    def _event(self, choice: CompletionChunkChoice) -> bytes:
        """A chunk of one choice. The fingerprint is in the last one of each choice, unless one with the usage follows."""
        chunk = self._new_chunk([choice])
        chunk.usage = self._usages.in_chunk(choice.index)
        if choice.finish_reason is not None and not self._usages.wanted:
            chunk.system_fingerprint = self._envelope.fingerprint
        return sse.event(chunk)

    def _new_chunk(self, choices: list[CompletionChunkChoice]) -> CompletionChunk:
        envelope = self._envelope
        return CompletionChunk(
            id=envelope.id, created=envelope.created, model=envelope.model, choices=choices, warnings=envelope.once()
        )

    def last_events(self) -> bytes:
        """The usage if it was asked for, and ``[DONE]``."""
        if not self._usages.wanted:
            return sse.DONE
        chunk = self._new_chunk([])
        chunk.usage = self._usages.total()
        chunk.system_fingerprint = self._envelope.fingerprint
        return sse.event(chunk) + sse.DONE

    def failure_events(self, error: ApiError) -> bytes:
        return sse.failure(error)

    async def _echo_events(self, choices: list[CompletionChoice]) -> AsyncGenerator[bytes]:
        for choice in choices:
            piece = CompletionChunkChoice(
                index=choice.index,
                text=choice.text,
                finish_reason=choice.finish_reason,
                prompt_token_ids=choice.prompt_token_ids,
                prompt_token_offsets=choice.prompt_token_offsets,
                token_ids=choice.token_ids,
            )
            yield self._event(piece)
        yield self.last_events()
