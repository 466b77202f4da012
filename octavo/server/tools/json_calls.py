"""What the parsers of calls in JSON share: free text up to a marker, and one object at a time.

Knows no format: a parser says what may stand between its marker and an object, what the object has to be, and what comes after
it. The invariant: all text that has been taken and is not yet an event is in ``_held`` and ``_object``.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from octavo.server.tools.events import Event, content, whole_call
from octavo.server.tools.pieces import NotJson, split_at
from octavo.server.tools.states import State, StateParser
from octavo.server.tools.written import Call, JsonObject, read_call


class JsonCallParser(StateParser, ABC):
    """One answer's. ``marker`` is what calls stand behind."""

    marker: ClassVar[str]

    def __init__(self) -> None:
        super().__init__(self._outside)
        self._held = ""
        self._object = JsonObject()

    def finish(self) -> list[Event]:
        inside = self._object.text if self._state == self._inside else ""
        return content(self._held + inside)

    @abstractmethod
    def _marked(self, text: str, events: list[Event]) -> str:
        """The state behind the marker, which is in ``_held``."""

    @abstractmethod
    def _after_call(self) -> State:
        """The state behind a call."""

    def _read(self, text: str) -> Call | None:
        """The call that a whole object is; None when it is none."""
        return read_call(text)

    def _outside(self, text: str, events: list[Event]) -> str:
        before, rest, found = split_at(self._held + text, self.marker)
        events += content(before)
        if not found:
            self._held = rest
            return ""
        self._held, self._state = self.marker, self._marked
        return rest

    def _skip_space(self, text: str) -> str:
        rest = text.lstrip()
        self._held += text[: len(text) - len(rest)]
        return rest

    def _begin_object(self) -> None:
        self._object, self._state = JsonObject(), self._inside

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
            self._held, self._state = "", self._after_call()
        return text[end:]

    def _give_up(self, events: list[Event], read: str = "") -> None:
        """It was no call: what was read of it is content."""
        events += content(self._held + read)
        self._held, self._state = "", self._outside
