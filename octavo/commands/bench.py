"""``octavo bench MEASUREMENT``: flags to options; the measuring is in ``octavo.bench``.

A measurement is one entry of ``MEASUREMENTS``: its options are its flags, beside those of the engine.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from octavo.bench.options import LatencyOptions, PaperOptions, PerplexityOptions, RooflineOptions, ThroughputOptions
from octavo.bench.serve.options import ServeOptions, SweepOptions
from octavo.commands import USAGE_ERROR, flags
from octavo.config import EngineConfig


class Measurement(NamedTuple):
    """``module`` has ``main(config, options)``; ``decides`` are the engine's settings that the measurement itself makes. One of
    a ``running_server`` has no engine here: its module has ``main(options)``, which returns the exit status."""

    help_line: str
    description: str
    options: type[Any]
    module: str
    decides: tuple[str, ...] = ()
    running_server: bool = False


MEASUREMENTS = {
    "throughput": Measurement(
        "tokens per second of a whole batch",
        "Compute a whole batch at once and say how many tokens a second that gave.",
        ThroughputOptions,
        "octavo.bench.throughput",
        decides=("pin_prefix",),
    ),
    "latency": Measurement(
        "seconds that one batch takes, and when its tokens come",
        "Compute one batch again and again and say how long it took: the whole, the first token, from token to token.",
        LatencyOptions,
        "octavo.bench.latency",
        decides=("pin_prefix",),
    ),
    "perplexity": Measurement(
        "how well a model foretells a text, quantized or not",
        "Compute the perplexity of a text: what a quantization or a dtype costs is the difference from another run.",
        PerplexityOptions,
        "octavo.bench.perplexity",
        decides=("pin_prefix",),
    ),
    "serve": Measurement(
        "a running server under load, this one or any that speaks the OpenAI API",
        "Send requests to a running server as clients would, and say when their tokens came.",
        ServeOptions,
        "octavo.bench.serve.main",
        running_server=True,
    ),
    "sweep": Measurement(
        "a running server at several rates of requests",
        "Send requests to a running server at one rate after the other: a table and a picture.",
        SweepOptions,
        "octavo.bench.serve.sweep",
        running_server=True,
    ),
    "roofline": Measurement(
        "how near to this machine's limits each part of a step is",
        "Measure how fast this machine can read and multiply, then a model's step, op by op, and say what limits each.",
        RooflineOptions,
        "octavo.bench.roofline.main",
        decides=(
            "backend",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "enable_prefix_caching",
            "pin_prefix",
            "gpu_memory_utilization",
            "kv_cache_memory_bytes",
            "num_gpu_blocks_override",
            "swap_space",
            "spec_method",
            "spec_tokens",
        ),
    ),
    "paper": Measurement(
        "the PagedAttention paper's figures, its numbers beside these",
        "Measure the figures of the PagedAttention paper on this machine and on the paper's, simulated: tables and pictures.",
        PaperOptions,
        "octavo.bench.paper.main",
        decides=(
            "backend",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "enable_prefix_caching",
            "kv_allocation",
            "pin_prefix",
            "gpu_memory_utilization",
            "kv_cache_memory_bytes",
            "num_gpu_blocks_override",
            "preemption_mode",
            "spec_method",
            "spec_tokens",
        ),
    ),
}

OPTIONS: flags.Options = (EngineConfig, *(entry.options for entry in MEASUREMENTS.values()))


def help_text() -> str:
    """What ``octavo bench --help`` says."""
    width = max(map(len, MEASUREMENTS))
    lines = "\n".join(f"  {name:<{width}}  {entry.help_line}" for name, entry in MEASUREMENTS.items())
    return (
        f"usage: octavo bench MEASUREMENT [flags]\n\nmeasurements:\n{lines}\n\n"
        "  octavo bench MEASUREMENT --help shows its flags\n\n"
        "first steps:\n  octavo bench throughput --model smollm2 --num-prompts 8\n"
        "  octavo bench serve --base-url http://127.0.0.1:8000 --dataset-name sharegpt --num-prompts 100 --request-rate 2"
    )


def parser(name: str) -> flags.Parser:
    """Of one measurement."""
    entry = MEASUREMENTS[name]
    made = flags.Parser(
        prog=f"octavo bench {name}",
        usage=f"octavo bench {name} [flags]" if entry.running_server else f"octavo bench {name} --model MODEL [flags]",
        description=entry.description,
    )
    if entry.running_server:
        flags.add_flags(made, entry.options, title=f"bench {name}")
        return made
    flags.add_model(made)
    flags.add_flags(made, entry.options, title=f"bench {name}")
    flags.add_flags(made, EngineConfig, title="engine", skip=("model", *entry.decides))
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text())
        return 0 if arguments else USAGE_ERROR
    name = arguments[0]
    if name not in MEASUREMENTS:
        print(f"octavo bench: error: no measurement {name!r}; there are: {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return USAGE_ERROR
    entry = MEASUREMENTS[name]
    wanted = (entry.options,) if entry.running_server else (EngineConfig, entry.options)
    _, configurations = flags.read(parser(name), wanted, arguments[1:], environment)
    status = import_module(entry.module).main(*configurations)
    return int(status) if entry.running_server else 0
