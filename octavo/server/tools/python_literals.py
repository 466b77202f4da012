"""Reads ``[f(a=1), g(b="x")]`` without running anything, and without Python's own parser.

That one recurses as deep as the text nests and can end the process; here depth is bounded, and whatever is not a list of calls
with literal keyword arguments is None. ``true``, ``false`` and ``null`` are read as well.
"""

import json
import math
import re
from typing import Any

from octavo.server.tools.pieces import MAX_DEPTH
from octavo.server.tools.written import Call

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>'(?:[^'\\\n]|\\[^\n])*+'|"(?:[^"\\\n]|\\[^\n])*+")
      | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[^\W\d][\w.-]*)
      | (?P<mark>[\[\](){},:=])
    )""",
    re.VERBOSE,
)
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\\": "\\", "'": "'", '"': '"'}


class _NotCalls(ValueError):
    pass


def read_calls(text: str) -> list[Call] | None:
    """The calls in a list's text, from its bracket to its bracket; None when it is not one, or an empty one."""
    try:
        return _Reader(text).calls()
    except (_NotCalls, ValueError, OverflowError):
        return None


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        text, at = text.rstrip(), 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _NotCalls
            self._tokens.append((found.lastgroup or "", found.group(found.lastgroup or 0)))
            at = found.end()
        self._tokens.append(("end", ""))
        self._at = 0

    def calls(self) -> list[Call]:
        self._expect("[")
        found = [self._call()]
        while self._take(",") and not self._next_is("]"):
            found.append(self._call())
        self._expect("]")
        if self._tokens[self._at][0] != "end":
            raise _NotCalls
        return found

    def _call(self) -> Call:
        name = self._word()
        self._expect("(")
        arguments: dict[str, Any] = {}
        while not self._next_is(")"):
            key = self._word()
            self._expect("=")
            if key in arguments:
                raise _NotCalls
            arguments[key] = self._value(1)
            if not self._take(","):
                break
        self._expect(")")
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()  # half of a surrogate pair is no text
        return Call(name, text)

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _NotCalls
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "string":
            return self._strings(_unescaped(text[1:-1]))
        if kind == "number":
            return _number(text)
        if kind == "name" and text in _WORDS:
            return _WORDS[text]
        if text == "[" and kind == "mark":
            return self._items("]", depth)
        if text == "(" and kind == "mark":
            return self._items(")", depth)
        if text == "{" and kind == "mark":
            return self._mapping(depth)
        raise _NotCalls

    def _strings(self, first: str) -> str:
        """Strings side by side are one."""
        parts = [first]
        while self._tokens[self._at][0] == "string":
            parts.append(_unescaped(self._tokens[self._at][1][1:-1]))
            self._at += 1
        return "".join(parts)

    def _items(self, close: str, depth: int) -> list[Any]:
        found = []
        while not self._next_is(close):
            found.append(self._value(depth + 1))
            if not self._take(","):
                break
        self._expect(close)
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._next_is("}"):
            key = self._value(depth + 1)
            if not isinstance(key, str):
                raise _NotCalls
            self._expect(":")
            found[key] = self._value(depth + 1)
            if not self._take(","):
                break
        self._expect("}")
        return found

    def _word(self) -> str:
        kind, text = self._tokens[self._at]
        if kind != "name":
            raise _NotCalls
        self._at += 1
        return text

    def _next_is(self, mark: str) -> bool:
        return self._tokens[self._at] == ("mark", mark)

    def _take(self, mark: str) -> bool:
        taken = self._next_is(mark)
        self._at += taken
        return taken

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise _NotCalls


def _number(text: str) -> int | float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotCalls
    return int(text) if text.lstrip("+-").isdigit() else value


def _unescaped(text: str) -> str:
    """The text of a string literal; an escape that Python does not know stays as it is, as in Python."""
    return _ESCAPE.sub(_escape, text) if "\\" in text else text


def _escape(found: re.Match[str]) -> str:
    two, four, eight, octal, other = found.groups()
    if other is not None:
        return _SIMPLE.get(other, found.group())
    return chr(int(octal, 8) if octal is not None else int(two or four or eight, 16))
