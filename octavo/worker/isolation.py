"""One request's error in a step stays that request's: a step that fails is computed again, each sequence alone.

Knows no model. It rests on two properties of a step: computing it twice writes the same keys and values into the same slots,
and a sequence alone gives the same bits as among others. Copies between blocks have neither, so they come before and are not
repeated. A device on which nothing works any more is not for here: after some steps in a row without any success the error is
raised, and ends the engine.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from octavo.step import BlockCopies, ModelOutput, ScheduledSequence, SchedulerOutput, StepTimings

T = TypeVar("T")
MOST_FAILURES = 8
"""Steps in a row in which every sequence failed."""

Probe = Callable[[str, ScheduledSequence], None]


@dataclass(frozen=True, slots=True)
class Isolate:
    """That errors are to be kept apart. ``probe``, for tests, is told of each sequence before a stage of its step, ``compute``
    or ``sample``, and may raise."""

    probe: Probe | None = None


class Isolation:
    """``compute`` computes one plan but for its copies, all of it, and writes what it sampled into ``last_token``, int32 by
    row."""

    def __init__(self, compute: Callable[[SchedulerOutput], ModelOutput], last_token: np.ndarray) -> None:
        self._compute = compute
        self._last_token = last_token
        self._failures = 0

    def __call__(self, plan: SchedulerOutput, finish: Callable[[], ModelOutput]) -> ModelOutput:
        """The results of a plan that is under way, from ``finish``, with ``errors`` for the sequences that cannot be computed.

        Raises:
            Exception: what ``finish`` raised, when nothing has worked for a while.
        """
        before = self._last_token.copy()
        try:
            output = finish()
        except Exception as error:
            self._last_token[:] = before
            return self._one_by_one(plan, error)
        self._failures = 0
        return output

    def _one_by_one(self, plan: SchedulerOutput, cause: Exception) -> ModelOutput:
        outputs: list[ModelOutput] = []
        for index, seq in enumerate(plan.sequences):
            alone = SchedulerOutput(
                step_id=plan.step_id,
                sequences=[seq],
                block_tables=plan.block_tables[index : index + 1],
                copies=BlockCopies(swap_out=[], swap_in=[], copy=[]),
            )
            outputs.append(self._one(alone))
        worked = any(output.errors is None for output in outputs)
        self._failures = 0 if worked else self._failures + 1
        if self._failures >= MOST_FAILURES:
            raise cause
        return _joined(plan.step_id, outputs)

    def _one(self, plan: SchedulerOutput) -> ModelOutput:
        before = self._last_token.copy()
        try:
            return self._compute(plan)
        except Exception:
            self._last_token[:] = before
            return ModelOutput(step_id=plan.step_id, token_ids=[[]], errors=[traceback.format_exc()])


def _joined(step_id: int, outputs: list[ModelOutput]) -> ModelOutput:
    """The results of single sequences as those of one step."""
    return ModelOutput(
        step_id=step_id,
        token_ids=[output.token_ids[0] for output in outputs],
        logprobs=_aligned([output.logprobs for output in outputs]),
        prompt_logprobs=_aligned([output.prompt_logprobs for output in outputs]),
        candidates=_aligned([output.candidates for output in outputs]),
        errors=_aligned([output.errors for output in outputs]),
        timings=StepTimings(
            forward=sum(output.timings.forward for output in outputs),
            sampling=sum(output.timings.sampling for output in outputs),
        ),
    )


def _aligned(parts: list[list[T | None] | None]) -> list[T | None] | None:
    """One entry for each sequence, or nothing if none has any."""
    entries = [part[0] if part else None for part in parts]
    return entries if any(entry is not None for entry in entries) else None
