"""``octavo serve``: flags to options; the server does the rest."""

from collections.abc import Mapping, Sequence

from octavo.commands import flags
from octavo.config import EngineConfig
from octavo.server import main as server
from octavo.server.options import ServerOptions

OPTIONS: flags.Options = (EngineConfig, ServerOptions)


def parser() -> flags.Parser:
    made = flags.Parser(
        prog="octavo serve",
        usage="octavo serve MODEL [flags]",
        description="Serve a model over HTTP, with the OpenAI API under /v1.",
    )
    flags.add_model(made)
    flags.add_flags(made, ServerOptions, title="server")
    flags.add_flags(made, EngineConfig, title="engine", skip=("model",))
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    _, (config, options) = flags.read(parser(), OPTIONS, arguments, environment)
    return server.run(config, options, process_start=started)
