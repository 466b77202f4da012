"""How models mark their reasoning, by the names that operators choose from, and where a prompt leaves it.

Knows text only: the splitter of answers and the grammar of tokens both begin from what is said here.
"""

import msgspec

from octavo.request import Thinking

OPEN, CLOSE = "<think>", "</think>"


LONGEST_TAIL = 4096
"""Tokens at the end of a prompt in which its reasoning is looked for, where nothing else says how far it has come."""


class ReasoningStyle(msgspec.Struct, frozen=True):
    """``implied``: the answer begins inside the reasoning unless the prompt says otherwise, tag or no tag."""

    implied: bool


STYLES: dict[str, ReasoningStyle] = {"deepseek_r1": ReasoningStyle(implied=True), "qwen3": ReasoningStyle(implied=False)}


def prompt_leaves_open(prompt: str, continued: str) -> bool | None:
    """Whether a prompt ends inside the reasoning: True when its template, or the message ``continued``, has opened the tag,
    False when it has closed it, None when it says nothing."""
    tail = prompt.rstrip()
    if tail.endswith((OPEN, CLOSE)):
        return tail.endswith(OPEN)
    opened, closed = continued.rfind(OPEN), continued.rfind(CLOSE)
    return None if opened == closed else opened > closed


def text_leaves_open(text: str) -> bool | None:
    """The same of a prompt that may itself be what a model wrote so far: reasoning that it has closed earlier says nothing."""
    return prompt_leaves_open(text, text) is True or prompt_leaves_open(text, "")


def thinking_in(style: ReasoningStyle, *, inside: bool | None) -> Thinking | None:
    """What an output begins with; ``inside`` is what ``prompt_leaves_open`` says. None: the reasoning is over."""
    if inside is False:
        return None
    return Thinking(opening=OPEN, closing=CLOSE, tagged=inside is None, implied=bool(inside) or style.implied)
