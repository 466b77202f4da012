"""``octavo bench throughput``: the whole batch at once through the engine, prompt included, end of sequence ignored."""

import statistics
import time
from typing import NamedTuple

import msgspec

from octavo.bench.options import ThroughputOptions
from octavo.bench.report import check_writable, emit
from octavo.bench.workload import check_lengths, request
from octavo.build import Loaded, load
from octavo.config import EngineConfig


class ThroughputResult(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are of the median run. ``spread``: between the slowest and the fastest run, as a part of the median.
    ``output_tokens`` are those that came. ``token_slots_used_fraction``: of the slots of blocks in use at the peak, those that
    held a token. Draft tokens are of all runs: guessed ones, and those of them that were right."""

    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    seconds: float
    seconds_all: list[float]
    spread: float
    num_prompts: int
    input_len: int
    output_len: int
    n: int
    output_tokens: int
    kv_blocks_peak: int
    kv_blocks_total: int
    token_slots_used_fraction: float
    preemptions: int
    draft_tokens: int
    accepted_draft_tokens: int


class Run(NamedTuple):
    """Its seconds and output tokens, the most blocks in use and the used share of their slots at that moment."""

    seconds: float
    output_tokens: int
    peak: int
    fraction: float


def measure(loaded: Loaded, options: ThroughputOptions, *, run: int) -> Run:
    """One run."""
    engine = loaded.engine
    start = time.perf_counter()
    for i in range(options.num_prompts):
        engine.add(
            request(
                i + run * options.num_prompts,
                input_len=options.input_len,
                output_len=options.output_len,
                vocab_size=loaded.model_config.vocab_size,
                n=options.n,
            )
        )
    tokens, peak, fraction = 0, 0, 0.0
    while engine.has_work:
        tokens += sum(len(delta.token_ids) for delta in engine.step())
        used = engine.scheduler.kv.device.num_used
        if used >= peak and used:
            stats = engine.stats()
            peak, fraction = used, stats.token_slots_used / (used * engine.scheduler.kv.block_size)
    return Run(time.perf_counter() - start, tokens, peak, fraction)


def run(config: EngineConfig, options: ThroughputOptions) -> ThroughputResult:
    """Measure ``options.repeat`` times after a short warm-up; prints nothing. Raises ``ConfigError``."""
    loaded = load(config)
    check_lengths(options.input_len, options.output_len, max_model_len=loaded.max_model_len)
    measure(loaded, msgspec.structs.replace(options, output_len=min(8, options.output_len)), run=0)
    runs = sorted(measure(loaded, options, run=i + 1) for i in range(options.repeat))
    stats = loaded.engine.stats()
    loaded.engine.shutdown()
    _, output_tokens, peak, fraction = runs[len(runs) // 2]
    all_seconds = [each.seconds for each in runs]
    seconds = statistics.median(all_seconds)
    return ThroughputResult(
        output_tokens_per_s=round(output_tokens / seconds, 1),
        total_tokens_per_s=round((output_tokens + options.num_prompts * options.input_len) / seconds, 1),
        requests_per_s=round(options.num_prompts / seconds, 3),
        seconds=round(seconds, 4),
        seconds_all=[round(each, 4) for each in all_seconds],
        spread=round((all_seconds[-1] - all_seconds[0]) / seconds, 4),
        num_prompts=options.num_prompts,
        input_len=options.input_len,
        output_len=options.output_len,
        n=options.n,
        output_tokens=output_tokens,
        kv_blocks_peak=peak,
        kv_blocks_total=stats.blocks_total,
        token_slots_used_fraction=round(fraction, 4),
        preemptions=stats.preemptions,
        draft_tokens=stats.draft_tokens,
        accepted_draft_tokens=stats.accepted_draft_tokens,
    )


def text(result: ThroughputResult) -> str:
    """The lines that people of this field know."""
    return (
        f"Throughput: {result.requests_per_s:.2f} requests/s, {result.total_tokens_per_s:.1f} total tokens/s, "
        f"{result.output_tokens_per_s:.1f} output tokens/s\n"
        f"Total num prompt tokens:  {result.num_prompts * result.input_len}\n"
        f"Total num output tokens:  {result.output_tokens}\n"
        f"Median of {len(result.seconds_all)} runs: {result.seconds:.3f} s, spread {result.spread:.1%}\n"
        f"KV blocks at the peak: {result.kv_blocks_peak} of {result.kv_blocks_total}, "
        f"{result.token_slots_used_fraction:.1%} of their slots hold tokens" + _guesses(result)
    )


def _guesses(result: ThroughputResult) -> str:
    """What a text that repeats itself owes to it."""
    if not result.draft_tokens:
        return ""
    right = f"{result.accepted_draft_tokens} of {result.draft_tokens}"
    return f"\nTokens guessed in all runs: {right} were right (--spec-method none: no guesses)"


def main(config: EngineConfig, options: ThroughputOptions) -> None:
    """Measure and report."""
    check_writable(options.output_json, "--output-json")
    result = run(config, options)
    emit(result, text(result), as_json=options.json, output_json=options.output_json)
