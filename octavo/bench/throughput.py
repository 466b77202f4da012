"""``octavo bench throughput``: the whole batch at once through the engine, prompt included, end of sequence ignored.

Prompts are distinct random-looking token ids, so nothing is shared by accident and no tokenizer is in the way.
"""

import json
import statistics
import sys
import time

import msgspec

from octavo.build import Loaded, load
from octavo.config import EngineConfig
from octavo.request import Request
from octavo.sampling_params import SamplingParams


class ThroughputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Lengths are in tokens; ``n`` sequences a prompt; ``repeat`` runs after a warm-up."""

    num_prompts: int = 8
    input_len: int = 32
    output_len: int = 128
    n: int = 1
    repeat: int = 3
    json: bool = False


class ThroughputResult(msgspec.Struct, frozen=True, kw_only=True):
    """The median run. ``token_slots_used_fraction``: of the slots of blocks in use at the peak, those that held a token."""

    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    seconds: float
    seconds_all: list[float]
    num_prompts: int
    input_len: int
    output_len: int
    n: int
    kv_blocks_peak: int
    kv_blocks_total: int
    token_slots_used_fraction: float
    preemptions: int


def prompt_of_ids(index: int, length: int, vocab_size: int) -> list[int]:
    """Prompt number ``index``: ids that differ from every other prompt's from the first token on."""
    low = min(1000, vocab_size // 4)
    return [low + (37 * index + 11 * j) % (vocab_size - low) for j in range(length)]


def measure(loaded: Loaded, options: ThroughputOptions, *, run: int) -> tuple[float, int, float]:
    """Seconds of one run, the most blocks in use and the used share of their slots at that moment."""
    engine = loaded.engine
    params = SamplingParams(
        n=options.n, temperature=0.0 if options.n == 1 else 1.0, max_tokens=options.output_len, ignore_eos=True
    )
    start = time.perf_counter()
    for i in range(options.num_prompts):
        ids = prompt_of_ids(i + run * options.num_prompts, options.input_len, loaded.model_config.vocab_size)
        engine.add(Request(id=f"{run}-{i}", prompt_token_ids=ids, params=params, seed=i, arrival_time=time.monotonic()))
    peak, fraction = 0, 0.0
    while engine.has_work:
        engine.step()
        used = engine.scheduler.kv.device.num_used
        if used >= peak and used:
            stats = engine.stats()
            peak, fraction = used, stats.token_slots_used / (used * engine.scheduler.kv.block_size)
    return time.perf_counter() - start, peak, fraction


def run(config: EngineConfig, options: ThroughputOptions) -> ThroughputResult:
    """Measure ``options.repeat`` times after a short warm-up; prints nothing."""
    loaded = load(config)
    measure(loaded, msgspec.structs.replace(options, output_len=min(8, options.output_len)), run=0)
    runs = sorted(measure(loaded, options, run=i + 1) for i in range(options.repeat))
    stats = loaded.engine.stats()
    loaded.engine.shutdown()
    seconds, peak, fraction = runs[len(runs) // 2]
    output_tokens = options.num_prompts * options.n * options.output_len
    return ThroughputResult(
        output_tokens_per_s=round(output_tokens / seconds, 1),
        total_tokens_per_s=round((output_tokens + options.num_prompts * options.input_len) / seconds, 1),
        requests_per_s=round(options.num_prompts / seconds, 3),
        seconds=round(seconds, 4),
        seconds_all=[round(r[0], 4) for r in runs],
        num_prompts=options.num_prompts,
        input_len=options.input_len,
        output_len=options.output_len,
        n=options.n,
        kv_blocks_peak=peak,
        kv_blocks_total=stats.blocks_total,
        token_slots_used_fraction=round(fraction, 4),
        preemptions=stats.preemptions,
    )


def main(config: EngineConfig, options: ThroughputOptions) -> None:
    """Measure and print: one JSON line with ``--json``, else the lines that people of this field know."""
    result = run(config, options)
    if options.json:
        print(json.dumps(msgspec.to_builtins(result)))
        return
    spread = (max(result.seconds_all) - min(result.seconds_all)) / statistics.median(result.seconds_all)
    sys.stdout.write(
        f"Throughput: {result.requests_per_s:.2f} requests/s, {result.total_tokens_per_s:.1f} total tokens/s, "
        f"{result.output_tokens_per_s:.1f} output tokens/s\n"
        f"Total num prompt tokens:  {result.num_prompts * result.input_len}\n"
        f"Total num output tokens:  {result.num_prompts * result.n * result.output_len}\n"
        f"Median of {options.repeat} runs: {result.seconds:.3f} s, spread {spread:.1%}\n"
        f"KV blocks at the peak: {result.kv_blocks_peak} of {result.kv_blocks_total}, "
        f"{result.token_slots_used_fraction:.1%} of their slots hold tokens\n"
    )
