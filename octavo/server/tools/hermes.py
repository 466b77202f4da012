"""Calls as Hermes, Qwen and many others write them: ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``.

Text may stand before, between and after. The closing tag may be missing. A call is complete at its last brace; what is between
the tags and is no call stays content, tags and all.
"""

from octavo.server.tools.calls import CallParser
from octavo.server.tools.events import Event

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def hermes_grammar(call: str, many: bool) -> str:
    """The grammar of an answer whose calls are each a ``call``, itself an expression of a grammar."""
    return (
        f"start: (text call){'*' if many else '?'} rest\n"
        f'text[suffix="{OPEN}"]: ANY\n'
        f'call: SPACE object SPACE "{CLOSE}"\n'
        f"object: {call}\n"
        "rest: REST\n"
        f"REST: /(.|\\n)*/ & ~/(.|\\n)*{OPEN}(.|\\n)*/\n"
        "ANY: /(.|\\n)*/\n"
        "SPACE: /[ \\n]{0,4}/\n"
    )


class HermesParser(CallParser):
    """``functions`` are the names that the request brings; a call of another one is a call, and the client's to refuse."""

    marker, closing = OPEN, CLOSE

    def __init__(self, functions: frozenset[str]) -> None:
        super().__init__()

    def _marked(self, text: str, events: list[Event]) -> str:
        rest = self._skip_space(text)
        if rest.startswith("{"):
            self._state = self._inside
        elif rest:
            self._give_up(events)
        return rest
