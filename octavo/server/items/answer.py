"""One response of /v1/responses as it grows: its items, and the event for everything that happens to them.

Items appear in the order of what the model writes: reasoning, a message, calls. One state machine serves both ways of
answering: a whole answer is the state at the end of the same walk, so that a stream adds up to it.
"""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from octavo.output_processor import ChoiceUpdate
from octavo.server.chat_text import ChatText, TextDelta, TextPlan
from octavo.server.errors import ApiError
from octavo.server.generation import Prompt
from octavo.server.items.conversation import options_of, tools_of
from octavo.server.items.protocol import (
    Call,
    IncompleteDetails,
    InputDetails,
    ItemsError,
    ItemsResponse,
    ItemsUsage,
    OutputDetails,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningOptions,
    ReasoningText,
    ResponsesRequest,
    Status,
)
from octavo.server.logprobs import LogprobFormat
from octavo.server.protocol import ChatRequest
from octavo.server.replies import Envelope
from octavo.server.responses import ToolCallDelta

_encode = msgspec.json.Encoder().encode
_FAILED = "The model could not compute the rest of its answer."
Event = tuple[str, dict[str, Any]]
"""The name of an event after ``response.``, and what it says."""


class ItemsAnswer:
    """``body`` is what the client asked, ``request`` what that means to chat."""

    def __init__(
        self,
        body: ResponsesRequest,
        request: ChatRequest,
        prompt: Prompt,
        envelope: Envelope,
        formatter: LogprobFormat,
        plan: TextPlan,
    ) -> None:
        self._prompt_tokens = len(prompt.token_ids)
        self._format = formatter
        self._wants_logprobs = bool(request.logprobs)
        self._text = ChatText(plan)
        self._items: list[OutputMessage | Reasoning | Call] = []
        self._message: OutputMessage | None = None
        self._last: ChoiceUpdate | None = None
        self._cached_tokens = 0
        self._reasoning_tokens = 0
        self._numbers = itertools.count()
        self._response = _response(body, envelope)

    def collect(self, updates: Sequence[ChoiceUpdate]) -> None:
        for update in updates:
            for _ in self._grow(update):
                pass

    def whole(self) -> ItemsResponse:
        """The response, when it is complete."""
        for _ in self._end():
            pass
        return self._response

    def forget(self) -> None:
        self._items.clear()

    def events(self, updates: Sequence[ChoiceUpdate]) -> bytes:
        """The events for what is new; before the first, that the response begins."""
        pieces = []
        if self._last is None:
            pieces += [self._event(f"response.{name}", {"response": self._response}) for name in ("created", "in_progress")]
        for update in updates:
            pieces += [self._event(f"response.{name}", said) for name, said in self._grow(update)]
        return b"".join(pieces)

    def last_events(self) -> bytes:
        """The ends of open items, and the response as it is now."""
        pieces = [self._event(f"response.{name}", said) for name, said in self._end()]
        return b"".join([*pieces, self._event(f"response.{self._response.status}", {"response": self._response})])

    def failure_events(self, error: ApiError) -> bytes:
        """The error in place of the rest."""
        return self._event("error", {"code": str(error.status), "message": error.message, "param": error.param})

    def _event(self, kind: str, said: dict[str, Any]) -> bytes:
        data = _encode({"type": kind, "sequence_number": next(self._numbers), **said})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _grow(self, update: ChoiceUpdate) -> Iterator[Event]:
        """Adds what is new, and tells it."""
        self._last = update
        self._cached_tokens = max(self._cached_tokens, update.cached_tokens)
        delta = self._text.push(update.text, last=update.finish_reason is not None)
        if self._text.thinking:
            self._reasoning_tokens = update.num_tokens
        if delta.reasoning:
            yield from self._reason(delta.reasoning)
        if delta.calls_first:
            yield from self._call(delta.tool_calls)
        yield from self._say(update, delta)
        if not delta.calls_first:
            yield from self._call(delta.tool_calls)

    def _reason(self, text: str) -> Iterator[Event]:
        if not self._items:
            item = Reasoning(id=_id("rs"), status="in_progress", content=[])
            yield self._added(item)
            item.content.append(ReasoningText(text=""))
            yield "content_part.added", {**self._where(0), "content_index": 0, "part": item.content[0]}
        if isinstance(reasoning := self._items[0], Reasoning):  # whatever reasons does it first
            reasoning.content[0].text += text
        yield "reasoning_text.delta", {**self._where(0), "content_index": 0, "delta": text}

    def _say(self, update: ChoiceUpdate, delta: TextDelta) -> Iterator[Event]:
        if delta.content and self._message is None:
            yield from self._close_last()
            self._message = OutputMessage(id=_id("msg"), status="in_progress", content=[])
            yield self._added(self._message)
            self._message.content.append(OutputText(text=""))
            place = {**self._where(len(self._items) - 1), "content_index": 0}
            yield "content_part.added", {**place, "part": self._message.content[0]}
        if self._message is None:
            return
        logprobs = self._logprobs(update)
        part = self._message.content[0]
        part.text += delta.content
        part.logprobs += logprobs
        if delta.content or logprobs:
            place = {**self._where(self._items.index(self._message)), "content_index": 0}
            yield "output_text.delta", {**place, "delta": delta.content, "logprobs": logprobs}

    def _logprobs(self, update: ChoiceUpdate) -> list[msgspec.Raw]:
        return self._format.chat(update.logprobs or ()).content if self._wants_logprobs else []

    def _call(self, calls: Sequence[ToolCallDelta]) -> Iterator[Event]:
        for call in calls:
            if isinstance(call.id, str):
                yield from self._close_last()
                yield self._added(
                    Call(id=_id("fc"), call_id=call.id, name=str(call.function.name), arguments="", status="in_progress")
                )
            index, item = next((i, item) for i, item in reversed(list(enumerate(self._items))) if isinstance(item, Call))
            item.arguments += call.function.arguments
            if call.function.arguments:
                yield "function_call_arguments.delta", {**self._where(index), "delta": call.function.arguments}

    def _added(self, item: OutputMessage | Reasoning | Call) -> Event:
        self._items.append(item)
        return "output_item.added", {"output_index": len(self._items) - 1, "item": item}

    def _where(self, index: int) -> dict[str, Any]:
        return {"item_id": self._items[index].id, "output_index": index}

    def _close_last(self) -> Iterator[Event]:
        """Another item begins, so that the last is complete; but more may yet be added to a message."""
        if self._items and not isinstance(self._items[-1], OutputMessage):
            yield from self._close(len(self._items) - 1, "completed")

    def _close(self, index: int, status: Status) -> Iterator[Event]:
        item, where = self._items[index], self._where(index)
        item.status = status
        match item:
            case Call():
                yield "function_call_arguments.done", {**where, "name": item.name, "arguments": item.arguments}
            case Reasoning():
                yield "reasoning_text.done", {**where, "content_index": 0, "text": item.content[0].text}
                yield "content_part.done", {**where, "content_index": 0, "part": item.content[0]}
            case OutputMessage():
                part = item.content[0]
                yield "output_text.done", {**where, "content_index": 0, "text": part.text, "logprobs": part.logprobs}
                yield "content_part.done", {**where, "content_index": 0, "part": part}
        yield "output_item.done", {"output_index": index, "item": item}

    def _end(self) -> Iterator[Event]:
        response, last = self._response, self._last
        reason = None if last is None else last.finish_reason
        cut, failed = reason == "length", reason == "error"
        response.status = "failed" if failed else "incomplete" if cut else "completed"
        for index, item in enumerate(self._items):
            if item.status == "in_progress":
                is_last = index == len(self._items) - 1
                yield from self._close(index, "incomplete" if is_last and (cut or failed) else "completed")
        response.output = self._items
        response.incomplete_details = IncompleteDetails("max_output_tokens") if cut else None
        response.error = ItemsError("server_error", _FAILED) if failed else None
        response.completed_at = None if cut or failed else int(time.time())
        generated = 0 if last is None else last.num_tokens
        response.usage = ItemsUsage(
            input_tokens=self._prompt_tokens,
            input_tokens_details=InputDetails(self._cached_tokens),
            output_tokens=generated,
            output_tokens_details=OutputDetails(self._reasoning_tokens),
            total_tokens=self._prompt_tokens + generated,
        )


def _response(body: ResponsesRequest, envelope: Envelope) -> ItemsResponse:
    """The response before anything is generated."""
    return ItemsResponse(
        id=envelope.id,
        created_at=envelope.created,
        status="in_progress",
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=envelope.model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=body.reasoning or ReasoningOptions(),
        temperature=body.temperature,
        text=options_of(body),
        tool_choice=body.tool_choice or "auto",
        tools=tools_of(body),
        top_logprobs=body.top_logprobs or 0,
        top_p=body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        warnings=envelope.once(),
    )


def _id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(16).hex()}"
