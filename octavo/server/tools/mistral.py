"""Calls as Mistral's models write them, after the token ``[TOOL_CALLS]``.

The older ones go on with an array, ``[{"name": "f", "arguments": {...}}, ...]``, the newer ones with ``f[ARGS]{...}`` or
``f{...}``, the token again before each further call. What follows the token and is no call stays content.
"""

import re

from octavo.server.tools.events import Event, content, whole_call
from octavo.server.tools.pieces import NotJson, split_at
from octavo.server.tools.written import Call, JsonObject, read_arguments, read_call

MARKER = "[TOOL_CALLS]"
_HEADER = re.compile(r"\s*([\w./-]{1,256})\s*(?:\[CALL_ID\]\s*[\w-]{0,64}\s*)?(?:\[ARGS\]\s*)?")
_MAX_HEADER = 400


class MistralParser:
    """A call of a function that is not among ``functions`` is a call, and the client's to refuse."""

    def __init__(self, functions: frozenset[str]) -> None:
        self._state = self._outside
        self._held = ""
        self._name: str | None = None
        self._object = JsonObject()

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._state(text, events)
        return events

    def finish(self) -> list[Event]:
        inside = self._object.text if self._state == self._inside else ""
        return content(self._held + inside)

    def _outside(self, text: str, events: list[Event]) -> str:
        before, rest, found = split_at(self._held + text, MARKER)
        events += content(before)
        if not found:
            self._held = rest
            return ""
        self._held, self._state = MARKER, self._marked
        return rest

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
                self._begin_object(found.group(1))
        elif len(self._held) > _MAX_HEADER:
            self._give_up(events)
        return text[len(name) :]

    def _element(self, text: str, events: list[Event]) -> str:
        rest = self._skip_space(text)
        if rest.startswith("{"):
            self._begin_object(None)
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

    def _inside(self, text: str, events: list[Event]) -> str:
        try:
            end = self._object.push(text)
        except NotJson as error:
            self._give_up(events, self._object.text)
            return text[error.at :]
        if end is None:
            return ""
        call = self._read(self._object.text)
        if call is None:
            self._give_up(events, self._object.text)
        else:
            events += whole_call(call.name, call.arguments)
            self._held, self._state = "", self._outside if self._name else self._between
        return text[end:]

    def _read(self, text: str) -> Call | None:
        if self._name is None:
            return read_call(text)
        arguments = read_arguments(text)
        return None if arguments is None else Call(self._name, arguments)

    def _begin_object(self, name: str | None) -> None:
        self._name, self._object, self._state = name, JsonObject(), self._inside

    def _skip_space(self, text: str) -> str:
        rest = text.lstrip()
        self._held += text[: len(text) - len(rest)]
        return rest

    def _give_up(self, events: list[Event], read: str = "") -> None:
        events += content(self._held + read)
        self._held, self._state = "", self._outside
