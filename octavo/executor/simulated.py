"""Runs steps in virtual time: nothing is computed, the clock moves on by what the step would cost.

Knows plans, a cost model and a clock; scheduler and memory manager are the real ones and notice no difference. Invariant: a
token depends on its draw's seed and its position alone, a beam's candidates on its last token and its position, so outputs are
the same whatever is batched, preempted or shared.
"""

from dataclasses import dataclass, field

from octavo.clock import VirtualClock
from octavo.executor.cost_model import CostModel, StepWork, total_seconds, work_of
from octavo.step import ModelOutput, ScheduledSequence, SchedulerOutput

_MASK64 = (1 << 64) - 1


@dataclass(slots=True)
class SimulatedTotals:
    """What all steps so far came to."""

    steps: int = 0
    seconds: float = 0.0
    copy_seconds: float = 0.0
    tokens: int = 0
    swapped_tokens: int = 0
    copied_tokens: int = 0


@dataclass(slots=True)
class _Pending:
    """Time passes when somebody waits for the result: a step planned ahead starts when the one before it has ended."""

    executor: "SimulatedExecutor"
    plan: SchedulerOutput

    def result(self) -> ModelOutput:
        return self.executor.run(self.plan)


@dataclass(slots=True)
class SimulatedExecutor:
    """An ``Executor`` that computes nothing. ``totals`` grows with every step."""

    cost: CostModel
    clock: VirtualClock
    block_size: int
    vocab_size: int
    totals: SimulatedTotals = field(default_factory=SimulatedTotals)

    def submit(self, plan: SchedulerOutput) -> _Pending:
        return _Pending(self, plan)

    def shutdown(self) -> None:
        """There is nothing to end."""

    def run(self, plan: SchedulerOutput) -> ModelOutput:
        """Let the step's time pass and make up its tokens."""
        work = work_of(plan, block_size=self.block_size)
        timings = self.cost(work)
        seconds = total_seconds(timings)
        self.clock.advance(seconds)
        self._count(work, seconds, timings.copies)
        tokens = [_tokens(seq, self.vocab_size) for seq in plan.sequences]
        return ModelOutput(step_id=plan.step_id, token_ids=tokens, timings=timings)

    def _count(self, work: StepWork, seconds: float, copy_seconds: float) -> None:
        totals = self.totals
        totals.steps += 1
        totals.seconds += seconds
        totals.copy_seconds += copy_seconds
        totals.tokens += work.num_tokens
        totals.swapped_tokens += work.swapped_tokens
        totals.copied_tokens += work.copied_tokens


def _tokens(seq: ScheduledSequence, vocab_size: int) -> list[int]:
    """One token for each draw. Drafts are never what would have been drawn: the first draw follows the last known token."""
    position = seq.start + len(seq.token_ids) - seq.num_drafts
    return [mixed(seed, position) % vocab_size for seed in seq.seeds]


def mixed(key: int, number: int) -> int:
    """64 bits that look random and depend on both (the finalizer of splitmix64, Steele et al. 2014)."""
    z = (key + (number + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)
