"""The lines that a run prints: those of ``vllm bench serve``, so that scripts and eyes find them."""

import math
from collections.abc import Sequence

from octavo.bench.serve.statistics import Figures

WIDTH = 50
TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


def text(found: Figures, *, metrics: Sequence[str], rate: float, max_concurrency: int | None) -> str:
    """The whole block."""
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}"]
    lines += [_line("Successful requests:", found.completed), _line("Failed requests:", found.failed)]
    if max_concurrency is not None:
        lines.append(_line("Maximum request concurrency:", max_concurrency))
    if math.isfinite(rate):
        lines.append(_line("Request rate configured (RPS):", rate))
    lines.append(_line("Benchmark duration (s):", found.duration))
    lines.append(_line("Total input tokens:", found.total_input))
    lines.append(_line("Total generated tokens:", found.total_output))
    lines.append(_line("Request throughput (req/s):", found.request_throughput))
    if found.good is not None:
        lines.append(_line("Request goodput (req/s):", found.good))
    lines.append(_line("Output token throughput (tok/s):", found.output_throughput))
    lines.append(_line("Peak output token throughput (tok/s):", found.peak_output))
    lines.append(_line("Peak concurrent requests:", float(found.peak_concurrent)))
    lines.append(_line("Total token throughput (tok/s):", found.total_throughput))
    for metric in metrics:
        lines += _block(found, metric)
    return "\n".join([*lines, "=" * WIDTH])


def _block(found: Figures, metric: str) -> list[str]:
    title, name = TITLES[metric]
    times = found.times[metric]
    lines = [f"{title:-^{WIDTH}}", _line(f"Mean {name} (ms):", times.mean), _line(f"Median {name} (ms):", times.median)]
    return lines + [_line(f"P{p} {name} (ms):", value) for p, value in times.percentiles.items()]


def _line(name: str, value: float) -> str:
    return f"{name:<40} {value:<10}" if isinstance(value, int) else f"{name:<40} {value:<10.2f}"
