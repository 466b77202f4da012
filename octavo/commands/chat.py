"""``octavo chat``: a conversation in the terminal, with a model in this process or on a server.

Both kinds of partner are one thing here, messages in and pieces of text out; closing the iterator ends the answer, which is
what Ctrl-C does.
"""

import contextlib
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from octavo.commands import flags
from octavo.commands.sampling import SamplingFlags
from octavo.config import ConfigError, EngineConfig
from octavo.sampling_params import ParameterError

HELP = "/reset begins a new conversation, /quit ends, /help says this, Ctrl-C stops an answer"
_LOOK = 0.2
Messages = list[dict[str, str]]


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to talk to."""

    url: Annotated[str | None, Meta(description="of a server's API, as http://127.0.0.1:8000/v1, instead of a model here")] = (
        None
    )
    api_key: Annotated[str | None, Meta(description="key for that server")] = None
    system_prompt: Annotated[str | None, Meta(description="first message of every conversation")] = None
    quick: Annotated[str | None, Meta(description="say this one thing, print the answer and end")] = None


OPTIONS: flags.Options = (EngineConfig, ChatOptions, SamplingFlags)


class Partner(Protocol):
    """Whoever answers."""

    def answer(self, messages: Messages) -> Iterator[str]:
        """The answer in pieces, as they come."""


def parser() -> flags.Parser:
    made = flags.Parser(
        prog="octavo chat",
        usage="octavo chat MODEL [flags]\n       octavo chat --url URL [MODEL] [flags]",
        description=f"Talk to a model. {HELP}.",
    )
    flags.add_model(made, more_help="; with --url, its served name")
    made.add_argument("-q", dest="quick", metavar="TEXT", help="the same as --quick")
    flags.add_flags(made, ChatOptions, title="chat")
    flags.add_flags(made, SamplingFlags, title="sampling")
    flags.add_flags(made, EngineConfig, title="engine, without --url", skip=("model",))
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    always = (ChatOptions, SamplingFlags)
    parsed, (options, sampling) = flags.read(parser(), always, arguments, environment, also_known=(EngineConfig,))
    if options.url is not None:
        from octavo.commands.remote import RemotePartner

        model = getattr(parsed, "model", None) or environment.get("OCTAVO_MODEL")
        partner: Partner = RemotePartner(options.url, api_key=options.api_key, model=model, fields=sampling.given())
    else:
        partner = LocalPartner(flags.configure(EngineConfig, parsed, environment), sampling)
    opening: Messages = [{"role": "system", "content": options.system_prompt}] if options.system_prompt else []
    if options.quick is not None:
        say(partner.answer([*opening, {"role": "user", "content": options.quick}]))
        return 0
    return _converse(partner, opening)


class LocalPartner:
    """A model in this process."""

    def __init__(self, config: EngineConfig, sampling: SamplingFlags) -> None:
        from octavo.llm import LLM

        self._llm = LLM(**msgspec.structs.asdict(config))
        self._params = sampling.over(self._llm.get_default_sampling_params())

    def answer(self, messages: Messages) -> Iterator[str]:
        return self._llm.stream_chat(messages, self._params)


def _converse(partner: Partner, opening: Messages) -> int:
    """Reads lines until the end of input or ``/quit``. In a terminal what cannot be answered is as if it had not been said."""
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # gives input() its editing and history
        print(HELP)
    messages = list(opening)
    while True:
        try:
            line = (ask("> ") if interactive else input()).strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print()
            return 0
        if line == "/quit":
            return 0
        if line == "/reset":
            messages = list(opening)
        elif line == "/help":
            print(HELP)
        elif re.fullmatch("/[a-z]+", line):
            print(f"no command {line}: {HELP}", file=sys.stderr, flush=True)
        elif line:
            messages.append({"role": "user", "content": line})
            try:
                messages.append({"role": "assistant", "content": say(partner.answer(messages))})
            except (ConfigError, ParameterError) as error:
                if not interactive:
                    raise
                messages.pop()
                print(f"octavo: error: {error}\n/reset begins a new conversation", file=sys.stderr, flush=True)


def ask(prompt: str) -> str:
    """A line of the terminal. A Ctrl-C in the moment before the wait for a key begins would be noticed with that key alone: a
    timer interrupts the wait, and what has come by then is noticed."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _LOOK, _LOOK)
    try:
        return input(prompt)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def say(answer: Iterator[str]) -> str:
    """Prints the answer as it comes. Ctrl-C ends it; what had come is the answer."""
    pieces: list[str] = []
    try:
        for piece in answer:
            pieces.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    except (ConfigError, ParameterError):
        if pieces:
            print()
        raise
    finally:
        close = getattr(answer, "close", None)
        if close is not None:
            close()
    print()
    return "".join(pieces)
