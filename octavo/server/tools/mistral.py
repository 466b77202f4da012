"""Calls as Mistral's models write them, after the token ``[TOOL_CALLS]``.

The older ones go on with an array, ``[{"name": "f", "arguments": {...}}, ...]``, the newer ones with ``f[ARGS]{...}`` or
``f{...}``, the token again before each further call. What follows the token and is no call stays content.
"""

import re

from octavo.server.tools.calls import CallParser
from octavo.server.tools.events import Event
from octavo.server.tools.states import State
from octavo.server.tools.written import Call, read_arguments

MARKER = "[TOOL_CALLS]"
_HEADER = re.compile(r"\s*([\w./-]{1,256})\s*(?:\[CALL_ID\]\s*[\w-]{0,64}\s*)?(?:\[ARGS\]\s*)?")
_MAX_HEADER = 400


class MistralParser(CallParser):
    """A call of a function that is not among ``functions`` is a call, and the client's to refuse."""

    marker = MARKER

    def __init__(self, functions: frozenset[str]) -> None:
        super().__init__()
        self._name: str | None = None

    def _marked(self, text: str, events: list[Event]) -> str:
        """An array of calls begins, or a name. ``_held`` is all that has been read since the last call."""
        rest = self._skip_space(text)
        if rest.startswith("["):
            self._held += "["
            self._state = self._element
            return rest[1:]
        if rest:
            self._state = self._header
        return rest

    def _header(self, text: str, events: list[Event]) -> str:
        name, brace, _ = text[: _MAX_HEADER + 1 - len(self._held)].partition("{")
        self._held += name
        if brace:
            found = _HEADER.fullmatch(self._held.removeprefix(MARKER))
            if found is None:
                self._give_up(events)
            else:
                self._name = found.group(1)
                self._state = self._inside
        elif len(self._held) > _MAX_HEADER:
            self._give_up(events)
        return text[len(name) :]

    def _element(self, text: str, events: list[Event]) -> str:
        rest = self._skip_space(text)
        if rest.startswith("{"):
            self._name = None
            self._state = self._inside
        elif rest:
            self._give_up(events)
        return rest

    def _between(self, text: str, events: list[Event]) -> str:
        rest = self._skip_space(text)
        if rest.startswith(","):
            self._held += ","
            self._state = self._element
            return rest[1:]
        if rest.startswith("]"):
            self._held, self._state = "", self._outside
            return rest[1:]
        if rest:
            self._give_up(events)
        return rest

    def _after_call(self) -> State:
        return self._outside if self._name else self._between

    def _read(self, text: str) -> list[Call] | None:
        if self._name is None:
            return super()._read(text)
        arguments = read_arguments(text)
        return None if arguments is None else [Call(self._name, arguments)]
