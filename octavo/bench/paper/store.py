"""What was measured, in files: one JSON object a measurement, written when it is done, found again by what it measured.

Owns the folder. A result is found by a digest of its specification: whatever the result depends on must be in there. With
``force`` nothing that an earlier process wrote is taken.
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from octavo.bench.report import writing
from octavo.config import ConfigError


class Store:
    """``once`` computes what is not there yet."""

    def __init__(self, folder: Path, *, force: bool = False) -> None:
        self.folder = folder
        self._force = force
        self._fresh: set[Path] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {folder}: cannot be made a directory: {error.strerror or error}") from error

    def path_of(self, name: str, spec: Mapping[str, Any]) -> Path:
        """Where the result of ``spec`` is. ``name`` is for people: words of it become the file's name."""
        digest = sha256(_canonical(spec).encode()).hexdigest()[:12]
        return self.folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-')}-{digest}.json"

    def find(self, name: str, spec: Mapping[str, Any]) -> dict[str, Any] | None:
        """The stored result, if there is one to be trusted."""
        path = self.path_of(name, spec)
        if self._force and path not in self._fresh:
            return None
        try:
            stored = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        same = isinstance(stored, dict) and _canonical(stored.get("spec")) == _canonical(spec)
        return stored["result"] if same and isinstance(stored.get("result"), dict) else None

    def once(self, name: str, spec: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The result of ``spec``: the stored one, or what ``compute`` gives, stored before it is returned."""
        found = self.find(name, spec)
        if found is not None:
            return found
        start = time.monotonic()
        result = dict(compute())
        path = self.path_of(name, spec)
        content = {"name": name, "seconds": round(time.monotonic() - start, 3), "spec": spec, "result": result}
        write(path, json.dumps(content, indent=1) + "\n")
        self._fresh.add(path)
        return result


def write(path: Path, text: str) -> None:
    """All of it or nothing: a process that is ended in the middle leaves no half of a file, and two at once disturb nobody.
    Raises ``ConfigError``."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    with writing(path):
        beside.write_text(text)
        beside.replace(path)


def _canonical(spec: Any) -> str:
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))
