"""POST /v1/chat/completions: a conversation in, the assistant's answer out, whole or streamed.

The conversation becomes one prompt by the model's own template (or the operator's, never the client's). Chunks leave out what
is not set; each choice begins with a chunk that has the role and ends with one that has the finish reason. What is reasoning,
call or content in a text is ``chat_text``'s to say.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo.output_processor import ChoiceUpdate
from octavo.server import aside, body, errors, params, sse, structured
from octavo.server.call_grammar import check_calls
from octavo.server.chat_plan import ChatPlan, call_format, plan_answer
from octavo.server.chat_text import ChatText, TextDelta, TextPlan
from octavo.server.errors import ApiError
from octavo.server.generation import Prompt
from octavo.server.logprobs import LogprobFormat
from octavo.server.protocol import ChatRequest
from octavo.server.replies import Answer, Envelope, Usages, beams_of, offsets_of, reply
from octavo.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatFinishReason,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    Delta,
    MadeToolCall,
)
from octavo.server.service import ServedModel, Service
from octavo.server.tool_choice import Tools, read_tools
from octavo.server.tools import Format
from octavo.step import TokenLogprobs

MAX_DOCUMENTS = 1024
"""How many. How long they are is bounded by the limit of the body and of what a template may write."""
Shape: TypeAlias = Callable[[ChatRequest, Prompt, Envelope, LogprobFormat, TextPlan], Answer]
"""What begins an answer in the form of one of the APIs."""


class Chat:
    """The route. One instance serves all requests and keeps nothing between them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle(self, http: HttpRequest) -> Response:
        service = self._service
        request, warnings = await body.read(http.scope, http.receive, ChatRequest, service.options, service.status)
        return await self.answer(http, request, warnings, prefix="chatcmpl-", shape=ChatAnswer)

    async def answer(
        self, http: HttpRequest, request: ChatRequest, warnings: list[str], *, prefix: str, shape: Shape
    ) -> Response:
        """Generates what ``request`` asks for and answers in ``shape``; ``prefix`` begins the response's id."""
        service = self._service
        served = service.loaded()
        envelope = service.accept(http, request, prefix=prefix, warnings=warnings)
        is_large = http.scope["state"]["body_bytes"] > aside.MANY_BYTES
        tools = await aside.run(is_large, read_tools, request)
        written = call_format(tools, service.options, served.call_format)
        template_kwargs = _template_kwargs(request, served)
        envelope.warn(_without_effect(request, tools, written, served))
        await service.check_form(request, http)
        prompt = await self._prompt(request, tools, template_kwargs, envelope)
        plan = await aside.run(is_large, self._plan, request, tools, written, prompt)
        if tools is not None and plan.structured_outputs is not None:
            await check_calls(plan.structured_outputs, tools, functools.partial(service.check_grammar, http=http))
        generation = await service.generation(
            request,
            [prompt],
            http=http,
            request_id=envelope.id,
            prompt_logprobs=request.prompt_logprobs,
            structured_outputs=plan.structured_outputs,
            thinking=[plan.thinking],
        )
        answer = shape(request, prompt, envelope, LogprobFormat.of(request, served.tokenizer), plan.text)
        return await reply(generation, answer, request, receive=http.receive)

    def _plan(self, request: ChatRequest, tools: Tools | None, written: Format | None, prompt: Prompt) -> ChatPlan:
        continued = _final_text(request) if request.continue_final_message else ""
        options = self._service.options
        style = options.reasoning_parser
        if options.structured_outputs_in_reasoning and structured.wanted(request) is not None:
            style = None
        plan = plan_answer(request, tools, written, prompt=prompt.text or "", continued=continued, style=style)
        if plan.shows_special_tokens and request.skip_special_tokens is None:
            request.skip_special_tokens = False
        return plan

    async def _prompt(
        self, request: ChatRequest, tools: Tools | None, template_kwargs: dict[str, Any] | None, envelope: Envelope
    ) -> Prompt:
        if not request.messages:
            raise errors.invalid("messages must not be empty.", "messages")
        if len(request.documents or ()) > MAX_DOCUMENTS:
            message = f"documents must have at most {MAX_DOCUMENTS} entries, got {len(request.documents or ())}."
            raise errors.invalid(message, "documents")
        text = await self._service.render(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            template_kwargs=template_kwargs,
            warn=lambda told: envelope.warn([told]),
            tools=None if tools is None else tools.definitions,
            documents=request.documents,
        )
        special = bool(request.add_special_tokens)
        (ids,) = await self._service.encode_prompts([text], request, special=special)
        offsets = None
        if request.return_token_offsets:
            (offsets,) = await self._service.prompt_offsets([text], request, special=special)
        return Prompt(text, ids, offsets)


def _template_kwargs(request: ChatRequest, served: ServedModel) -> dict[str, Any] | None:
    """Some fields are variables of templates that have them."""
    given, tools = request.chat_template_kwargs, bool(request.tools)
    read = {name: value for name, value in _variables(request) if _template_reads(served, name, with_tools=tools)}
    return {**read, **(given or {})} if read else given


def _variables(request: ChatRequest) -> list[tuple[str, str]]:
    given = [("reasoning_effort", request.reasoning_effort), ("verbosity", request.verbosity)]
    return [(name, value) for name, value in given if value is not None]


def _template_reads(served: ServedModel, variable: str, *, with_tools: bool) -> bool:
    template = served.tokenizer.chat_template
    return template is not None and template.reads(variable, with_tools=with_tools)


def _without_effect(request: ChatRequest, tools: Tools | None, written: Format | None, served: ServedModel) -> list[str]:
    """A warning for each thing that the request asks for, that was taken, and that changes nothing."""
    found = [
        f"`{name}` has no effect: this model's chat template does not use it"
        for name, _ in _variables(request)
        if not _template_reads(served, name, with_tools=tools is not None)
    ]
    if tools is not None and not _template_reads(served, "tools", with_tools=True):
        found.append("this model's chat template does not show `tools` to the model")
    if request.documents and not _template_reads(served, "documents", with_tools=tools is not None):
        found.append("this model's chat template does not show `documents` to the model")
    strict = tools is not None and tools.choice == "auto" and any(function.strict for function in tools.functions)
    if strict and written is not None and written.grammar is None:
        found.append("`strict` has no effect on calls that the model decides on: its form of calls has no grammar here")
    return found


def _final_text(request: ChatRequest) -> str:
    """The text of the last message."""
    content = request.messages[-1].content
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text or "" for part in content if part.type != "thinking")


class ChatAnswer:
    """One request's answer as it grows."""

    def __init__(
        self, request: ChatRequest, prompt: Prompt, envelope: Envelope, formatter: LogprobFormat, plan: TextPlan
    ) -> None:
        self._request = request
        self._prompt = prompt
        self._envelope = envelope
        self._format = formatter
        self._plan = plan
        self._reports_logprobs = params.requested_logprobs(request) is not None
        n = request.n or 1
        self._parts: list[list[ChoiceUpdate]] = [[] for _ in range(n)]
        self._texts = [ChatText(plan) for _ in range(n)]
        self._begun = [False] * n
        self._content_events: dict[int, sse.TextEvents] = {}
        self._prompt_logprobs: Sequence[TokenLogprobs] = []
        self._usages = Usages([len(prompt.token_ids)], n, details=envelope.cached_details, options=request.stream_options)

    def collect(self, updates: Sequence[ChoiceUpdate]) -> None:
        for update in updates:
            self._note(update)
            self._parts[update.index].append(update)

    def forget(self) -> None:
        # One by one, unlike ``aside.forget``: each may hold many log-probabilities, and one statement frees without a pause.
        for parts in self._parts:
            while parts:
                parts.pop()

    def whole(self) -> ChatResponse:
        """The response, when every choice is complete."""
        request, envelope = self._request, self._envelope
        return ChatResponse(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            choices=[self._choice(index) for index in range(len(self._parts))],
            system_fingerprint=envelope.fingerprint,
            usage=self._usages.total(),
            prompt_logprobs=None if request.prompt_logprobs is None else self._format.prompt(self._prompt_logprobs),
            prompt_token_ids=self._prompt.token_ids if request.return_token_ids else None,
            prompt_token_offsets=offsets_of(self._prompt, request),
            prompt_text=self._prompt.text if request.return_prompt_text else None,
            warnings=envelope.warnings,
        )

    def events(self, updates: Sequence[ChoiceUpdate]) -> bytes:
        """The chunks for what is new."""
        pieces = []
        for update in updates:
            self._note(update)
            if update.beams is not None:
                pieces.append(self._beams_event(update))
                continue
            if not self._begun[update.index]:
                pieces += self._first_events(update.index)
            delta = self._texts[update.index].push(update.text, last=update.finish_reason is not None)
            if self._content_alone and update.finish_reason is None and not (delta.reasoning or delta.tool_calls):
                if delta.content:
                    pieces.append(self._content_event(update.index, delta.content))
            elif self._worth_a_chunk(update, delta):
                pieces.append(self._chunk(update, delta))
        return b"".join(pieces)

    def _note(self, update: ChoiceUpdate) -> None:
        self._usages.note(update)
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = update.prompt_logprobs

    def _echo(self) -> str:
        """With ``echo``, what the model was asked to go on with: the text of the final message."""
        request = self._request
        return _final_text(request) if request.echo and request.continue_final_message else ""

    def _choice(self, index: int) -> ChatChoice:
        parts = self._parts[index]
        said = self._texts[index].push("".join(part.text for part in parts), last=True)
        content = self._echo() + said.content
        calls = [MadeToolCall(id=str(call.id), function=call.function) for call in said.tool_calls]
        message = ChatMessage(
            content=content if content or not said else None,
            tool_calls=calls or UNSET,
            reasoning=said.reasoning or None,
        )
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(parts),
            finish_reason=self._finish_reason(parts[-1]),
            stop_reason=parts[-1].stop_reason,
            token_ids=[token for part in parts for token in part.token_ids] if self._request.return_token_ids else None,
        )

    def _logprobs(self, parts: Sequence[ChoiceUpdate]) -> ChatLogprobs | None:
        if not self._reports_logprobs:
            return None
        return self._format.chat(entry for part in parts for entry in part.logprobs or [])

    def _finish_reason(self, update: ChoiceUpdate) -> ChatFinishReason | None:
        ended_in_calls = update.finish_reason == "stop" and self._plan.reports_calls and self._texts[update.index].called
        return "tool_calls" if ended_in_calls else update.finish_reason

    def _worth_a_chunk(self, update: ChoiceUpdate, delta: TextDelta) -> bool:
        """A token whose text is held back changes nothing that the client can see, unless it asked for tokens."""
        shows_tokens = self._reports_logprobs or bool(self._request.return_token_ids)
        return bool(delta) or update.finish_reason is not None or (shows_tokens and bool(update.token_ids))

    def _first_events(self, index: int) -> list[bytes]:
        """The role, with facts about the prompt, and the echo."""
        self._begun[index] = True
        request = self._request
        role = ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
        chunk = self._new_chunk(role)
        chunk.prompt_token_ids = self._prompt.token_ids if request.return_token_ids else None
        chunk.prompt_token_offsets = offsets_of(self._prompt, request)
        chunk.prompt_text = self._prompt.text if request.return_prompt_text else None
        chunk.warnings = self._envelope.once()
        chunk.usage = self._usages.in_chunk(index)
        events = [sse.event(chunk)]
        if echo := self._echo():
            events.append(sse.event(self._new_chunk(ChatChunkChoice(index=index, delta=Delta(content=echo)))))
        return events

    def _chunk(self, update: ChoiceUpdate, delta: TextDelta) -> bytes:
        choice = ChatChunkChoice(
            index=update.index,
            delta=Delta(
                content=delta.content if delta.content or self._plan.plain else UNSET,
                reasoning=delta.reasoning or UNSET,
                tool_calls=delta.tool_calls or UNSET,
            ),
            logprobs=self._logprobs([update]),
            finish_reason=self._finish_reason(update),
            token_ids=update.token_ids if self._request.return_token_ids else None,
        )
        if update.finish_reason is not None:
            choice.stop_reason = update.stop_reason
        chunk = self._new_chunk(choice)
        chunk.usage = self._usages.in_chunk(update.index)
        if update.finish_reason is not None and not self._usages.wanted:
            chunk.system_fingerprint = self._envelope.fingerprint
        return sse.event(chunk)

    @functools.cached_property
    def _content_alone(self) -> bool:
        """Whether nothing but the content differs from one chunk of a choice to the next, its first and its last aside."""
        return not (self._reports_logprobs or self._request.return_token_ids or self._usages.continuous)

    def _content_event(self, index: int, content: str) -> bytes:
        """What ``_chunk`` would make of an update whose content alone is new."""
        events = self._content_events.get(index)
        if events is None:
            choice = ChatChunkChoice(index=index, delta=Delta(content=sse.TextEvents.MARK), token_ids=None)
            events = self._content_events[index] = sse.TextEvents(self._new_chunk(choice))
        return events.event(content)

    def _beams_event(self, update: ChoiceUpdate) -> bytes:
        chunk = self._new_chunk()
        chunk.beams = beams_of(update, with_token_ids=bool(self._request.return_token_ids))
        return sse.event(chunk)

    def _new_chunk(self, *choices: ChatChunkChoice) -> ChatChunk:
        envelope = self._envelope
        return ChatChunk(id=envelope.id, created=envelope.created, model=envelope.model, choices=list(choices))

    def last_events(self) -> bytes:
        """The usage if it was asked for, and ``[DONE]``."""
        if not self._usages.wanted:
            return sse.DONE
        chunk = self._new_chunk()
        chunk.usage = self._usages.total()
        chunk.system_fingerprint = self._envelope.fingerprint
        return sse.event(chunk) + sse.DONE

    def failure_events(self, error: ApiError) -> bytes:
        return sse.failure(error)
