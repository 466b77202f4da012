"""``octavo bench sweep``: one server at several rates of requests, as a table, as JSON, as a picture.

Every run has prompts of its own, so that no run finds another's in a prefix cache.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench.report import check_writable
from octavo.bench.serve import plot
from octavo.bench.serve.main import Bench, warn_of_failures
from octavo.bench.serve.options import SweepOptions
from octavo.bench.serve.statistics import Figures, result

Measured = tuple[Figures, dict[str, Any]]


def main(options: SweepOptions) -> int:
    """Measure and report. Returns the exit status: 1 when a rate got no answer at all."""
    options.check()
    check_writable(options.output_json, "--output-json")
    check_writable(options.plot, "--plot")
    plot.check(options.plot)
    bench = Bench(options)
    measured = [_at_rate(bench, options, number, rate) for number, rate in enumerate(options.rates)]
    found = [figures for figures, _ in measured]
    values = [value for _, value in measured]
    if options.output_json is not None:
        Path(options.output_json).write_bytes(msgspec.json.encode(values) + b"\n")
    if options.plot is not None:
        title = f"{bench.model}, {options.num_prompts} requests at each rate"
        plot.save(plot.over_rates(options.rates, found, title=title), options.plot)
    print(msgspec.json.encode(values).decode() if options.json else text(options.rates, found))
    return 0 if all(figures.completed for figures in found) else 1


def _at_rate(bench: Bench, options: SweepOptions, number: int, rate: float) -> Measured:
    """The run in the middle, by requests served, of those at one rate."""
    runs: list[Measured] = []
    for repetition in range(options.repeat):
        seed = options.seed + number * options.repeat + repetition
        run, found = bench.run(bench.prompts(seed), rate=rate, seed=seed)
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
