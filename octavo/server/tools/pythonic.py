"""Calls as Python: the answer is ``[f(a=1), g(b="x")]``, as Llama 3.2 and 4, ToolACE and others write it.

``<|python_start|>`` and ``<|python_end|>`` may stand around it, and where they do, calls may follow text. The list is taken as
a whole or not at all: anything in it but calls of the request's functions with literal keyword arguments makes it content.
"""

import re

from octavo.server.tools.events import Event, content, whole_call
from octavo.server.tools.pieces import MAX_DEPTH, NotJson, split_at
from octavo.server.tools.python_literals import read_calls

START, END = "<|python_start|>", "<|python_end|>"
_STRUCTURE = re.compile(r"""["'()\[\]{}]""")
_IN_STRING = re.compile(r"""["'\\\n]""")
_CLOSES = {")": "(", "]": "[", "}": "{"}
_MAYBE_NAME = re.compile(r"[\w\s.-]*")


class PythonicParser:
    """Calls name one of ``functions``."""

    def __init__(self, functions: frozenset[str]) -> None:
        self._functions = functions
        self._state = self._start
        self._held = ""
        self._end = _ListEnd()
        self._pieces: list[str] = []

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._state(text, events)
        return events

    def finish(self) -> list[Event]:
        held = "" if self._state == self._after else self._held
        return content(held + "".join(self._pieces))

    def _start(self, text: str, events: list[Event]) -> str:
        """Where a list of calls may stand. ``_held`` is the space, and the tag, before it."""
        rest = text.lstrip()
        self._held += text[: len(text) - len(rest)]
        if rest.startswith("["):
            self._end, self._state = _ListEnd(), self._name
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


class _ListEnd:
    """Finds where a Python list ends."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Returns the index just past the list, None while it goes on. Raises ``NotJson`` where it cannot go on."""
        i = 0
        while i < len(text):
            if self._quote:
                i = self._through_string(text, i)
                continue
            found = _STRUCTURE.search(text, i)
            if found is None:
                return None
            i, character = found.end(), found.group()
            if character in "'\"":
                self._quote = character
            elif character in "([{":
                self._open.append(character)
                if len(self._open) > MAX_DEPTH:
                    raise NotJson(i - 1)
            elif self._open.pop() != _CLOSES[character]:
                raise NotJson(i - 1)
            elif not self._open:
                return i
        return None

    def _through_string(self, text: str, i: int) -> int:
        if self._escaped:
            self._escaped = False
            return i + 1
        found = _IN_STRING.search(text, i)
        if found is None:
            return len(text)
        if found.group() == "\n":
            raise NotJson(found.start())
        if found.group() == "\\":
            self._escaped = True
        elif found.group() == self._quote:
            self._quote = ""
        return found.end()
