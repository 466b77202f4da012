"""What an answer to a chat request has to be, and what to look for in it: which form of calls, which reasoning, from where on.

Decided from the request, the operator's options and what the model's template says, before anything is generated. Raises
``ApiError`` for what cannot be.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from octavo.request import Thinking
from octavo.sampling_params import StructuredOutputsParams
from octavo.server import errors, structured
from octavo.server.call_grammar import forced_output, strict_output
from octavo.server.chat_text import TextPlan
from octavo.server.options import ServerOptions
from octavo.server.protocol import ChatRequest
from octavo.server.reasoning import ReasoningSplitter
from octavo.server.tool_choice import Tools
from octavo.server.tools import PARSERS, Format
from octavo.server.tools.events import Parser
from octavo.server.tools.forced import NamedParser, RequiredParser
from octavo.structured.reasoning import STYLES, prompt_leaves_open, thinking_in


class ChatPlan(msgspec.Struct, frozen=True):
    """``structured_outputs`` confine the answer for the sake of the calls in it, and go before what the request itself asks its
    text to be. ``thinking`` is what the output begins with, if it is to be told apart and is not over yet.
    ``shows_special_tokens``: the marker of calls is one, and has to be in the text."""

    text: TextPlan
    structured_outputs: StructuredOutputsParams | None
    thinking: Thinking | None
    shows_special_tokens: bool


def call_format(tools: Tools | None, options: ServerOptions, detected: str | None) -> Format | None:
    """How the model writes calls: as the operator says, or as its template does. Raises ``ApiError`` 400 when the model is to
    decide on calls and this server could not read them."""
    name = detected if options.tool_call_parser == "auto" else options.tool_call_parser
    if tools is not None and tools.choice == "auto" and (name is None or not options.enable_auto_tool_choice):
        lacks = "needs --tool-call-parser" if name is None else "is off, by --no-enable-auto-tool-choice"
        message = f'"auto" tool choice {lacks} on this server: ask for "required", or for a function by name'
        raise errors.invalid(message, "tool_choice")
    return None if name is None else PARSERS[name]


def plan_answer(
    request: ChatRequest, tools: Tools | None, written: Format | None, *, prompt: str, continued: str, style: str | None
) -> ChatPlan:
    """``continued`` is the message that the answer goes on with, "" if it is a new one; ``style`` is the name of the model's
    reasoning, None where it is not to be told apart. Raises ``ApiError`` 400."""
    forced = tools is not None and tools.forced
    own_form = not forced and structured.wanted(request) is not None
    inside = None if style is None else prompt_leaves_open(prompt, continued)
    text = TextPlan(
        splitter=None if style is None else partial(ReasoningSplitter, STYLES[style], inside=inside),
        parser=_parser(tools, written),
        include_reasoning=request.include_reasoning is not False,
        max_calls=1 if tools is not None and not tools.parallel else None,
        short_ids=written is not None and written.short_ids,
        reports_calls=tools is not None and tools.choice in ("auto", "required"),
    )
    confined = None if own_form or request.use_beam_search else _confined(tools, written)
    thinking = None if style is None else thinking_in(STYLES[style], inside=inside)
    special = tools is not None and tools.choice == "auto" and written is not None and written.special
    return ChatPlan(text, confined, thinking, special)


def _parser(tools: Tools | None, written: Format | None) -> Callable[[], Parser] | None:
    if tools is None or tools.choice == "none":
        return None
    if tools.named is not None:
        return partial(NamedParser, tools.named.name)
    if tools.choice == "required":
        return RequiredParser
    return None if written is None else partial(written.parser, tools.names)


def _confined(tools: Tools | None, written: Format | None) -> StructuredOutputsParams | None:
    if tools is None or tools.choice == "none":
        return None
    if tools.forced:
        return forced_output(tools)
    return None if written is None else strict_output(tools, written)
