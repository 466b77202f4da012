"""When masks are computed: what is slow to match slows those that are quick by no more than a few milliseconds."""

import numpy as np
import pytest

from octavo.engine.grammar import MASK_SECONDS, SLOW_MASK_SECONDS, Grammar, MaskBudget, both, mask_of


class TimedGrammar:
    """Its mask takes so many seconds of ``clock``."""

    is_open = False
    is_satisfied = False

    def __init__(self, clock: list[float], seconds: float) -> None:
        self._clock = clock
        self.mask_seconds = seconds
        self.mask: np.ndarray | None = None

    def compute_mask(self) -> None:
        self._clock[0] += self.mask_seconds
        self.mask = np.zeros(1, np.uint8)

    def advance(self, token: int) -> bool:
        self.mask = None
        return False

    def fork(self) -> Grammar:
        raise NotImplementedError


def computed(seconds: list[float | None], *, steps: int = 1) -> list[list[int]]:
    """Which of the sequences had their masks computed in each step, if grammars take so long; None: it has none."""
    clock = [0.0]
    budget = MaskBudget(clock=lambda: clock[0])
    grammars = [None if one is None else TimedGrammar(clock, one) for one in seconds]
    found = []
    for _ in range(steps):
        budget.compute(list(enumerate(grammars)))
        ready = {i: grammar for i, grammar in enumerate(grammars) if grammar is not None and grammar.mask is not None}
        for grammar in ready.values():
            grammar.advance(0)
        found.append(list(ready))
    return found


def test_two_masks_allow_what_both_do() -> None:
    some, others = mask_of([0, 9, 17, 17]), mask_of((9, 3))
    assert (some.tolist(), others.tolist(), mask_of([]).tolist()) == ([1, 2, 2], [8, 2], [])
    np.testing.assert_array_equal(both(some, others), mask_of([9]))
    assert both(some, None) is some and both(None, some) is some and both(None, None) is None


def test_quick_masks_are_all_computed() -> None:
    assert computed([0.00001] * 32) == [list(range(32))]


@pytest.mark.parametrize("other", [None, 0.0001])
def test_slow_ones_beside_quick_ones_share_a_few_milliseconds(other: float | None) -> None:
    chosen = computed([other] + [0.0012] * 8)[0]
    slow = [i for i in chosen if i > 0]
    assert (0 in chosen) == (other is not None)
    assert (len(slow) - 1) * 0.0012 <= MASK_SECONDS < 0.0002 + len(slow) * 0.0012


def test_where_all_are_slow_they_share_more() -> None:
    chosen = computed([0.0012] * 40)[0]
    assert (len(chosen) - 1) * 0.0012 <= SLOW_MASK_SECONDS < len(chosen) * 0.0012


def test_none_waits_for_ever() -> None:
    steps = computed([None, 0.003, 0.003, 0.003, 0.05], steps=40)
    assert all(chosen for chosen in steps)
    assert set().union(*steps) == {1, 2, 3, 4}
