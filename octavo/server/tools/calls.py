"""What the parsers of calls behind a marker share: free text up to it, and one value in brackets at a time.

Knows no format: a parser says what may stand between its marker and a value, what the value has to be, and what comes after
it. The invariant: all text that has been taken and is not yet an event is in ``_held`` and, after it, ``_value``.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from octavo.server.tools.events import Event, content, whole_call
from octavo.server.tools.pieces import JSON, Bracketed, NotJson, Syntax, split_at
from octavo.server.tools.states import State, StateParser
from octavo.server.tools.written import Call, read_call


class CallParser(StateParser, ABC):
    """One answer's. ``marker`` is what calls stand behind, ``closing`` a tag that may follow them."""

    marker: ClassVar[str]
    closing: ClassVar[str]
    syntax: ClassVar[Syntax] = JSON

    def __init__(self) -> None:
        super().__init__(self._outside)
        self._held = ""
        self._value = Bracketed(self.syntax)

    def finish(self) -> list[Event]:
        """Half a closing tag is none of the content."""
        return [] if self._state == self._after else content(self._held + self._value.text)

    @abstractmethod
    def _marked(self, text: str, events: list[Event]) -> str:
        """The state behind the marker, which is in ``_held``."""

    def _after_call(self) -> State:
        """The state behind a value."""
        return self._after

    def _read(self, text: str) -> list[Call] | None:
        """The calls that a whole value is; None when it is none."""
        call = read_call(text)
        return None if call is None else [call]

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

    def _inside(self, text: str, events: list[Event]) -> str:
        try:
            end = self._value.push(text)
        except NotJson as error:
            self._give_up(events)
            return text[error.at :]
        if end is None:
            return ""
        calls = self._read(self._value.text)
        if calls is None:
            self._give_up(events)
        else:
            for call in calls:
                events += whole_call(call.name, call.arguments)
            self._held, self._value, self._state = "", Bracketed(self.syntax), self._after_call()
        return text[end:]

    def _after(self, text: str, events: list[Event]) -> str:
        """The closing tag, or whatever is there instead of it."""
        text = self._held + text
        rest = text.lstrip()
        if self.closing.startswith(rest) and rest != self.closing:
            self._held = text
            return ""
        self._held, self._state = "", self._outside
        return rest.removeprefix(self.closing) if rest.startswith(self.closing) else text

    def _give_up(self, events: list[Event]) -> None:
        """It was no call: what was read of it is content."""
        events += content(self._held + self._value.text)
        self._held, self._value, self._state = "", Bracketed(self.syntax), self._outside
