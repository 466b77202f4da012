"""A call as models write it in JSON, and what it says.

Arguments are passed on in the model's own words, letter for letter, once they are known to be a JSON object that any client can
read: no NaN, no number beyond a double, no half of a surrogate pair.
"""

import json
import math

import msgspec


class Call(msgspec.Struct, frozen=True):
    """``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


def _check_whole(digits: str) -> None:
    """Raises ``ValueError`` for an integer that is infinite to who reads numbers as doubles."""
    if math.isinf(float(digits)):
        raise ValueError


_check_numbers = json.JSONDecoder(parse_int=_check_whole).decode
_NULL = msgspec.Raw(b"null")


class _Named(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = _NULL
    parameters: msgspec.Raw = _NULL


def read_call(text: str) -> Call | None:
    """``{"name": ..., "arguments": {...}}``, or with ``parameters``; None when it is anything else. Without arguments they are
    empty; arguments that were encoded twice are the object inside."""
    try:
        msgspec.json.decode(text)  # all of it: what is skipped on the way to a field is not looked at closely
        named = msgspec.json.decode(text, type=_Named)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    raw = bytes(named.arguments)
    arguments = read_arguments((bytes(named.parameters) if raw == b"null" else raw).decode())
    return Call(named.name, arguments) if named.name and arguments is not None else None


def read_arguments(text: str) -> str | None:
    """``text`` as the text of a JSON object, None when it is not one. null is the empty object."""
    try:
        value = msgspec.json.decode(text)
        if isinstance(value, str):
            text, value = value, msgspec.json.decode(value)
        _check_numbers(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if value is None:
        return "{}"
    return text.strip() if isinstance(value, dict) else None
