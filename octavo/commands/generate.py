"""``octavo generate``: complete prompts in this process and print the text."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from octavo.commands import flags
from octavo.commands.sampling import SamplingFlags
from octavo.config import ConfigError, EngineConfig


class GenerateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to complete, and how often."""

    prompt: Annotated[tuple[str, ...], Meta(description="prompt; may be given several times; without one, standard input")] = ()
    n: Annotated[int, Meta(ge=1, le=128, description="outputs for each prompt")] = 1
    json: Annotated[bool, Meta(description="one JSON object a prompt instead of text")] = False


OPTIONS: flags.Options = (EngineConfig, GenerateOptions, SamplingFlags)


def parser() -> flags.Parser:
    made = flags.Parser(
        prog="octavo generate",
        usage="octavo generate MODEL -p PROMPT [flags]",
        description="Complete prompts and print the text.",
    )
    flags.add_model(made)
    made.add_argument("-p", dest="prompt", action="append", metavar="PROMPT", help="the same as --prompt")
    flags.add_flags(made, GenerateOptions, title="generate")
    flags.add_flags(made, SamplingFlags, title="sampling")
    flags.add_flags(made, EngineConfig, title="engine", skip=("model",))
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    _, (config, options, sampling) = flags.read(parser(), OPTIONS, arguments, environment)
    prompts = list(options.prompt) or [sys.stdin.read()]
    if not any(prompts):
        raise ConfigError("there is no prompt: give one with -p, or on standard input")
    return _generate(config, options, sampling, prompts)


def _generate(config: EngineConfig, options: GenerateOptions, sampling: SamplingFlags, prompts: list[str]) -> int:
    from octavo.llm import LLM

    llm = LLM(**msgspec.structs.asdict(config))
    params = msgspec.structs.replace(sampling.over(llm.get_default_sampling_params()), n=options.n)
    for output in llm.generate(prompts, params, use_tqdm=sys.stderr.isatty()):
        texts = [completion.text for completion in output.outputs]
        if options.json:
            print(msgspec.json.encode({"prompt": output.prompt, "texts": texts}).decode())
        else:
            print("\n".join(texts))
    llm.shutdown()
    return 0
