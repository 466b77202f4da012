"""A parser as states: each takes text, adds events and returns what it leaves to the next."""

from collections.abc import Callable
from typing import TypeAlias

from octavo.server.tools.events import Event

State: TypeAlias = Callable[[str, list[Event]], str]


class StateParser:
    """``_state`` is where it stands. A state that leaves text has made way for another, or has taken some of it."""

    def __init__(self, first: State) -> None:
        self._state = first

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._state(text, events)
        return events
