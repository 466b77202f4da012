"""``octavo bench throughput``: flags to options; the measuring is in ``octavo.bench``."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from octavo.commands import USAGE_ERROR, flags
from octavo.config import EngineConfig

Positive = Annotated[int, Meta(ge=1)]


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of ``octavo.bench.throughput``, as flags."""

    num_prompts: Annotated[Positive, Meta(description="prompts in the batch")] = 8
    input_len: Annotated[Positive, Meta(description="tokens of each prompt")] = 32
    output_len: Annotated[Positive, Meta(description="tokens generated for each sequence")] = 128
    n: Annotated[int, Meta(ge=1, le=128, description="sequences for each prompt, sharing its blocks")] = 1
    repeat: Annotated[Positive, Meta(description="runs after a warm-up; the median counts")] = 3
    json: Annotated[bool, Meta(description="print one JSON object")] = False


def parser() -> flags.Parser:
    made = flags.Parser(
        prog="octavo bench throughput",
        usage="octavo bench throughput --model MODEL [flags]",
        description="Compute a whole batch at once and say how many tokens a second that gave.",
    )
    flags.add_model(made, help_text="demo model alias (smollm2), directory, .gguf file or hub id")
    flags.add_flags(made, BenchOptions, title="bench throughput")
    flags.add_flags(made, EngineConfig, title="engine", skip=("model",))
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: octavo bench throughput --model MODEL [flags]\n\n  throughput  tokens per second of a whole batch")
        return 0 if arguments else USAGE_ERROR
    if arguments[0] != "throughput":
        print(f"octavo bench: error: no measurement {arguments[0]!r}; there is: throughput", file=sys.stderr)
        return USAGE_ERROR
    parsed = parser().parse_args(arguments[1:])
    flags.take_model(parsed)
    flags.warn_of_unknown(environment, EngineConfig, BenchOptions)
    config = flags.configure(EngineConfig, parsed, environment)
    options = flags.configure(BenchOptions, parsed, environment)

    from octavo.bench import throughput

    throughput.main(config, throughput.ThroughputOptions(**msgspec.structs.asdict(options)))
    return 0
