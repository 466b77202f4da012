"""Tools for reading text that comes in pieces: markers that may be cut anywhere, and where a JSON value ends.

Time is linear in the text, whatever its pieces. Knows nothing of calls.
"""

import re

MAX_DEPTH = 64
_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\\x00-\x1f]')
_CLOSES = {"}": "{", "]": "["}


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
    """No continuation makes this JSON. ``at`` is the index of the character in the piece that was fed last."""

    def __init__(self, at: int) -> None:
        super().__init__(f"not JSON at {at}")
        self.at = at


class JsonEnd:
    """Finds where an object or array ends. It follows brackets and strings; decoding finds what else is wrong."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, begin: int = 0) -> int | None:
        """Goes on at ``text[begin]``, at first the opening bracket. Returns the index just past the value, None while it goes
        on. Raises ``NotJson``."""
        i = begin
        while i < len(text):
            if self._in_string:
                i = self._through_string(text, i)
                continue
            found = _STRUCTURE.search(text, i)
            if found is None:
                return None
            i = found.end()
            character = found.group()
            if character == '"':
                self._in_string = True
            elif character in "{[":
                self._open.append(character)
                if len(self._open) > MAX_DEPTH:
                    raise NotJson(i - 1)
            else:
                if not self._open or self._open.pop() != _CLOSES[character]:
                    raise NotJson(i - 1)
                if not self._open:
                    return i
        return None

    def _through_string(self, text: str, i: int) -> int:
        if self._escaped:
            self._escaped = False
            return i + 1
        found = _IN_STRING.search(text, i)
        if found is None:
            return len(text)
        if found.group() == "\\":
            self._escaped = True
        elif found.group() == '"':
            self._in_string = False
        else:  # a bare control character, as the line break after a string that was never closed
            raise NotJson(found.start())
        return found.end()
