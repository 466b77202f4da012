"""The text of one choice of a chat, on its way to the client: reasoning, then calls of tools, then content.

A ``TextPlan`` says what to look for in every choice of a request, a ``ChatText`` looks for it in one. What comes out depends on
the text alone and not on the pieces that it came in, so that a stream joined is the whole answer.
"""

import os
import random
import string
from collections.abc import Callable, Iterable

import msgspec

from octavo.server.reasoning import ReasoningSplitter, Split
from octavo.server.responses import CalledFunction, ToolCallDelta
from octavo.server.tools.events import CallArguments, CallStart, Content, Event, Parser


class TextPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``splitter`` and ``parser`` begin reading an answer, None where there is nothing to find. ``max_calls``: further ones are
    dropped. ``reports_calls``: an answer with calls ends for the reason "tool_calls"."""

    splitter: Callable[[], ReasoningSplitter] | None
    parser: Callable[[], Parser] | None
    include_reasoning: bool
    max_calls: int | None
    short_ids: bool
    reports_calls: bool

    @property
    def plain(self) -> bool:
        """Whether text is content as it comes."""
        return self.splitter is None and self.parser is None


class TextDelta(msgspec.Struct):
    """What a piece of text adds to an answer. ``calls_first``: its content comes after its calls."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = msgspec.field(default_factory=list)
    calls_first: bool = False

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


class ChatText:
    """One choice's."""

    def __init__(self, plan: TextPlan) -> None:
        self._plan = plan
        self._splitter = plan.splitter() if plan.splitter is not None else None
        self._parser = plan.parser() if plan.parser is not None else None
        self._seams = _Seams()
        self._num_calls = 0

    @property
    def called(self) -> bool:
        """Whether there has been a call."""
        return self._num_calls > 0

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._splitter is not None and self._splitter.thinking

    def push(self, text: str, *, last: bool) -> TextDelta:
        """What ``text`` settles, with ``last`` everything."""
        delta = TextDelta()
        if self._splitter is None:
            self._take(Split(content=text), delta)
        else:
            self._take(self._splitter.push(text), delta)
            if last:
                self._take(self._splitter.finish(), delta)
        if last and self._parser is not None:
            self._read(self._parser.finish(), delta)
            delta.content += self._seams.finish()
        return delta

    def _take(self, split: Split, delta: TextDelta) -> None:
        if self._plan.include_reasoning:
            delta.reasoning += split.reasoning
        if self._parser is None:
            delta.content += split.content
        else:
            self._read(self._parser.push(split.content), delta)

    def _read(self, events: Iterable[Event], delta: TextDelta) -> None:
        for event in events:
            if isinstance(event, Content):
                delta.calls_first = delta.calls_first or bool(delta.tool_calls and not delta.content)
                delta.content += self._seams.content(event.text)
                continue
            if isinstance(event, CallStart):
                self._seams.call()
                self._num_calls += 1
            if self._plan.max_calls is None or self._num_calls <= self._plan.max_calls:
                self._add(event, delta.tool_calls)

    def _add(self, event: CallStart | CallArguments, calls: list[ToolCallDelta]) -> None:
        index = self._num_calls - 1
        if isinstance(event, CallStart):
            made = CalledFunction(name=event.name, arguments="")
            calls.append(ToolCallDelta(id=call_id(short=self._plan.short_ids), type="function", index=index, function=made))
        elif calls and calls[-1].index == index:
            calls[-1].function.arguments += event.text
        else:
            calls.append(ToolCallDelta(index=index, function=CalledFunction(arguments=event.text)))


class _Seams:
    """Space between content and a call belongs to neither: it shows only where content stands on both of its sides."""

    def __init__(self) -> None:
        self._held = ""
        self._spoken = False
        self._called = False

    def content(self, text: str) -> str:
        said = text.rstrip()
        if not said:
            self._held += text
            return ""
        shown = self._held + said
        self._held = text[len(said) :]
        if self._called and not self._spoken:
            shown = shown.lstrip()
        self._spoken = True
        return shown

    def call(self) -> None:
        if not self._spoken:
            self._held = ""
        self._called = True

    def finish(self) -> str:
        return "" if self._called else self._held


def call_id(*, short: bool) -> str:
    """A new id: ``chatcmpl-tool-`` and 32 hexadecimal digits, or nine letters and digits."""
    if short:
        return "".join(random.SystemRandom().choices(string.ascii_letters + string.digits, k=9))
    return f"chatcmpl-tool-{os.urandom(16).hex()}"
