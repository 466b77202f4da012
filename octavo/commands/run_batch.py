"""``octavo run-batch``: flags to options; the answering is in ``octavo.server.batch``."""

from collections.abc import Mapping, Sequence

from octavo.commands import flags
from octavo.config import EngineConfig
from octavo.server import batch
from octavo.server.batch import BatchOptions

OPTIONS: flags.Options = (EngineConfig, BatchOptions)


def parser() -> flags.Parser:
    made = flags.Parser(
        prog="octavo run-batch",
        usage="octavo run-batch -i IN.jsonl -o OUT.jsonl --model MODEL [flags]",
        description="Answer a file of completion and chat requests, in the format of the OpenAI batch API.",
    )
    flags.add_model(made)
    made.add_argument("-i", dest="input_file", metavar="FILE", help="the same as --input-file")
    made.add_argument("-o", dest="output_file", metavar="FILE", help="the same as --output-file")
    flags.add_flags(made, BatchOptions, title="batch")
    flags.add_flags(made, EngineConfig, title="engine", skip=("model",))
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    _, (config, options) = flags.read(parser(), OPTIONS, arguments, environment)
    return batch.run(config, options)
