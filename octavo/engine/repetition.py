"""Whether an output has begun to repeat itself, told token by token.

Owns one sequence's latest tokens and, for each size of a pattern, how long its end has had that period. A token costs a few
operations on short arrays, however long the output is. Invariant: what is told depends on the output's tokens alone.
"""

from copy import copy

import numpy as np

from octavo.sampling_params import RepetitionDetectionParams


class RepetitionWatch:
    """One sequence's."""

    def __init__(self, params: RepetitionDetectionParams) -> None:
        smallest, largest = params.sizes
        sizes = np.arange(smallest, largest + 1)
        self._smallest, self._largest = smallest, largest
        self._enough = sizes * (params.min_count - 1)
        self._runs = np.zeros(len(sizes), np.int64)
        """For each size, how many tokens in a row were equal to the one that stands so far before them."""
        self._latest = np.full(2 * largest, -1, np.int32)
        self._end = largest

    def push(self, token: int) -> bool:
        """Go on with an output token; whether the output now ends in a pattern that stands there often enough."""
        before = self._latest[self._end - self._largest : self._end - self._smallest + 1][::-1]
        self._runs = (self._runs + 1) * (before == token)
        if self._end == len(self._latest):
            self._latest[: self._largest] = self._latest[self._largest :]
            self._end = self._largest
        self._latest[self._end] = token
        self._end += 1
        return bool((self._runs >= self._enough).any())

    def fork(self) -> "RepetitionWatch":
        """A copy that goes on independently."""
        other = copy(self)
        other._latest = self._latest.copy()
        return other
