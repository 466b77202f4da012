"""Swap or recompute? The cheaper of the two, by what steps have measured on this machine.

Owns two running means. Knows no sequences; a preemption asks it with numbers.
"""

from octavo.step import ModelOutput, SchedulerOutput

WEIGHT = 0.2
"""Of the newest measurement in a running mean."""

MANY_TOKENS = 16
"""A step with fewer costs what the weights cost, and says nothing about a long recomputation."""


class SwapCost:
    """Whether moving a group to the host and back is cheaper than computing it again, from what steps have measured."""

    def __init__(self) -> None:
        self._seconds_per_token = 1e-3
        self._seconds_per_block = 1e-4

    def observe(self, plan: SchedulerOutput, output: ModelOutput) -> None:
        num_copies = len(plan.copies.swap_in) + len(plan.copies.swap_out)
        if num_copies:
            self._seconds_per_block += WEIGHT * (output.timings.copies / num_copies - self._seconds_per_block)
        if plan.num_tokens >= MANY_TOKENS:
            self._seconds_per_token += WEIGHT * (output.timings.forward / plan.num_tokens - self._seconds_per_token)

    def part_of_recomputing(self, *, num_blocks: int, num_tokens: int) -> float:
        """What moving out and in takes of the time to compute the tokens again, 1 at most: then it is no cheaper."""
        moving, computing = 2 * num_blocks * self._seconds_per_block, num_tokens * self._seconds_per_token
        return moving / computing if moving < computing else 1.0
