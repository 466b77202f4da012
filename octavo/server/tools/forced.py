"""Calls that the grammar of the output forces, streamed as they are written.

With a named function the whole text is its arguments. With ``required`` it is an array of objects with ``name`` and
``parameters``, in this order. The grammar vouches for the form, so arguments need not be complete to be passed on; only an
output that was cut short leaves them incomplete.
"""

import re

import msgspec

from octavo.server.tools.events import CallArguments, CallStart, Event, content
from octavo.server.tools.pieces import NotJson, ValueEnd
from octavo.server.tools.states import StateParser

_HEAD = re.compile(r'\s*[\[,]\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*+")\s*,\s*"parameters"\s*:\s*(?=\{)')
_MAX_HEAD = 4096


class NamedParser:
    """The arguments of ``name``, and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def push(self, text: str) -> list[Event]:
        if not text:
            return []
        first: list[Event] = [] if self._begun else [CallStart(self._name)]
        self._begun = True
        return [*first, CallArguments(text)]

    def finish(self) -> list[Event]:
        return []


class RequiredParser(StateParser):
    """One or more calls. Text that the grammar does not allow is content, and so is the beginning of a first call that was cut
    before its arguments. Of a later one that was cut like this nothing is left."""

    def __init__(self) -> None:
        super().__init__(self._head)
        self._held = ""
        self._called = False
        self._arguments = ValueEnd()

    def finish(self) -> list[Event]:
        held = self._held.strip()
        is_syntax = self._called and (held == "]" or held.startswith(","))
        return content(self._held) if held and not is_syntax else []

    def _head(self, text: str, events: list[Event]) -> str:
        """Everything up to a call's arguments."""
        self._held += text
        found = _HEAD.match(self._held)
        if found is None or found.end() > _MAX_HEAD:
            return self._plain("", events) if len(self._held) > _MAX_HEAD else ""
        try:
            name = msgspec.json.decode(found.group(1), type=str)
        except (msgspec.DecodeError, UnicodeError):
            return self._plain("", events)
        rest = self._held[found.end() :]
        events.append(CallStart(name))
        self._called = True
        self._held, self._state, self._arguments = "", self._in_arguments, ValueEnd()
        return rest

    def _in_arguments(self, text: str, events: list[Event]) -> str:
        try:
            end = self._arguments.feed(text)
        except NotJson:
            self._state = self._plain
            return text
        events.append(CallArguments(text[:end]))
        if end is None:
            return ""
        self._state = self._tail
        return text[end:]

    def _tail(self, text: str, events: list[Event]) -> str:
        """The brace that ends the object around the arguments."""
        rest = text.lstrip()
        if rest:
            self._state = self._head if rest.startswith("}") else self._plain
        return rest.removeprefix("}")

    def _plain(self, text: str, events: list[Event]) -> str:
        events += content(self._held + text)
        self._held, self._state = "", self._plain
        return ""
