"""``octavo bench latency``: how long one batch of a fixed size takes, prompt included, and when its tokens come.

Every measured batch is new to the engine: no prompt's blocks are found in the cache.
"""

import time
from collections.abc import Iterable
from itertools import count

import msgspec

from octavo.bench.options import LatencyOptions
from octavo.bench.report import Summary, check_writable, emit, progress, summarize
from octavo.bench.workload import check_lengths, request
from octavo.build import Loaded, load
from octavo.config import EngineConfig


class LatencyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. ``latencies`` are of whole batches, one each. ``ttft``: from adding a batch to a request's first token;
    ``itl``: between tokens of one sequence, None where each has only one. ``output_tokens_per_s``: from a batch's first token
    to its last, None where all came at once."""

    avg_latency: float
    median_latency: float
    percentiles: dict[str, float]
    latencies: list[float]
    ttft: Summary
    itl: Summary | None
    output_tokens_per_s: float | None
    batch_size: int
    input_len: int
    output_len: int
    n: int


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: its seconds, those to each request's first token, and those between tokens. ``later_tokens`` came in the
    ``later_seconds`` from the first token to the last."""

    seconds: float
    first_tokens: list[float]
    gaps: list[float]
    later_tokens: int
    later_seconds: float


def measure(loaded: Loaded, options: LatencyOptions, numbers: Iterable[int]) -> Iteration:
    """One batch, of requests with these numbers."""
    engine, first, gaps = loaded.engine, dict[str, float](), list[float]()
    last: dict[tuple[str, int], float] = {}
    came: list[tuple[float, int]] = []
    start = time.perf_counter()
    for number in numbers:
        engine.add(
            request(
                number,
                input_len=options.input_len,
                output_len=options.output_len,
                vocab_size=loaded.model_config.vocab_size,
                n=options.n,
            )
        )
    while engine.has_work:
        deltas = engine.step()
        now = time.perf_counter()
        for delta in deltas:
            if not delta.token_ids:
                continue
            key = (delta.request_id, delta.branch)
            first.setdefault(delta.request_id, now - start)
            if key in last:  # tokens that come together share the time that they took
                gaps += [(now - last[key]) / len(delta.token_ids)] * len(delta.token_ids)
            last[key] = now
            came.append((now, len(delta.token_ids)))
    return Iteration(
        seconds=time.perf_counter() - start,
        first_tokens=list(first.values()),
        gaps=gaps,
        later_tokens=sum(tokens for at, tokens in came if at > came[0][0]),
        later_seconds=came[-1][0] - came[0][0],
    )


def run(config: EngineConfig, options: LatencyOptions) -> LatencyResult:
    """Measure ``options.num_iters`` batches after those of the warm-up. Progress goes to a terminal only. Raises
    ``ConfigError``."""
    loaded = load(config)
    check_lengths(options.input_len, options.output_len, max_model_len=loaded.max_model_len)
    numbers = count()

    def batch() -> Iteration:
        return measure(loaded, options, [next(numbers) for _ in range(options.batch_size)])

    for _ in progress(options.num_iters_warmup, "Warmup iterations"):
        batch()
    iterations = [batch() for _ in progress(options.num_iters, "Bench iterations")]
    loaded.engine.shutdown()
    latencies = [iteration.seconds for iteration in iterations]
    whole = summarize(latencies)
    gaps = [gap for iteration in iterations for gap in iteration.gaps]
    later_seconds = sum(iteration.later_seconds for iteration in iterations)
    later_tokens = sum(iteration.later_tokens for iteration in iterations)
    return LatencyResult(
        avg_latency=whole.mean,
        median_latency=whole.median,
        percentiles=whole.percentiles,
        latencies=latencies,
        ttft=summarize([seconds for iteration in iterations for seconds in iteration.first_tokens]),
        itl=summarize(gaps) if gaps else None,
        output_tokens_per_s=later_tokens / later_seconds if later_seconds else None,
        batch_size=options.batch_size,
        input_len=options.input_len,
        output_len=options.output_len,
        n=options.n,
    )


def text(result: LatencyResult) -> str:
    """The lines that people of this field know, then those of single tokens."""
    lines = [f"Avg latency: {result.avg_latency:.4f} seconds", f"Median latency: {result.median_latency:.4f} seconds"]
    lines += [f"{p}% percentile latency: {seconds:.4f} seconds" for p, seconds in result.percentiles.items()]
    lines.append(_line("Time to first token", result.ttft))
    if result.itl is not None:
        lines.append(_line("Inter-token latency", result.itl))
    if result.output_tokens_per_s is not None:
        sequences = result.batch_size * result.n
        lines.append(f"{sequences} sequences: {result.output_tokens_per_s:.1f} tokens/s from the first token to the last")
    return "\n".join(lines)


def _line(title: str, summary: Summary) -> str:
    parts = ", ".join(f"p{p} {seconds * 1e3:.2f}" for p, seconds in summary.percentiles.items() if p != "50")
    return f"{title} (ms): mean {summary.mean * 1e3:.2f}, median {summary.median * 1e3:.2f}, {parts}"


def main(config: EngineConfig, options: LatencyOptions) -> None:
    """Measure and report."""
    check_writable(options.output_json, "--output-json")
    result = run(config, options)
    emit(result, text(result), as_json=options.json, output_json=options.output_json)
