"""Drafts by prompt lookup: what followed the last time that the text ended as it does now (Saxena 2023).

Pure guessing: every draft is verified, so a wrong one costs a little compute and never changes an output.
"""

from array import array

LONGEST = 4
SHORTEST = 2
PLACES = 16
"""Earlier places, at most, in which a match of more than ``SHORTEST`` tokens is looked for."""


class PromptLookup:
    """The text of one sequence, by its pairs of tokens. Grows with the text; a token more costs the same however long it is."""

    __slots__ = ("_before", "_latest")

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        self._before = array("i")

    def propose(self, token_ids: list[int], known: int, num_drafts: int) -> list[int]:
        """What followed the latest earlier occurrence of the longest suffix of ``token_ids[:known]`` that has one:
        ``num_drafts`` tokens, or none. A text that goes round in a circle goes on doing so."""
        self._extend(token_ids, known)
        if known < SHORTEST or num_drafts <= 0:
            return []
        at = found = self._before[known - 1]
        if at < 0:
            return []
        longest = SHORTEST
        for _ in range(PLACES):
            size = _common_suffix(token_ids, at, known - 1)
            if size > longest:
                found, longest = at, size
            at = self._before[at]
            if longest == LONGEST or at < 0:
                break
        drafts = token_ids[found + 1 : min(found + 1 + num_drafts, known)]
        for i in range(num_drafts - len(drafts)):
            drafts.append(drafts[i])
        return drafts

    def _extend(self, token_ids: list[int], known: int) -> None:
        """For each token, where the same pair of tokens ended the time before; -1: nowhere."""
        before, latest = self._before, self._latest
        for at in range(len(before), known):
            pair = token_ids[at] << 32 | token_ids[at - 1] if at else -1
            before.append(latest.get(pair, -1))
            latest[pair] = at


def _common_suffix(token_ids: list[int], one: int, other: int) -> int:
    """How many tokens up to ``one`` are those up to ``other``, the later place, of which the pair is known to be; at most
    ``LONGEST``."""
    size = SHORTEST
    while size < LONGEST and size <= one and token_ids[one - size] == token_ids[other - size]:
        size += 1
    return size
