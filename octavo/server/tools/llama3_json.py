"""Calls as Llama 3 writes them: the answer is ``{"name": "f", "parameters": {...}}``, several with semicolons between.

``<|python_tag|>`` may stand before, and where it does, calls may follow text. Nothing else tells such an answer from one that
just is JSON: an object is a call when it names a function of the request, else content.
"""

from octavo.server.tools.events import Event, content, whole_call
from octavo.server.tools.pieces import NotJson, split_at
from octavo.server.tools.written import JsonObject, read_call

MARKER = "<|python_tag|>"


def llama3_json_grammar(call: str, many: bool) -> str:
    """The grammar of an answer that is a ``call``, itself an expression of a grammar, or several, or text."""
    more = " (SEPARATOR call)*" if many else ""
    return (
        f"start: call{more} | TEXT\ncall: {call}\nTEXT: /[^{{ \\n\\r\\t](.|\\n)*/\nSEPARATOR: /[ \\n]{{0,4}};[ \\n]{{0,4}}/\n"
    )


class Llama3JsonParser:
    """Calls name one of ``functions``."""

    def __init__(self, functions: frozenset[str]) -> None:
        self._functions = functions
        self._state = self._start
        self._held = ""
        self._object = JsonObject()

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._state(text, events)
        return events

    def finish(self) -> list[Event]:
        inside = self._object.text if self._state == self._inside else ""
        return content(self._held + inside)

    def _start(self, text: str, events: list[Event]) -> str:
        """Where a call may stand. ``_held`` is what has been read since the last call."""
        return self._maybe_object(text, events, separators="")

    def _between(self, text: str, events: list[Event]) -> str:
        return self._maybe_object(text, events, separators=";,")

    def _maybe_object(self, text: str, events: list[Event], *, separators: str) -> str:
        rest = text.lstrip()
        self._held += text[: len(text) - len(rest)]
        if not rest:
            return ""
        if rest[0] in separators:
            self._held += rest[0]
            self._state = self._start
            return rest[1:]
        if rest[0] == "{":
            self._object, self._state = JsonObject(), self._inside
            return rest
        events += content(self._held)
        self._held, self._state = "", self._outside
        return rest

    def _outside(self, text: str, events: list[Event]) -> str:
        before, rest, found = split_at(self._held + text, MARKER)
        events += content(before)
        if not found:
            self._held = rest
            return ""
        self._held, self._state = MARKER, self._start
        return rest

    def _inside(self, text: str, events: list[Event]) -> str:
        try:
            end = self._object.push(text)
        except NotJson as error:
            self._give_up(events)
            return text[error.at :]
        if end is None:
            return ""
        call = read_call(self._object.text)
        if call is None or call.name not in self._functions:
            self._give_up(events)
        else:
            events += whole_call(call.name, call.arguments)
            self._held, self._state = "", self._between
        return text[end:]

    def _give_up(self, events: list[Event]) -> None:
        events += content(self._held + self._object.text)
        self._held, self._state = "", self._outside
