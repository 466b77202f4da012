"""Lanes: each thread computes rows of its own from a step's first op to the last, instead of a part of every op.

Lanes neither wait for one another in every op nor fetch what another core has written, but each reads all weights. What is
faster depends on the processor, the model, the number of rows, and on how far apart the system has put the threads, which
changes while a server runs; so both are tried, now and then. Results are the same bits.
"""

from dataclasses import dataclass, field
from statistics import median

import numpy as np

from octavo.backends.base import Batch

LEAST_ROWS = 6
"""of a lane; with fewer, memory is what all wait for"""
TRIES = 3
"""steps of either way when both are tried"""
PERIOD = 48
"""steps from one trial to the next"""
LONGEST_PERIOD = 768
"""while lanes lose every trial"""
CLEARLY = 0.98
"""The other way replaces the present one only if it takes less than this part of its time."""
HOPELESS = 1.3
"""Lanes that take so many times as long are not tried again in this trial."""


class Lanes:
    """Of one recording."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._choices: dict[int, Choice] = {}

    def trial(self, batch: Batch) -> "Trial":
        """How the batch is to be computed. Only batches with one token of each sequence have lanes, which nobody else reads."""
        count = len(batch.seq_lens)
        if len(batch.input_ids) != count or self._num_threads == 1 or count < self._num_threads * LEAST_ROWS:
            return Trial()
        choice = self._choices.setdefault(count.bit_length(), Choice())
        if not choice.lanes:
            return Trial([], choice, count)
        begins = [count * lane // self._num_threads for lane in range(1, self._num_threads)]
        wanted = begins if len(batch.logits_rows) == count else np.searchsorted(batch.logits_rows, begins).tolist()
        return Trial([begins, begins, wanted], choice, count)


@dataclass(frozen=True, slots=True)
class Trial:
    """Of one batch. ``cuts``: of its tokens, its sequences and the rows whose logits are wanted, where the lanes after the
    first begin; nothing: it is computed as one. ``choice``: who wants to know what came of it."""

    cuts: list[list[int]] = field(default_factory=list)
    choice: "Choice | None" = None
    num_rows: int = 0

    def took(self, seconds: float) -> None:
        if self.choice:
            self.choice.took(seconds / self.num_rows, in_lanes=bool(self.cuts))


class Choice:
    """Between lanes and one, for batches of about the same size. ``lanes``: what the next step is to be."""

    def __init__(self) -> None:
        self.lanes = False
        self._better = False
        self._until_trial = 0
        self._period = PERIOD
        self._times: tuple[list[float], list[float]] = ([], [])

    def took(self, seconds: float, *, in_lanes: bool) -> None:
        """A step, for each of its rows. The one after it may have begun."""
        if self._until_trial:
            self._until_trial -= 1
            return
        self._times[in_lanes].append(seconds)
        one, lanes = self._times
        if not one or not lanes or (len(lanes) < TRIES and min(lanes) < HOPELESS * median(one)):
            self.lanes = not self.lanes
            return
        self._better = median(lanes) * CLEARLY < median(one) if self._better else median(lanes) < median(one) * CLEARLY
        self._period = PERIOD if self._better else min(2 * self._period, LONGEST_PERIOD)
        self._until_trial = self._period
        self._times = ([], [])
        self.lanes = self._better
