"""Typed, bounded access to the fields of an untrusted dict: a parsed config.json, or a GGUF file's metadata.

Owns the wording of refusals: each is one ``ConfigError`` naming the file, the field and the bounds. A field that is null
counts as missing. Knows nothing of models.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.config import ConfigError

MAX_TOKEN_ID = 1 << 31


class Fields:
    """A dict from one file. ``prefix`` is put before every name that is looked up; ``within`` names, in messages, the object
    that the dict lies in."""

    def __init__(self, path: Path, values: Mapping[str, Any], *, prefix: str = "", within: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix
        self._within = within

    def get(self, name: str) -> Any:
        """The raw value; None if missing."""
        return self._values.get(self._prefix + name)

    def refuse(self, name: str, reason: str) -> ConfigError:
        """The error for a field, to be raised by the caller."""
        return ConfigError(f"{self.path}: field '{self._within}{self._prefix}{name}' {reason}")

    def maybe_integer(self, name: str, *, low: int = 1, high: int) -> int | None:
        """An integer in [low, high], or None if the field is missing. 8.0 counts as 8."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise self.refuse(name, f"must be an integer from {low} to {high}, got {_short(value)}")
        return value

    def integer(self, name: str, *, low: int = 1, high: int) -> int:
        """As ``maybe_integer``, but the field must be there."""
        value = self.maybe_integer(name, low=low, high=high)
        if value is None:
            raise self.refuse(name, "is missing")
        return value

    def maybe_number(self, name: str, *, low: float, high: float, above: bool = False) -> float | None:
        """A finite number in [low, high] (``above``: in (low, high]), or None if the field is missing."""
        value = self.get(name)
        if value is None:
            return None
        fits = type(value) in (int, float) and math.isfinite(value) and low <= value <= high and not (above and value == low)
        if not fits:
            bounds = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise self.refuse(name, f"must be a number {bounds}, got {_short(value)}")
        return float(value)

    def number(self, name: str, *, low: float, high: float, above: bool = False) -> float:
        """As ``maybe_number``, but the field must be there."""
        value = self.maybe_number(name, low=low, high=high, above=above)
        if value is None:
            raise self.refuse(name, "is missing")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, f"must be true or false, got {_short(value)}")
        return value

    def text(self, name: str, *, default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, f"must be a string, got {_short(value)}")
        return value

    def inner(self, name: str) -> "Fields | None":
        """The object in field ``name``; None if missing."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, f"must be an object, got {_short(value)}")
        return Fields(self.path, value, within=f"{name}.")

    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A token id or a list of them; () if missing."""
        value = self.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if len(ids) > 256 or not all(type(item) is int and 0 <= item < MAX_TOKEN_ID for item in ids):
            raise self.refuse(name, f"must be a token id or a list of token ids, got {_short(value)}")
        return tuple(dict.fromkeys(ids))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
