"""What to look for in the answers to one chat request: which parser, which reasoning style, from where on.

Decided from the request, the operator's options and what the model's template says; raises ``ApiError`` for what cannot be.
"""

from collections.abc import Callable
from functools import partial

from octavo.server import errors
from octavo.server.chat_text import TextPlan
from octavo.server.options import ServerOptions
from octavo.server.reasoning import STYLES, ReasoningSplitter, prompt_leaves_open
from octavo.server.tool_choice import Tools
from octavo.server.tools import PARSERS, Format
from octavo.server.tools.events import Parser
from octavo.server.tools.forced import NamedParser, RequiredParser


def call_format(options: ServerOptions, detected: str | None) -> Format | None:
    """How the model writes calls: as the operator says, or as its template does."""
    name = detected if options.tool_call_parser == "auto" else options.tool_call_parser
    return None if name is None else PARSERS[name]


def check_choice(tools: Tools | None, options: ServerOptions, written: Format | None) -> None:
    """Raises ``ApiError`` 400 when the model is to decide on calls and this server could not read them."""
    if tools is not None and tools.choice == "auto" and (written is None or not options.enable_auto_tool_choice):
        message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        raise errors.invalid(message, "tool_choice")


def plan_text(
    *,
    tools: Tools | None,
    written: Format | None,
    reasoning: str | None,
    include_reasoning: bool,
    prompt: str,
    continued: str,
) -> TextPlan:
    """``reasoning`` is the name of a style, None for an output that has no reasoning in it: the model's, or one that a grammar
    confines. ``continued`` is the message that the answer goes on with."""
    splitter = None
    if reasoning is not None and (tools is None or not tools.forced):
        splitter = partial(ReasoningSplitter, STYLES[reasoning], inside=prompt_leaves_open(prompt, continued))
    return TextPlan(
        splitter=splitter,
        parser=_parser(tools, written),
        include_reasoning=include_reasoning,
        max_calls=1 if tools is not None and not tools.parallel else None,
        short_ids=written is not None and written.short_ids,
        reports_calls=tools is not None and tools.choice in ("auto", "required"),
    )


def _parser(tools: Tools | None, written: Format | None) -> Callable[[], Parser] | None:
    if tools is None or tools.choice == "none":
        return None
    if tools.named is not None:
        return partial(NamedParser, tools.named.name)
    if tools.choice == "required":
        return RequiredParser
    return None if written is None else partial(written.parser, tools.names)
