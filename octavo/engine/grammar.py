"""The joint between sequences and the grammars that confine them: who computes masks implements ``Grammar``.

Also when masks are computed: before a step, as many as fit into a few milliseconds, so that a grammar that is hard to match
slows its own request and no other. Knows no text and no library.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from octavo.request import Thinking
from octavo.sampling_params import StructuredOutputsParams

MASK_SECONDS = 0.004
"""What masks may add to a step in which somebody's are quick to compute or not needed."""
SLOW_MASK_SECONDS = 0.02
"""The same where everybody's are slow: a step costs no less for the few that would have theirs."""


def mask_of(token_ids: Sequence[int]) -> np.ndarray:
    """uint8[*], a bit for every token id, lowest first: 1 for these. What is beyond its end is 0."""
    bits = np.zeros(max(token_ids, default=-1) + 1, np.uint8)
    bits[np.asarray(token_ids, np.int64)] = 1
    return np.packbits(bits, bitorder="little")


def both(mask: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """What two masks allow; None allows everything."""
    if mask is None or other is None:
        return other if mask is None else mask
    shared = min(len(mask), len(other))
    allowed: np.ndarray = mask[:shared] & other[:shared]
    return allowed


class Grammar(Protocol):
    """Where one sequence stands in its grammar."""

    @property
    def mask(self) -> np.ndarray | None:
        """uint8[*], a bit for every token id, lowest first: 1 where the token may come next. None: not computed yet."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether any token may come next, whatever its mask says."""
        ...

    @property
    def mask_seconds(self) -> float:
        """What its latest mask took to compute."""
        ...

    @property
    def is_satisfied(self) -> bool:
        """Whether the text may end here."""
        ...

    def compute_mask(self) -> None: ...

    def advance(self, token: int) -> bool:
        """Go on with a token that the mask allows. Returns whether the text is complete: nothing but an end may follow."""
        ...

    def fork(self) -> "Grammar":
        """A copy that goes on independently."""
        ...


class GrammarSource(Protocol):
    """Compiles what requests ask for, elsewhere than on the caller's thread."""

    def compile(
        self,
        wanted: StructuredOutputsParams | None,
        *,
        ends: bool,
        thinking: Thinking | None = None,
        budget: int | None = None,
    ) -> "Future[Any]":
        """A ``Grammar``, at its beginning, its first mask computed. With ``ends`` false no mask of ``wanted`` ever offers an
        end-of-sequence token. ``thinking`` comes before ``wanted``, or before free text, for ``budget`` tokens at the most."""
        ...


class NoText:
    """The grammar of a request whose own could not be compiled: it allows nothing, which ends that request in an error."""

    is_satisfied = False
    is_open = False
    mask_seconds = 0.0

    def __init__(self) -> None:
        self.mask: np.ndarray | None = np.zeros(0, np.uint8)

    def compute_mask(self) -> None:
        pass

    def advance(self, token: int) -> bool:
        return False

    def fork(self) -> Grammar:
        return self


class MaskBudget:
    """Computes lacking masks, the quick and the long-awaited first, until the time is up; always at least one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waited: dict[int, int] = {}

    def compute(self, running: Sequence[tuple[int, Grammar | None]]) -> None:
        """``running``: the id of every sequence that runs, and its grammar if it has one. Some may be left without a mask; they
        come before quicker ones the longer they wait."""
        lacking = [(seq_id, grammar) for seq_id, grammar in running if grammar is not None and grammar.mask is None]
        if not lacking:
            self._waited = {}
            return
        waited = {seq_id: self._waited.get(seq_id, 0) for seq_id, _ in lacking}
        some_quick = any(grammar is None or grammar.mask_seconds * len(running) <= MASK_SECONDS for _, grammar in running)
        deadline = self._clock() + (MASK_SECONDS if some_quick else SLOW_MASK_SECONDS)
        for seq_id, grammar in sorted(lacking, key=lambda item: item[1].mask_seconds / (1 + waited[item[0]])):
            grammar.compute_mask()
            del waited[seq_id]
            if self._clock() > deadline:
                break
        self._waited = {seq_id: steps + 1 for seq_id, steps in waited.items()}
