"""What is guessed of one sequence, and how often it was right.

A sequence's own record. While nothing is guessed, what would have been is compared with what comes, so that it is known what
guesses are worth before one is made.
"""

from dataclasses import dataclass, field

from octavo.engine.ngram import PromptLookup

IMAGINED = 8
"""Tokens that are looked up at once while none is verified."""


@dataclass(eq=False, slots=True)
class Guesses:
    """``right`` of the ``tried`` ones, the latest counting most."""

    right: float = 2.0
    tried: float = 4.0
    lookup: PromptLookup = field(default_factory=PromptLookup)
    _imagined: list[int] = field(default_factory=list)
    _start: int = 0
    _num_right: int = 0

    @property
    def chance(self) -> float:
        """Of a draft behind what is right."""
        return self.right / self.tried

    @property
    def has_idea(self) -> bool:
        """Whether anything would be guessed."""
        return bool(self._imagined)

    def verified(self, num_drafts: int, num_right: int) -> None:
        """Drafts behind the first wrong one say nothing."""
        self.right = self.right * 0.8 + num_right
        self.tried = self.tried * 0.8 + min(num_right + 1, num_drafts)
        self._imagined = []

    def watch(self, token_ids: list[int], known: int) -> None:
        """``token_ids[known - 1]`` has come without drafts."""
        if self._imagined:
            right = known - 1 == self._start + self._num_right and token_ids[known - 1] == self._imagined[self._num_right]
            self._num_right += right
            if not right or self._num_right == len(self._imagined):
                self.verified(len(self._imagined), self._num_right)
        if not self._imagined:
            self._imagined = self.lookup.propose(token_ids, known, IMAGINED)
            self._start, self._num_right = known, 0
        if not self._imagined:
            self._forget()

    def _forget(self) -> None:
        """What was, counts a little less, as the text repeats nothing at present."""
        self.right += 0.05 * (2.0 - self.right)
        self.tried += 0.05 * (4.0 - self.tried)
