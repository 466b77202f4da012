"""Processes that compute simulated points, as many at once as there are cores: a simulation takes one.

Each has a bench of its own; runs that figures share are found in the store. Nothing else is to be measured meanwhile. None
outlives the process that began it.
"""

import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from typing import Self

import msgspec

from octavo.bench.options import PaperOptions
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import Figure, Point, Record
from octavo.bench.paper.figures import FIGURES
from octavo.config import EngineConfig

_benches: list[Bench] = []
"""A helper's own."""


class Helpers:
    """A context. The processes begin with the first point."""

    def __init__(self, config: EngineConfig, options: PaperOptions) -> None:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        number = len(cores) if cores else os.cpu_count()
        self._pool = ProcessPoolExecutor(number, get_context("spawn"), _begin, (config, options, cores))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        processes = list(self._pool._processes.values())  # shutdown forgets them
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes if error is not None else ():
            process.terminate()  # or the interpreter would wait for its point

    def measure(self, bench: Bench, figure: Figure, points: Sequence[Point]) -> list[Record]:
        """The records of points of ``figure``, in order. Raises what a point raises."""
        futures = [self._pool.submit(_measure, figure.name, point) for point in points]
        keys = {future: point.key for future, point in zip(futures, points, strict=True)}
        for number, future in enumerate(as_completed(futures), 1):
            future.result()
            bench.say(f"  {figure.name} [{number}/{len(points)}] simulated: {keys[future]}")
        records = []
        for future in futures:
            record, described = future.result()
            bench.described |= described
            records.append(record)
        return records


def _begin(config: EngineConfig, options: PaperOptions, cores: set[int] | None) -> None:
    """In each process: all cores, whatever the parent's threads have by then, and an end with the terminal's interrupt."""
    if cores is not None:
        os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _benches.append(Bench(config, options))


def _end_with_parent() -> None:
    """However the parent ends."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _measure(name: str, point: Point) -> tuple[Record, dict[str, str]]:
    (bench,) = _benches
    figure = next(figure for figure in FIGURES if figure.name == name)
    return msgspec.to_builtins(figure.measure(bench, point)), bench.described
