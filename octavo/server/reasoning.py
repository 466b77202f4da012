"""Splits what a model thinks, between ``<think>`` and ``</think>``, from what it says.

Reads text as it grows and knows no request. However the text is cut into pieces, the parts joined are the same. Space around
the two tags belongs to neither part.
"""

import msgspec

from octavo.server.tools.pieces import split_at
from octavo.structured.reasoning import CLOSE, OPEN, ReasoningStyle


class Split(msgspec.Struct, frozen=True):
    """What one piece of text adds to each part."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """One answer's. ``inside`` is what ``prompt_leaves_open`` says."""

    def __init__(self, style: ReasoningStyle, *, inside: bool | None) -> None:
        self._thinks = style.implied if inside is None else inside
        self._state = self._say if inside is False else self._begin
        self._held = ""
        self._spoken = False

    @property
    def thinking(self) -> bool:
        """Whether what comes is reasoning until its end is found."""
        return self._state == self._think

    def push(self, text: str) -> Split:
        """What more text settles."""
        return self._state(self._held + text)

    def finish(self) -> Split:
        """The answer is over."""
        held, self._held = self._held, ""
        if self._state == self._begin and not self._thinks:
            return Split(content=held)
        return Split() if self._state == self._say else Split(reasoning=self._trimmed(held.rstrip()))

    def _begin(self, text: str) -> Split:
        """Until it is clear whether the answer begins with the tag."""
        rest = text.lstrip()
        if OPEN.startswith(rest) and rest != OPEN:
            self._held = text
            return Split()
        self._held = ""
        tagged = rest.startswith(OPEN)
        self._state = self._think if tagged or self._thinks else self._say
        self._spoken = self._state == self._say  # an answer without reasoning is left as it is
        return self._state(rest.removeprefix(OPEN) if tagged else text)

    def _think(self, text: str) -> Split:
        before, rest, found = split_at(text, CLOSE)
        said = before.rstrip()
        if not found:
            self._held = before[len(said) :] + rest
            return Split(reasoning=self._trimmed(said))
        self._held = ""
        reasoning = self._trimmed(said)
        self._state, self._spoken = self._say, False
        return Split(reasoning=reasoning, content=self._state(rest).content)

    def _say(self, text: str) -> Split:
        return Split(content=self._trimmed(text))

    def _trimmed(self, text: str) -> str:
        """Without the space at the beginning of a part."""
        if not self._spoken:
            text = text.lstrip()
            self._spoken = bool(text)
        return text
