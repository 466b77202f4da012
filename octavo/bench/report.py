"""What measurements have in common when they report: statistics, progress, and JSON to the terminal or a file."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

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
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def check_writable(path: str | None, flag: str) -> None:
    """Before minutes of measuring. Raises ``ConfigError`` where the file's directory is not there."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no directory {Path(path).absolute().parent}")


def emit(result: Any, text: str, *, as_json: bool, output_json: str | None) -> None:
    """Print ``text``, or ``result`` as one line of JSON; with ``output_json`` write it to that file, too."""
    if output_json is not None:
        Path(output_json).write_text(json.dumps(msgspec.to_builtins(result), indent=2) + "\n")
    print(json.dumps(msgspec.to_builtins(result)) if as_json else text)


def bar(total: int, title: str) -> "tqdm[int]":
    """A bar on a terminal that goes to ``total``; nothing elsewhere."""
    from tqdm import tqdm

    return tqdm(range(total), desc=title, leave=False, disable=None)


def progress(total: int, title: str) -> Iterable[int]:
    """``range(total)``, with a bar on a terminal."""
    shown: Iterable[int] = bar(total, title)
    return shown
