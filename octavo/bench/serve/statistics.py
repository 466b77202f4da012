"""From what clients saw to the figures of a run, under the names and by the definitions of ``vllm bench serve``.

TTFT: from sending to the first event with a choice. ITL: between such events. TPOT: of a request, the time after its first
token, divided by its tokens but the first. E2EL: from sending to the last token. All reported in milliseconds; percentiles by
straight lines between values. Requests that failed count as failed and in nothing else. Other than there, the most requests
at once are those of a moment, not of a whole second.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from octavo.bench.serve.client import Outcome
from octavo.bench.serve.driver import Run
from octavo.bench.serve.options import METRICS


class Times(msgspec.Struct, frozen=True):
    """Statistics of one metric, in milliseconds; ``percentiles`` by their number."""

    mean: float
    median: float
    std: float
    percentiles: dict[str, float]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run. Rates are per second of its duration. ``good``: None where no limits were given."""

    completed: int
    failed: int
    total_input: int
    total_output: int
    duration: float
    request_throughput: float
    good: float | None
    output_throughput: float
    total_throughput: float
    peak_output: float
    peak_concurrent: int
    times: dict[str, Times]


def samples(run: Run) -> dict[str, list[float]]:
    """Seconds by metric, of the requests that were answered."""
    answered = [outcome for outcome in run.outcomes if not outcome.error]
    return {
        "ttft": [outcome.ttft for outcome in answered],
        "tpot": [tpot(outcome) for outcome in answered if (outcome.output_tokens or 0) > 1],
        "itl": [gap for outcome in answered for gap in outcome.itl],
        "e2el": [outcome.latency for outcome in answered],
    }


def tpot(outcome: Outcome) -> float:
    """Seconds a token after the first; 0 for a single token."""
    later = (outcome.output_tokens or 0) - 1
    return (outcome.latency - outcome.ttft) / later if later > 0 else 0.0


def figures(run: Run, *, percentiles: Sequence[float], limits: Mapping[str, float]) -> Figures:
    """Of a run whose outcomes all have ``output_tokens``."""
    answered = [(prompt, o) for prompt, o in zip(run.prompts, run.outcomes, strict=True) if not o.error]
    total_input = sum(prompt.input_len for prompt, _ in answered)
    total_output = sum(outcome.output_tokens or 0 for _, outcome in answered)
    good = sum(_is_good(outcome, limits) for _, outcome in answered)
    peak_output, peak_concurrent = _peaks([outcome for _, outcome in answered])
    found = samples(run)
    return Figures(
        completed=len(answered),
        failed=len(run.outcomes) - len(answered),
        total_input=total_input,
        total_output=total_output,
        duration=run.duration,
        request_throughput=len(answered) / run.duration,
        good=good / run.duration if limits else None,
        output_throughput=total_output / run.duration,
        total_throughput=(total_input + total_output) / run.duration,
        peak_output=peak_output,
        peak_concurrent=peak_concurrent,
        times={name: _times(found[name], percentiles) for name in METRICS},
    )


def _times(seconds: Sequence[float], percentiles: Sequence[float]) -> Times:
    values = np.asarray(seconds or [0.0]) * 1e3
    return Times(
        mean=float(values.mean()),
        median=float(np.median(values)),
        std=float(values.std()),
        percentiles={f"{p:g}": float(np.percentile(values, p)) for p in percentiles},
    )


def _is_good(outcome: Outcome, limits: Mapping[str, float]) -> bool:
    seen = {"ttft": outcome.ttft, "tpot": tpot(outcome), "e2el": outcome.latency}
    return all(seen[name] * 1e3 <= limit for name, limit in limits.items())


def _peaks(answered: Sequence[Outcome]) -> tuple[float, int]:
    """The most tokens that came in a second, counted from the first request on, and the most requests that were open at once.
    Of an answer's tokens each event brought its part."""
    if not answered:
        return 0.0, 0
    origin = min(outcome.started for outcome in answered)
    end = max(outcome.started + outcome.latency for outcome in answered)
    tokens = np.zeros(int(end - origin) + 2)
    changes = []
    for outcome in answered:
        coming = outcome.started - origin + outcome.ttft + np.concatenate(([0.0], np.cumsum(outcome.itl)))
        each = (outcome.output_tokens or 0) / len(coming)
        np.add.at(tokens, np.minimum(coming.astype(int), len(tokens) - 1), each)
        changes += [(outcome.started, 1), (outcome.started + outcome.latency, -1)]
    changes.sort()  # one that ends makes room for one that begins
    return float(tokens.max()), max(accumulate(change for _, change in changes))


def result(run: Run, found: Figures, *, about: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
    """The JSON object of a run: what it was ``about``, then its figures."""
    values: dict[str, Any] = {
        **about,
        "num_prompts": len(run.prompts),
        "request_rate": run.request_rate if np.isfinite(run.request_rate) else "inf",
        "duration": found.duration,
        "completed": found.completed,
        "failed": found.failed,
        "total_input_tokens": found.total_input,
        "total_output_tokens": found.total_output,
        "request_throughput": found.request_throughput,
        "request_goodput": found.good,
        "output_throughput": found.output_throughput,
        "total_token_throughput": found.total_throughput,
        "max_output_tokens_per_s": found.peak_output,
        "max_concurrent_requests": found.peak_concurrent,
        "rtfx": 0.0,
    }
    for name in metrics:
        times = found.times[name]
        values |= {f"mean_{name}_ms": times.mean, f"median_{name}_ms": times.median, f"std_{name}_ms": times.std}
        values |= {f"p{p}_{name}_ms": value for p, value in times.percentiles.items()}
    return values


def details(run: Run) -> dict[str, Any]:
    """What each request saw, in the order of the prompts."""
    outcomes = run.outcomes
    return {
        "input_lens": [prompt.input_len for prompt in run.prompts],
        "output_lens": [outcome.output_tokens or 0 for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.itl for outcome in outcomes],
        "latencies": [outcome.latency for outcome in outcomes],
        "start_times": [outcome.started for outcome in outcomes],
        "queue_times": [outcome.queued for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }
