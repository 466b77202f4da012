"""JSON objects from a model's files: bounded in size, without duplicate keys, every failure a one-line ``ConfigError``.

Knows nothing of what the objects mean.
"""

import json
from pathlib import Path
from typing import Any

from octavo.config import ConfigError


def read_json(path: Path, *, max_bytes: int = 16_000_000) -> dict[str, Any]:
    """A JSON object from a file of bounded size. Raises ``ConfigError`` if it is missing, too large or not an object."""
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(text) > max_bytes:
        raise ConfigError(f"{path}: larger than {max_bytes} bytes; this is not a model's JSON file")
    return parse_json_object(text, path)


def parse_json_object(text: bytes, path: Path) -> dict[str, Any]:
    """A JSON object without duplicate keys; ``path`` is for the error."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0][:120]
        raise ConfigError(f"{path}: invalid JSON ({reason}); the file is damaged, download it again") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {key[:80]!r}")
            seen.add(key)
    return value
