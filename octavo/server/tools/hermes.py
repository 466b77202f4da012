"""Calls as Hermes, Qwen and many others write them: ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``.

Text may stand before, between and after. The closing tag may be missing. A call is complete at its last brace; what is between
the tags and is no call stays content, tags and all.
"""

from octavo.server.tools.events import Event
from octavo.server.tools.json_calls import JsonCallParser
from octavo.server.tools.states import State

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


class HermesParser(JsonCallParser):
    """``functions`` are the names that the request brings; a call of another one is a call, and the client's to refuse."""

    marker = OPEN

    def __init__(self, functions: frozenset[str]) -> None:
        super().__init__()

    def finish(self) -> list[Event]:
        """Half a closing tag is none of the content."""
        return [] if self._state == self._after else super().finish()

    def _marked(self, text: str, events: list[Event]) -> str:
        rest = self._skip_space(text)
        if rest.startswith("{"):
            self._begin_object()
        elif rest:
            self._give_up(events)
        return rest

    def _after_call(self) -> State:
        return self._after

    def _after(self, text: str, events: list[Event]) -> str:
        """The closing tag, or whatever is there instead of it."""
        text = self._held + text
        rest = text.lstrip()
        if CLOSE.startswith(rest):
            self._held = text
            if rest != CLOSE:
                return ""
        self._held, self._state = "", self._outside
        return rest.removeprefix(CLOSE) if rest.startswith(CLOSE) else text
