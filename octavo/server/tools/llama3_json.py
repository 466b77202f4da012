"""Calls as Llama 3 writes them: the answer is ``{"name": "f", "parameters": {...}}``, several with semicolons between.

``<|python_tag|>`` may stand before, and where it does, calls may follow text. Nothing else tells such an answer from one that
just is JSON: an object is a call when it names a function of the request, else content.
"""

from octavo.server.tools.calls import CallParser
from octavo.server.tools.events import Event
from octavo.server.tools.states import State
from octavo.server.tools.written import Call, read_call

MARKER = "<|python_tag|>"


def llama3_json_grammar(call: str, many: bool) -> str:
    """The grammar of an answer that is a ``call``, itself an expression of a grammar, or several, or text."""
    more = " (SEPARATOR call)*" if many else ""
    return (
        f"start: call{more} | TEXT\ncall: {call}\nTEXT: /[^{{ \\n\\r\\t](.|\\n)*/\nSEPARATOR: /[ \\n]{{0,4}};[ \\n]{{0,4}}/\n"
    )


class Llama3JsonParser(CallParser):
    """Calls name one of ``functions``. The answer begins as if the marker had been there."""

    marker = MARKER

    def __init__(self, functions: frozenset[str]) -> None:
        super().__init__()
        self._functions = functions
        self._state = self._marked

    def _marked(self, text: str, events: list[Event]) -> str:
        return self._maybe_object(text, events, separators="")

    def _between(self, text: str, events: list[Event]) -> str:
        return self._maybe_object(text, events, separators=";,")

    def _after_call(self) -> State:
        return self._between

    def _maybe_object(self, text: str, events: list[Event], *, separators: str) -> str:
        """Where a call may stand. ``_held`` is what has been read since the last call."""
        rest = self._skip_space(text)
        if not rest:
            return ""
        if rest[0] in separators:
            self._held += rest[0]
            self._state = self._marked
            return rest[1:]
        if rest[0] == "{":
            self._state = self._inside
        else:
            self._give_up(events)
        return rest

    def _read(self, text: str) -> list[Call] | None:
        call = read_call(text)
        return [call] if call is not None and call.name in self._functions else None
