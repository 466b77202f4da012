"""How many tokens to guess: as many as are likely enough to be right to be worth their time, which all sequences of the step
spend; so usually none beside many others.

Owns what is known of a step's time; each sequence keeps its own record of right guesses. Decides how much is computed in
advance and never what comes of it: every draft is verified, and times differ from run to run.
"""

import math
from collections import Counter
from dataclasses import dataclass

from octavo.engine.sequence import Sequence, SequenceGroup
from octavo.step import ModelOutput, SchedulerOutput

FEW = 4
"""A step of so many sequences takes little longer than a step of one, as both read the same weights: they always guess. More
make together as many guesses a step as these may, at most, and only while their texts and the steps have shown that they
would be faster by more than ``MARGIN``."""

MARGIN = 0.25
"""Guessing must promise to make the step's sequences faster by e^0.25 each, on average, before many guess: while they do, the
next step cannot be planned during the current one, and sequences that end early leave steps that are hardly shorter."""

PATIENCE = 1.25
"""How much longer a step may become through guesses, as a multiple, for each token that its slowest sequence can expect. It
protects sequences that guess nothing."""

MEMORY = 0.97
"""Weight of a step beside the one after it."""

WEIGHTS = 9
"""A step reads its weights in the time that so many rows take, before steps have shown what a row takes."""
DOUBT = 0.03
"""Weight of the prior in the fit, as if earlier steps had differed by this part of their squared mean number of rows."""


class StepCost:
    """Seconds of steps that only decode, as a line over their rows, fitted to the latest ones."""

    def __init__(self) -> None:
        self._weight = self._sequences = self._rows = self._seconds = 0.0
        self._rows_squared = self._rows_seconds = 0.0
        self._drafts_each = self._start = 0.0
        self._slope = 1.0

    def observe(self, *, sequences: int, rows: int, seconds: float) -> None:
        """What a step took."""
        self._weight = self._weight * MEMORY + 1.0
        self._sequences = self._sequences * MEMORY + sequences
        self._rows = self._rows * MEMORY + rows
        self._seconds = self._seconds * MEMORY + seconds
        self._rows_squared = self._rows_squared * MEMORY + rows * rows
        self._rows_seconds = self._rows_seconds * MEMORY + rows * seconds
        if self._seconds > 0:
            self._fit()

    def _fit(self) -> None:
        """Seconds without rows, and of a row."""
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        variance = self._rows_squared / self._weight - rows * rows
        covariance = self._rows_seconds / self._weight - rows * seconds
        doubt, most = DOUBT * rows * rows, seconds / rows
        slope = (covariance + doubt * seconds / (rows + WEIGHTS)) / (variance + doubt)
        self._slope = min(max(slope, 0.02 * most), most)
        self._start = seconds - self._slope * rows
        self._drafts_each = self._rows / self._sequences - 1.0

    def growth(self, num_sequences: int) -> float:
        """By how much a draft makes a step of so many sequences longer, as a part of it. Before a step is known, it takes its
        rows and nothing else."""
        return self._slope / (self._start + self._slope * num_sequences)

    def price(self, num_sequences: int) -> float:
        """By how much a draft makes such a step, with as many drafts a sequence as there have been, longer for all of them
        together: one that is worth less is not made."""
        growth = num_sequences * self.growth(num_sequences)
        return growth / (1.0 + growth * self._drafts_each)


@dataclass(slots=True)
class Speculation:
    """``propose()`` guesses, ``decide()`` says what of it the next step has and whether to go on; ``drawn()`` and ``observe()``
    hear what came. ``most``: drafts after a token, at most; 0: nothing is ever guessed."""

    most: int
    cost: StepCost
    is_on: bool = False
    num_running: int = 0
    _most_each: int = 0

    def decide(self, running: list[SequenceGroup]) -> None:
        """Whether something is guessed in the next step, with these running. Proposals beyond what is bearable are dropped."""
        many = len(running) > FEW * max(self.most, 1)
        self.num_running = num_running = len(running) if many else sum(group.width for group in running)
        self._most_each = min(self.most, FEW * self.most // max(num_running, 1))
        self.is_on = self._most_each > 0 and num_running <= FEW
        if self._most_each and num_running > 1:
            gain = self._gain([(group, seq) for group in running for seq in group.live])
            self.is_on = self.is_on or gain > MARGIN * num_running

    def _gain(self, running: list[tuple[SequenceGroup, Sequence]]) -> float:
        """What guesses do to the rates of all sequences, as logarithms: one that gains much does not make up for many that
        lose. Drops those that are not bearable."""
        price, growth = self.cost.price(self.num_running), self.cost.growth(self.num_running)
        worth = [self._worth(group, seq, price) for group, seq in running]
        slowest = min((math.prod(1.0 + value for value in values) for values in worth), default=1.0)
        bearable = int((PATIENCE * slowest - 1.0) / growth)
        drafts = sorted(((value, i) for i, values in enumerate(worth) for value in values), reverse=True)
        if len(drafts) > bearable:
            del drafts[bearable:]
            counts = Counter(i for _, i in drafts)
            for i, (_, seq) in enumerate(running):
                if seq.num_computed < len(seq.token_ids):  # others are not planned now, but computed
                    del seq.drafts[counts[i] :]
        return sum(math.log1p(value) for value, _ in drafts) - len(running) * math.log1p(growth * len(drafts))

    def _worth(self, group: SequenceGroup, seq: Sequence, price: float) -> list[float]:
        """Of drafts that are proposed, or would be."""
        most = len(seq.drafts) or self._most_each * seq.guesses.has_idea
        return _worth_while(seq.guesses.chance, price, 0 if group.needs_host else most)

    def propose(self, group: SequenceGroup, seq: Sequence) -> None:
        """Guess what follows the last token, which is known."""
        seq.drafts = []
        if self.is_on and not group.needs_host:
            room = group.max_len - len(seq.token_ids) - 1
            worth = _worth_while(seq.guesses.chance, self.cost.price(self.num_running), self._most_each)
            seq.drafts = seq.guesses.lookup.propose(seq.token_ids, len(seq.token_ids), min(len(worth), room))

    def drawn(self, group: SequenceGroup, seq: Sequence, position: int) -> None:
        """The token at ``position`` has come without drafts."""
        if self._most_each > 0 and not group.needs_host:
            seq.guesses.watch(seq.token_ids, position + 1)

    def observe(self, plan: SchedulerOutput, output: ModelOutput) -> None:
        """Steps tell what they took, if they did nothing but draw a token or more for each sequence."""
        if not self._most_each or not plan.sequences or not all(output.token_ids):
            return
        if any(len(seq.token_ids) != 1 + seq.num_drafts for seq in plan.sequences):
            return
        seconds = output.timings.forward + output.timings.sampling
        self.cost.observe(sequences=len(plan.sequences), rows=plan.num_tokens, seconds=seconds)


def _worth_while(chance: float, price: float, most: int) -> list[float]:
    """By how much each draft, right only if all before it are, makes a sequence faster, as a part of its rate, as long as that
    is more than ``price``."""
    right, tokens, worth = chance, 1.0, list[float]()
    while len(worth) < most and right > price * tokens:
        worth.append(right / tokens)
        tokens += right
        right *= chance
    return worth
