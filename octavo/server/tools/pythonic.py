"""Calls as Python: the answer is ``[f(a=1), g(b="x")]``, as Llama 3.2 and 4, ToolACE and others write it.

``<|python_start|>`` and ``<|python_end|>`` may stand around it, and where they do, calls may follow text. The list is taken as
a whole or not at all: anything in it but calls of the request's functions with literal keyword arguments makes it content.
"""

import re

from octavo.server.tools.calls import CallParser
from octavo.server.tools.events import Event
from octavo.server.tools.pieces import Syntax
from octavo.server.tools.python_literals import read_calls
from octavo.server.tools.written import Call

START, END = "<|python_start|>", "<|python_end|>"
_PYTHON = Syntax(re.compile(r"""["'()\[\]{}]"""), re.compile(r"""["'\\\n]"""), "\"'")
_MAYBE_NAME = re.compile(r"[\w\s.-]*")


class PythonicParser(CallParser):
    """Calls name one of ``functions``. The answer begins as if the marker had been there."""

    marker, closing, syntax = START, END, _PYTHON

    def __init__(self, functions: frozenset[str]) -> None:
        super().__init__()
        self._functions = functions
        self._state = self._marked

    def _marked(self, text: str, events: list[Event]) -> str:
        """Where a list of calls may stand. ``_held`` is the space, and the tag, before it."""
        rest = self._skip_space(text)
        if rest.startswith("["):
            self._value.push("[")
            self._state = self._name
            return rest[1:]
        if rest:
            self._give_up(events)
        return rest

    def _name(self, text: str, events: list[Event]) -> str:
        """The first function's name up to its parenthesis: a list of anything else need not be held back to its end."""
        taken = _MAYBE_NAME.match(text)
        at = taken.end() if taken else 0
        self._value.push(text[:at])
        written = self._value.text[1:].strip()
        if at < len(text) and text[at] == "(" and written in self._functions:
            self._state = self._inside
        elif at < len(text) or not any(name.startswith(written) for name in self._functions):
            self._give_up(events)
        return text[at:]

    def _read(self, text: str) -> list[Call] | None:
        calls = read_calls(text)
        return None if calls is None or any(call.name not in self._functions for call in calls) else calls
