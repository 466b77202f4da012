"""How many tokens to guess: as many as are likely enough to be right to be worth their time, so usually none beside many
other sequences.

Owns what is known of a step's cost and of the rate of tokens; each sequence keeps its own record of right guesses. Decides how
much is computed in advance and never what comes of it: every draft is verified, and times differ from run to run.
"""

from dataclasses import dataclass

from octavo.engine import ngram
from octavo.engine.sequence import Sequence, SequenceGroup
from octavo.step import ModelOutput, SchedulerOutput

FEW = 4
"""A step of so many sequences takes little longer than a step of one, as both read the same weights. Beside more of them a
draft takes nearly as long as a token of its own, so that nothing is guessed and steps are planned ahead again."""

MEMORY = 0.97
"""Weight of a step beside the one after it."""

FIRST_COST = 0.1
"""Of a row more, as a part of what a row takes on average, before steps have shown it; it weighs as much as differences of
``DOUBT`` squared rows."""
DOUBT = 0.2


class StepCost:
    """Seconds of steps that only decode, as a line over their rows, fitted to the latest ones."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._tokens = 0.0
        self._rows_squared = self._rows_seconds = 0.0

    def observe(self, *, rows: int, tokens: int, seconds: float) -> None:
        """A step of so many rows brought so many tokens."""
        self._weight = self._weight * MEMORY + 1.0
        self._rows = self._rows * MEMORY + rows
        self._seconds = self._seconds * MEMORY + seconds
        self._tokens = self._tokens * MEMORY + tokens
        self._rows_squared = self._rows_squared * MEMORY + rows * rows
        self._rows_seconds = self._rows_seconds * MEMORY + rows * seconds

    @property
    def price(self) -> float:
        """The tokens that are lost while one row more is computed: a draft that is right less often is not worth it."""
        if not self._weight or not self._seconds:
            return FIRST_COST
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        of_a_row = seconds / rows
        variance = self._rows_squared / self._weight - rows * rows
        covariance = self._rows_seconds / self._weight - rows * seconds
        slope = (covariance + DOUBT * FIRST_COST * of_a_row) / (variance + DOUBT)
        return min(max(slope, 0.02 * of_a_row), of_a_row) * self._tokens / self._seconds


@dataclass(slots=True)
class Speculation:
    """``propose()`` guesses, ``verified()`` and ``observe()`` hear what came of it. ``most``: drafts after a token, at most; 0:
    nothing is ever guessed. ``num_running``, in sequences, is the scheduler's to say."""

    most: int
    cost: StepCost
    num_running: int = 0

    @property
    def is_on(self) -> bool:
        """Whether something is guessed at present."""
        return self.most > 0 and self.num_running <= FEW

    def propose(self, group: SequenceGroup, seq: Sequence) -> None:
        """Guess what follows the last token, which is known."""
        seq.drafts = []
        if self.is_on and not group.params.needs_host:
            room = group.max_tokens_total - len(seq.token_ids) - 1
            seq.drafts = ngram.propose(seq.token_ids, min(self._worth_while(seq.guesses.chance), room))
        if not seq.drafts:
            seq.guesses.forget()

    def _worth_while(self, chance: float) -> int:
        """A draft is right if all before it are: so many have a chance of more than they cost."""
        price, right, count = self.cost.price, chance, 0
        while count < self.most and right > price:
            right *= chance
            count += 1
        return count

    def observe(self, plan: SchedulerOutput, output: ModelOutput) -> None:
        """Steps tell what they took, if they did nothing but draw a token or more for each sequence."""
        decodes = all(len(seq.token_ids) == 1 + seq.num_drafts for seq in plan.sequences)
        if not self.is_on or not plan.sequences or not decodes or not all(output.token_ids):
            return
        seconds = output.timings.forward + output.timings.sampling
        self.cost.observe(rows=plan.num_tokens, tokens=sum(map(len, output.token_ids)), seconds=seconds)
