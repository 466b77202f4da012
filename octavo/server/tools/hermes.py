"""Calls as Hermes, Qwen and many others write them: ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``.

Text may stand before, between and after. The closing tag may be missing. A call is complete at its last brace; what is between
the tags and is no call stays content, tags and all.
"""

from octavo.server.tools.events import Event, content, whole_call
from octavo.server.tools.pieces import NotJson, split_at
from octavo.server.tools.written import JsonObject, read_call

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


class HermesParser:
    """``functions`` are the names that the request brings; a call of another one is a call, and the client's to refuse."""

    def __init__(self, functions: frozenset[str]) -> None:
        self._state = self._outside
        self._held = ""
        self._object = JsonObject()

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._state(text, events)
        return events

    def finish(self) -> list[Event]:
        held = "" if self._state == self._after else self._held
        inside = self._object.text if self._state == self._inside else ""
        return content(held + inside)

    def _outside(self, text: str, events: list[Event]) -> str:
        before, rest, found = split_at(self._held + text, OPEN)
        events += content(before)
        if not found:
            self._held = rest
            return ""
        self._held, self._state = OPEN, self._before
        return rest

    def _before(self, text: str, events: list[Event]) -> str:
        """Between the tag and the brace; ``_held`` is all from the tag on."""
        rest = text.lstrip()
        self._held += text[: len(text) - len(rest)]
        if rest.startswith("{"):
            self._object, self._state = JsonObject(), self._inside
        elif rest:
            self._give_up("", events)
        return rest

    def _inside(self, text: str, events: list[Event]) -> str:
        try:
            end = self._object.push(text)
        except NotJson as error:
            self._give_up(self._object.text, events)
            return text[error.at :]
        if end is None:
            return ""
        call = read_call(self._object.text)
        if call is None:
            self._give_up(self._object.text, events)
        else:
            events += whole_call(call.name, call.arguments)
            self._held, self._state = "", self._after
        return text[end:]

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

    def _give_up(self, read: str, events: list[Event]) -> None:
        """It was no call: what was read of it is content."""
        events += content(self._held + read)
        self._held, self._state = "", self._outside
