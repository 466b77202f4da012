"""``octavo bench sweep``: one server at several rates of requests, as a table, as JSON, as a picture.

Every run has prompts of its own, so that no run finds another's in a prefix cache; all are made before the first. A server that
answers nothing at one rate is not asked at the next.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench import drawing
from octavo.bench.report import check_writable, writing
from octavo.bench.serve import plot
from octavo.bench.serve.data import Work
from octavo.bench.serve.main import Bench, warn_of_failures
from octavo.bench.serve.options import SweepOptions
from octavo.bench.serve.statistics import Figures, result

Measured = tuple[Figures, dict[str, Any]]


def main(options: SweepOptions) -> int:
    """Measure and report. Returns the exit status: 1 when a rate got no answer at all."""
    options.check()
    check_writable(options.output_json, "--output-json")
    check_writable(options.plot, "--plot")
    drawing.check_file(options.plot, "--plot")
    bench = Bench(options)
    found, values = _measure(bench, options)
    rates = options.rates[: len(found)]
    print(msgspec.json.encode(values).decode() if options.json else text(rates, found))
    if options.output_json is not None:
        with writing(options.output_json):
            Path(options.output_json).write_bytes(msgspec.json.encode(values) + b"\n")
    if options.plot is not None:
        title = f"{bench.model}, {options.num_prompts} requests at each rate"
        drawing.write(plot.over_rates(rates, found, title=title), options.plot)
    return 0 if found[-1].completed else 1


def _measure(bench: Bench, options: SweepOptions) -> tuple[list[Figures], list[dict[str, Any]]]:
    """Figures and JSON objects of the rates, up to the first that got no answer at all."""
    work = bench.work(runs=len(options.rates) * options.repeat)
    found, values = list[Figures](), list[dict[str, Any]]()
    for number, rate in enumerate(options.rates):
        figures, value = _at_rate(bench, options, work[number * options.repeat :][: options.repeat], rate)
        found.append(figures)
        values.append(value)
        if not figures.completed:
            print(f"octavo: warning: no answer at {rate:g} requests/s: the sweep ends here", file=sys.stderr, flush=True)
            break
    return found, values


def _at_rate(bench: Bench, options: SweepOptions, work: Sequence[Work], rate: float) -> Measured:
    """The run in the middle, by requests served, of those at one rate."""
    runs: list[Measured] = []
    for each in work:
        run, found = bench.run(each, rate=rate)
        warn_of_failures(run)
        runs.append((found, result(run, found, about=bench.about(), metrics=options.metrics)))
    runs.sort(key=lambda measured: measured[0].request_throughput)
    return runs[len(runs) // 2]


def text(rates: Sequence[float], found: Sequence[Figures]) -> str:
    """One line a rate."""
    percentiles = list(found[0].times["ttft"].percentiles)
    columns = ["offered", "served", "tok/s", "failed"]
    for short in ("TTFT", "TPOT"):
        columns += [f"{short} p50", *(f"{short} p{p}" for p in percentiles)]
    if found[0].good is not None:
        columns.insert(2, "good")
    lines = [columns]
    for rate, figures in zip(rates, found, strict=True):
        offered = f"{rate:g}" if math.isfinite(rate) else "inf"
        line = [offered, f"{figures.request_throughput:.2f}", f"{figures.output_throughput:.1f}", str(figures.failed)]
        if figures.good is not None:
            line.insert(2, f"{figures.good:.2f}")
        for metric in ("ttft", "tpot"):
            times = figures.times[metric]
            line += [f"{value:.1f}" for value in (times.median, *times.percentiles.values())]
        lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    rows = ["  ".join(value.rjust(width) for value, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*rows, "requests and tokens per second; times in ms"])
