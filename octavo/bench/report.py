"""What measurements have in common when they report: statistics, progress, and JSON to the terminal or a file."""

import contextlib
import json
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from octavo.config import ConfigError

if TYPE_CHECKING:
    from tqdm import tqdm

PERCENTILES = (10, 25, 50, 75, 90, 99)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of several values; ``percentiles`` by number, as text."""

    mean: float
    median: float
    percentiles: dict[str, float]


def summarize(values: Sequence[float]) -> Summary:
    """Of at least one value."""
    return Summary(
        mean=statistics.fmean(values),
        median=statistics.median(values),
        percentiles={str(p): percentile(values, p) for p in PERCENTILES},
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which so many of ``values`` lie, straight lines drawn between them."""
    return float(np.percentile(values, percent))


def check_writable(path: str | None, flag: str) -> None:
    """Before minutes of measuring. Raises ``ConfigError`` where no file could be written there."""
    if path is None:
        return
    file = os.path.abspath(path)
    directory = os.path.dirname(file)
    if not os.path.isdir(directory):
        raise ConfigError(f"{flag} {path}: there is no directory {directory}")
    if os.path.isdir(file):
        raise ConfigError(f"{flag} {path}: is a directory: give a file")
    if not os.access(file if os.path.exists(file) else directory, os.W_OK):
        raise ConfigError(f"{flag} {path}: may not be written: give another file")


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raises ``ConfigError`` where the system refuses to write ``path``."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def emit(result: Any, text: str, *, as_json: bool, output_json: str | None) -> None:
    """Print ``text``, or ``result`` as one line of JSON; then, with ``output_json``, write it to that file, too. Raises
    ``ConfigError``."""
    print(json.dumps(msgspec.to_builtins(result)) if as_json else text)
    if output_json is not None:
        with writing(output_json):
            Path(output_json).write_text(json.dumps(msgspec.to_builtins(result), indent=2) + "\n")


def bar(total: int, title: str) -> "tqdm[int]":
    """A bar on a terminal that goes to ``total``; nothing elsewhere."""
    from tqdm import tqdm

    return tqdm(range(total), desc=title, leave=False, disable=None)


def progress(total: int, title: str) -> Iterable[int]:
    """``range(total)``, with a bar on a terminal."""
    shown: Iterable[int] = bar(total, title)
    return shown
