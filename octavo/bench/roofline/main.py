"""``octavo bench roofline``: loads a model, measures in rounds, and reports.

Rounds interleave everything that is compared: what disturbs the machine for a while disturbs all of it.
"""

from collections.abc import Callable
from typing import cast

import msgspec

from octavo.backends.base import Backend
from octavo.bench import drawing
from octavo.bench.options import RooflineOptions
from octavo.bench.report import check_writable, emit, progress
from octavo.bench.roofline import plot
from octavo.bench.roofline.analysis import Samples, analyse
from octavo.bench.roofline.limits import Ceilings
from octavo.bench.roofline.result import Peak, RooflineResult
from octavo.bench.roofline.steps import SETTLE, Shape, Steps, longest_sequence
from octavo.bench.roofline.table import text
from octavo.bench.roofline.timed import TimedBackend
from octavo.bench.roofline.work import Precision
from octavo.build import Parts, load_parts
from octavo.config import ConfigError, ContextTooLongError, EngineConfig, KVCacheTooLargeError

ROUNDS = 8


def shapes_of(options: RooflineOptions) -> list[Shape]:
    """The steps to measure, in order."""
    shapes = [Shape(size, options.context_len) for size in options.batch_size]
    return shapes if options.prefill is None else [*shapes, Shape(1, options.prefill, prefill=True)]


def settle(config: EngineConfig, options: RooflineOptions) -> EngineConfig:
    """The user's configuration with what the measurement decides: just the cache and the batch that its steps need."""
    shapes = shapes_of(options)
    budget = max(config.max_num_batched_tokens, 2 * max(options.batch_size), options.prefill or 0)
    config = msgspec.structs.replace(config, max_num_batched_tokens=budget)
    steps = 2 * (SETTLE + _times(options))
    longest = {shape: longest_sequence(config, shape, steps) for shape in shapes}
    return msgspec.structs.replace(
        config,
        backend="cpu",
        max_model_len=max(longest.values()),
        max_num_seqs=max(options.batch_size),
        enable_prefix_caching=False,
        gpu_memory_utilization=None,
        kv_cache_memory_bytes=None,
        num_gpu_blocks_override=max(
            shape.batch_size * (-(-length // config.block_size) + 1) for shape, length in longest.items()
        ),
        swap_space=0.0,
        spec_method="none",
    )


def _times(options: RooflineOptions) -> int:
    """Steps of a kind in one round."""
    return max(1, options.num_iters // ROUNDS)


def run(config: EngineConfig, options: RooflineOptions) -> RooflineResult:
    """Measure; prints nothing.

    Raises:
        ConfigError: as for an engine, or the steps are longer than the model's context or larger than memory.
    """
    config = settle(config, options)
    timed: list[TimedBackend] = []

    def around(backend: Backend) -> Backend:
        timed.append(TimedBackend(backend))
        return cast(Backend, timed[0])  # hands on whatever it is asked for

    parts = _load(config, options, around)
    steps = Steps(config, parts, timed[0])
    ceilings = Ceilings(timed[0].isa, timed[0].num_threads)
    precision = Precision(parts.backend.compute_dtype, config.activation_bits)
    samples = [Samples.of(shape, steps.calls(shape), precision) for shape in shapes_of(options)]
    for _ in progress(ROUNDS, "Rounds"):
        for sample in samples:
            sample.eager += steps.eager(sample.shape, _times(options))
            whole, in_parts = steps.served(sample.shape, _times(options))
            sample.whole += whole
            sample.parts += in_parts
        ceilings.measure(_footprints(samples, parts))
    steps.shutdown()
    return RooflineResult(
        model=config.model,
        weights=precision.compute_dtype
        if parts.weight_format == "plain"
        else f"{parts.weight_format}, activations in {config.activation_bits} bits",
        backend=parts.backend.describe(),
        bandwidth={str(size): ceilings.bandwidth[size] for size in sorted(ceilings.bandwidth)},
        slowest_bandwidth={str(size): ceilings.slowest[size] for size in sorted(ceilings.slowest)},
        peaks={name: Peak(instruction=ceilings.instructions[name], flops_per_s=rate) for name, rate in ceilings.peaks.items()},
        steps=[analyse(sample, ceilings) for sample in samples],
    )


def _load(config: EngineConfig, options: RooflineOptions, around: Callable[[Backend], Backend]) -> Parts:
    try:
        parts = load_parts(config, around=around)
    except KVCacheTooLargeError as error:
        raise ConfigError(
            f"lower --batch-size {max(options.batch_size)} or --context-len {options.context_len}: {error}"
        ) from error
    except ContextTooLongError as error:
        raise ConfigError(
            f"--context-len {options.context_len} with --num-iters {options.num_iters} or --prefill {options.prefill} makes "
            f"sequences of {config.max_model_len} tokens, more than the model was made for: lower one of them"
        ) from error
    needed = parts.cache.num_blocks * parts.cache.spec.bytes_per_block
    if needed > 0.8 * parts.backend.available_memory():
        raise ConfigError(
            f"a batch of {max(options.batch_size)} with --context-len {options.context_len} needs {needed / 2**30:.1f} GiB of "
            f"KV cache, and {parts.backend.available_memory() / 2**30:.1f} GiB of memory are left: lower one of them"
        )
    return parts


def _footprints(samples: list[Samples], parts: Parts) -> list[int]:
    """What each step streams, as far as there is memory to measure with."""
    most = parts.backend.available_memory() // 4
    return [min(sample.footprint, most) for sample in samples]


def main(config: EngineConfig, options: RooflineOptions) -> None:
    """Measure and report."""
    check_writable(options.output_json, "--output-json")
    check_writable(options.plot, "--plot")
    drawing.check_file(options.plot, "--plot")
    result = run(config, options)
    emit(result, text(result), as_json=options.json, output_json=options.output_json)
    if options.plot is not None:
        drawing.write(plot.picture(result), options.plot)
