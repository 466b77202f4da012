"""Calls of functions in the text of an answer: one parser for each way in which models write them.

``PARSERS`` is the registry: name on the command line -> how to begin reading one answer. Nothing here knows of HTTP.
"""

from collections.abc import Callable

import msgspec

from octavo.server.tools.events import Parser
from octavo.server.tools.hermes import HermesParser, hermes_grammar
from octavo.server.tools.llama3_json import Llama3JsonParser, llama3_json_grammar
from octavo.server.tools.mistral import MistralParser
from octavo.server.tools.pythonic import PythonicParser


class Format(msgspec.Struct, frozen=True):
    """``parser`` takes the names of the request's functions. ``special``: the marker is a special token, which must not be left
    out of the text. ``signs`` are what a chat template for the format has in it, all of them; ``short_ids``: the model's
    template takes call ids of nine letters and digits only. ``grammar`` makes a grammar of answers out of one of calls, which
    are objects with ``name`` and ``arguments``, and of whether there may be several; None where there is none."""

    parser: Callable[[frozenset[str]], Parser]
    signs: tuple[str, ...]
    special: bool = False
    short_ids: bool = False
    grammar: Callable[[str, bool], str] | None = None
    arguments: str = "arguments"


PARSERS: dict[str, Format] = {
    "hermes": Format(HermesParser, ("<tool_call>", '"arguments"'), grammar=hermes_grammar),
    "mistral": Format(MistralParser, ("[TOOL_CALLS]",), special=True, short_ids=True),
    "llama3_json": Format(
        Llama3JsonParser, ('"parameters"', "ipython"), special=True, grammar=llama3_json_grammar, arguments="parameters"
    ),
    "pythonic": Format(PythonicParser, ("[func_name1(",), special=True),
}


def detect(template: str) -> str | None:
    """The format that a chat template tells its model to write calls in; None when it is none of these, or not clear."""
    found = [name for name, kind in PARSERS.items() if all(sign in template for sign in kind.signs)]
    return found[0] if len(found) == 1 else None
