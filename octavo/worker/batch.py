"""A plan as flat arrays: what a step computes, in the shape that ops want.

Knows tokens, positions and slots, not models. Everything is derived from the plan, but for the tokens that are drawn while it
is made. Lists, not arrays, until the end: between two steps the caches are full of weights, and what a handful of numpy calls
touches for a few numbers costs more than the loop.
"""

from dataclasses import dataclass

import numpy as np

from octavo.step import SchedulerOutput


@dataclass(slots=True)
class StepArrays:
    """The int32 arrays of ``backends.base.Batch``. ``input_ids`` has gaps until ``fill()`` has been called.

    ``first_rows`` has for each sequence the index in ``logits_rows`` of its first one, -1: none. A sequence with k drafts wants
    k + 1 rows: one for each draft to verify and one for the token after them.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    slot_mapping: np.ndarray
    query_start: np.ndarray
    seq_lens: np.ndarray
    block_tables: np.ndarray
    logits_rows: np.ndarray
    first_rows: list[int]
    _gaps: list[int]
    _gap_rows: list[int]

    def gaps_of(self, drawn: dict[int, int]) -> tuple[list[int], list[int]]:
        """The gaps that tokens drawn in rows ``drawn`` belong in, and what ``drawn`` has for the row of each."""
        found = [(gap, drawn[row]) for gap, row in zip(self._gaps, self._gap_rows, strict=True) if row in drawn]
        return [gap for gap, _ in found], [place for _, place in found]

    def fill(self, last_token: np.ndarray) -> None:
        """The tokens that were not known to the plan: those that were drawn last in their rows."""
        if self._gaps:
            self.input_ids[self._gaps] = last_token[self._gap_rows]


def step_arrays(plan: SchedulerOutput, block_size: int) -> StepArrays:
    """The arrays of a plan, except for its gaps."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start = [0]
    seq_lens: list[int] = []
    logits_rows: list[int] = []
    first_rows: list[int] = []
    gaps: list[int] = []
    gap_rows: list[int] = []
    block_of = plan.block_tables.item
    for index, seq in enumerate(plan.sequences):
        tokens, at = seq.token_ids, seq.start
        end = at + len(tokens)
        if tokens[-1] < 0:  # no other can be unknown
            gaps.append(len(input_ids) + len(tokens) - 1)
            gap_rows.append(seq.row)
        input_ids += tokens
        if end - at == 1:  # nearly all of them
            positions.append(at)
            slots.append(block_of(index, at // block_size) * block_size + at % block_size)
        else:
            positions += range(at, end)
            while at < end:
                slot = block_of(index, at // block_size) * block_size + at % block_size
                count = min(end - at, block_size - at % block_size)
                slots += range(slot, slot + count)
                at += count
        seq_lens.append(end)
        num_rows = len(input_ids)
        query_start.append(num_rows)
        if seq.sample_rows:
            first_rows.append(len(logits_rows))
            logits_rows += range(num_rows - 1 - seq.num_drafts, num_rows)
        else:
            first_rows.append(-1)
    return StepArrays(
        input_ids=np.array(input_ids, np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int32),
        query_start=np.array(query_start, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        block_tables=np.ascontiguousarray(plan.block_tables, np.int32),
        logits_rows=np.array(logits_rows, np.int32),
        first_rows=first_rows,
        _gaps=gaps,
        _gap_rows=gap_rows,
    )
