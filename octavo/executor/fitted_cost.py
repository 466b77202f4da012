"""A cost model fitted to measured steps: a machine as it is, without data sheets.

Owns the features, the fit (non-negative least squares on relative errors) and the word on how good it is. Knows not how steps
were measured. Invariant, as of every cost model: more work never takes less time, because no coefficient is negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from octavo.executor.cost_model import StepWork
from octavo.step import StepTimings

KNOT_RATIO = 1.4
"""Between the numbers of tokens where the time of the layers may change its slope."""

MAX_ROUNDS = 20
"""Of the fit, for each coefficient: far more than it ever takes."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A step's work and its measured seconds."""

    work: StepWork
    seconds: float


@dataclass(frozen=True, slots=True)
class FitError:
    """Relative errors of the fitted seconds of ``num_steps`` steps: half of them are within ``median``, nine of ten within
    ``p90``."""

    median: float
    p90: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class FittedCost:
    """``base`` seconds for any step; ``increments[i]`` more as its tokens grow from ``knots[i]`` to ``knots[i + 1]``, in a
    straight line and beyond the last knot by the same slope; the rest are seconds for each unit of ``StepWork``."""

    base: float
    knots: tuple[int, ...]
    increments: tuple[float, ...]
    per_row: float
    per_sequence: float
    per_context_token: float
    per_attention_pair: float
    per_copied_token: float
    per_swapped_token: float
    error: FitError

    def __call__(self, work: StepWork) -> StepTimings:
        layers = sum(part * seconds for part, seconds in zip(_ramps(work.num_tokens, self.knots), self.increments, strict=True))
        forward = (
            layers
            + self.per_row * work.num_rows
            + self.per_sequence * work.num_sequences
            + self.per_context_token * work.read_tokens
            + self.per_attention_pair * work.attention_pairs
        )
        copies = self.per_copied_token * work.copied_tokens + self.per_swapped_token * work.swapped_tokens
        return StepTimings(copies=copies, forward=self.base + forward)


def fit(observations: Sequence[Observation]) -> FittedCost:
    """The coefficients whose relative errors have the smallest sum of squares.

    Raises:
        ValueError: there are too few observations, or one took no time.
    """
    if len(observations) < 2 or min(o.seconds for o in observations) <= 0:
        raise ValueError(f"a fit needs at least two steps that took time, not {len(observations)}")
    knots = _knots(sorted({o.work.num_tokens for o in observations}))
    seconds = np.array([o.seconds for o in observations])
    features = np.array([_features(o.work, knots) for o in observations])
    solution = _non_negative_least_squares(features / seconds[:, None], np.ones(len(seconds)))
    errors = np.abs(features @ solution / seconds - 1.0)
    base, *increments, row, sequence, context, pair, copied, swapped = (float(value) for value in solution)
    return FittedCost(
        base=base,
        knots=knots,
        increments=tuple(increments),
        per_row=row,
        per_sequence=sequence,
        per_context_token=context,
        per_attention_pair=pair,
        per_copied_token=copied,
        per_swapped_token=swapped,
        error=FitError(float(np.median(errors)), float(np.quantile(errors, 0.9)), len(observations)),
    )


def _knots(sizes: Sequence[int]) -> tuple[int, ...]:
    """Measured numbers of tokens, not too near to each other, from none to the largest."""
    chosen = [0]
    for size in sizes:
        if size >= max(1, chosen[-1] * KNOT_RATIO):
            chosen.append(size)
    if sizes[-1] > chosen[-1] > 0:
        chosen[-1] = sizes[-1]
    return tuple(chosen)


def _ramps(num_tokens: int, knots: Sequence[int]) -> list[float]:
    """How much of each stretch between two knots lies below ``num_tokens``; the last one goes on for ever."""
    parts = [min(1.0, max(0.0, (num_tokens - low) / (high - low))) for low, high in pairwise(knots)]
    if parts and num_tokens > knots[-1]:
        parts[-1] = (num_tokens - knots[-2]) / (knots[-1] - knots[-2])
    return parts


def _features(work: StepWork, knots: Sequence[int]) -> list[float]:
    return [
        1.0,
        *_ramps(work.num_tokens, knots),
        work.num_rows,
        work.num_sequences,
        work.read_tokens,
        work.attention_pairs,
        work.copied_tokens,
        work.swapped_tokens,
    ]


def _non_negative_least_squares(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The x >= 0 with the smallest |matrix x - target| (active sets, Lawson and Hanson 1974, chapter 23). float64[columns]."""
    norms = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(norms > 0, norms, 1.0)
    x = np.zeros(matrix.shape[1])
    free = np.zeros(matrix.shape[1], bool)
    tolerance = 1e-10 * max(1.0, float(np.linalg.norm(target)))
    for _ in range(MAX_ROUNDS * len(x)):
        gradient = np.where(free, -np.inf, scaled.T @ (target - scaled @ x))
        enters = int(np.argmax(gradient))
        if free.all() or gradient[enters] <= tolerance:
            break
        free[enters] = True
        while True:
            solution = np.zeros(len(x))
            solution[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            blocking = free & (solution <= 0)
            if not blocking.any():
                break
            steps = x[blocking] / (x[blocking] - solution[blocking] + 1e-300)
            x += float(steps.min()) * (solution - x)
            free &= x > 1e-14
            x[~free] = 0.0
        x = solution
    return x / np.where(norms > 0, norms, 1.0)
