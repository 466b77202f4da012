"""Calls as Python: the answer is ``[f(a=1), g(b="x")]``, as Llama 3.2 and 4, ToolACE and others write it.

``<|python_start|>`` and ``<|python_end|>`` may stand around it, and where they do, calls may follow text. The list is taken as
a whole or not at all: anything in it but calls of the request's functions with literal keyword arguments makes it content.
"""

import re

from octavo.server.tools.events import Event, content, whole_call
from octavo.server.tools.pieces import NotJson, Syntax, ValueEnd, split_at
from octavo.server.tools.python_literals import read_calls
from octavo.server.tools.states import StateParser

START, END = "<|python_start|>", "<|python_end|>"
_PYTHON = Syntax(re.compile(r"""["'()\[\]{}]"""), re.compile(r"""["'\\\n]"""), "\"'")
_MAYBE_NAME = re.compile(r"[\w\s.-]*")


class PythonicParser(StateParser):
    """Calls name one of ``functions``."""

    def __init__(self, functions: frozenset[str]) -> None:
        super().__init__(self._start)
        self._functions = functions
        self._held = ""
        self._end = ValueEnd(_PYTHON)
        self._pieces: list[str] = []

    def finish(self) -> list[Event]:
        held = "" if self._state == self._after else self._held
        return content(held + "".join(self._pieces))

    def _start(self, text: str, events: list[Event]) -> str:
        """Where a list of calls may stand. ``_held`` is the space, and the tag, before it."""
        rest = text.lstrip()
        self._held += text[: len(text) - len(rest)]
        if rest.startswith("["):
            self._end, self._state = ValueEnd(_PYTHON), self._name
            self._held += "["
            self._end.feed("[")
            return rest[1:]
        if rest:
            events += content(self._held)
            self._held, self._state = "", self._outside
        return rest

    def _name(self, text: str, events: list[Event]) -> str:
        """The first function's name up to its parenthesis: a list of anything else need not be held back to its end."""
        taken = _MAYBE_NAME.match(text)
        at = taken.end() if taken else 0
        self._held += text[:at]
        written = self._held.rpartition("[")[2].strip()
        if at < len(text) and text[at] == "(" and written in self._functions:
            self._state = self._inside
        elif at < len(text) or not any(name.startswith(written) for name in self._functions):
            self._give_up(events)
        return text[at:]

    def _inside(self, text: str, events: list[Event]) -> str:
        try:
            end = self._end.feed(text)
        except NotJson as error:
            self._pieces.append(text[: error.at])
            self._give_up(events)
            return text[error.at :]
        self._pieces.append(text[:end])
        if end is None:
            return ""
        calls = read_calls(self._held[self._held.rindex("[") :] + "".join(self._pieces))
        if calls is None or any(call.name not in self._functions for call in calls):
            self._give_up(events)
        else:
            for call in calls:
                events += whole_call(call.name, call.arguments)
            self._held, self._pieces, self._state = "", [], self._after
        return text[end:]

    def _after(self, text: str, events: list[Event]) -> str:
        """The closing tag, or whatever is there instead of it."""
        text = self._held + text
        rest = text.lstrip()
        if END.startswith(rest) and rest != END:
            self._held = text
            return ""
        self._held, self._state = "", self._outside
        return rest.removeprefix(END) if rest.startswith(END) else text

    def _outside(self, text: str, events: list[Event]) -> str:
        before, rest, found = split_at(self._held + text, START)
        events += content(before)
        if not found:
            self._held = rest
            return ""
        self._held, self._state = START, self._start
        return rest

    def _give_up(self, events: list[Event]) -> None:
        events += content(self._held + "".join(self._pieces))
        self._held, self._pieces, self._state = "", [], self._outside
