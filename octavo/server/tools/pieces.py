"""Tools for reading text that comes in pieces: markers that may be cut anywhere, and where a value in brackets ends.

Time is linear in the text, whatever its pieces. Knows nothing of calls.
"""

import re

import msgspec

MAX_DEPTH = 64
_CLOSES = {"}": "{", "]": "[", ")": "("}


def overlap(text: str, marker: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``marker``."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def split_at(text: str, marker: str) -> tuple[str, str, bool]:
    """-> (text before ``marker``, the rest, whether it was found). Not found, the rest is what may be its beginning."""
    at = text.find(marker)
    if at >= 0:
        return text[:at], text[at + len(marker) :], True
    end = len(text) - overlap(text, marker)
    return text[:end], text[end:], False


class NotJson(ValueError):
    """No continuation makes this a value. ``at`` is the index of the character in the piece that was fed last."""

    def __init__(self, at: int) -> None:
        super().__init__(f"not JSON at {at}")
        self.at = at


class Syntax(msgspec.Struct, frozen=True):
    """How values are written: what matters outside strings, what matters in them, and which characters are their quotes. What
    matters in a string and is neither a quote nor a backslash cannot be there."""

    outside: re.Pattern[str]
    inside: re.Pattern[str]
    quotes: str


JSON = Syntax(re.compile(r'["{}\[\]]'), re.compile(r'["\\\x00-\x1f]'), '"')
"""A bare control character is no JSON, as the line break after a string that was never closed."""


class ValueEnd:
    """Finds where a value in brackets ends. It follows brackets and strings; reading it finds what else is wrong."""

    def __init__(self, syntax: Syntax = JSON) -> None:
        self._syntax = syntax
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Goes on with ``text``, at first from the opening bracket. Returns the index just past the value, None while it goes
        on. Raises ``NotJson``."""
        i = 0
        while i < len(text):
            if self._quote:
                i = self._through_string(text, i)
                continue
            found = self._syntax.outside.search(text, i)
            if found is None:
                return None
            i, character = found.end(), found.group()
            if character in self._syntax.quotes:
                self._quote = character
            elif character in _CLOSES:
                if not self._open or self._open.pop() != _CLOSES[character]:
                    raise NotJson(i - 1)
                if not self._open:
                    return i
            else:
                self._open.append(character)
                if len(self._open) > MAX_DEPTH:
                    raise NotJson(i - 1)
        return None

    def _through_string(self, text: str, i: int) -> int:
        if self._escaped:
            self._escaped = False
            return i + 1
        found = self._syntax.inside.search(text, i)
        if found is None:
            return len(text)
        character = found.group()
        if character == "\\":
            self._escaped = True
        elif character == self._quote:
            self._quote = ""
        elif character not in self._syntax.quotes:
            raise NotJson(found.start())
        return found.end()


class Bracketed:
    """One value as it grows. ``text`` is all of it that has come."""

    def __init__(self, syntax: Syntax = JSON) -> None:
        self._end = ValueEnd(syntax)
        self._pieces: list[str] = []

    def push(self, text: str) -> int | None:
        """Takes ``text`` up to the value's end. Returns the index just past it, None while it goes on. Raises ``NotJson``;
        what is before its ``at`` has been taken."""
        try:
            end = self._end.feed(text)
        except NotJson as error:
            self._pieces.append(text[: error.at])
            raise
        self._pieces.append(text[:end])
        return end

    @property
    def text(self) -> str:
        return "".join(self._pieces)
