"""``octavo complete``: a running server goes on with a text, in the terminal."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from octavo.commands import flags
from octavo.commands.chat import ask, say
from octavo.commands.sampling import SamplingFlags
from octavo.config import ConfigError


class CompleteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask, and what."""

    url: Annotated[str, Meta(description="of the server's API")] = "http://127.0.0.1:8000/v1"
    model_name: Annotated[str | None, Meta(description="name that the server calls the model; default: its first")] = None
    api_key: Annotated[str | None, Meta(description="key for the server")] = None
    quick: Annotated[str | None, Meta(description="complete this one text and end; without it, each line of the input")] = None


OPTIONS: flags.Options = (CompleteOptions, SamplingFlags)


def parser() -> flags.Parser:
    made = flags.Parser(
        prog="octavo complete",
        usage="octavo complete --url URL [flags]",
        description="Let a running server go on with a text. Ctrl-C stops an answer, the end of input ends.",
    )
    made.add_argument("-q", dest="quick", metavar="TEXT", help="the same as --quick")
    flags.add_flags(made, CompleteOptions, title="complete")
    flags.add_flags(made, SamplingFlags, title="sampling")
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    from octavo.commands.remote import RemotePartner

    _, (options, sampling) = flags.read(parser(), OPTIONS, arguments, environment)
    partner = RemotePartner(options.url, api_key=options.api_key, model=options.model_name, fields=sampling.given())
    if options.quick is not None:
        if not options.quick:
            raise ConfigError("--quick must not be empty")
        say(partner.complete(options.quick))
        return 0
    interactive = sys.stdin.isatty()
    while True:
        try:
            text = ask("> ") if interactive else input()
        except (EOFError, KeyboardInterrupt):
            return 0
        if text:
            say(partner.complete(text))
