"""What the text of an answer turns out to be: events, and the shape of every parser that makes them.

A parser reads text as it grows and knows no request, no token and no HTTP. Two invariants hold for all of them. However the
text is cut into pieces, the events joined are the same; and no text raises: what is not a well-formed call stays content.
"""

from typing import Protocol, TypeAlias

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the reader."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call of the function ``name`` begins. Its arguments follow."""

    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of the latest call's arguments: joined, they are the text of a JSON object."""

    text: str


Event: TypeAlias = Content | CallStart | CallArguments


class Parser(Protocol):
    """One answer's."""

    def push(self, text: str) -> list[Event]:
        """What more text settles. Text that may yet become a call is held back."""
        ...

    def finish(self) -> list[Event]:
        """The answer is over: what was held back is content after all."""
        ...


def whole_call(name: str, arguments: str) -> list[Event]:
    """A call that is known in full."""
    return [CallStart(name), CallArguments(arguments)]


def content(text: str) -> list[Event]:
    """The event for ``text``, none when it is empty."""
    return [Content(text)] if text else []
