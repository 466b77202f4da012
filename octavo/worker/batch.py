"""A plan as flat arrays: what a step computes, in the shape that ops want.

Knows tokens, positions and slots, not models. Everything is derived from the plan and ``last_token``, the one thing the worker
remembers. Lists, not arrays, until the end: between two steps the caches are full of weights, and what a handful of numpy calls
touches for a few numbers costs more than the loop.
"""

import numpy as np

from octavo.step import SchedulerOutput


def step_arrays(plan: SchedulerOutput, last_token: np.ndarray, block_size: int) -> dict[str, np.ndarray]:
    """The int32 arrays of ``backends.base.Batch`` but for ``logits_rows``. Placeholders become the row's last token."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start = [0]
    seq_lens: list[int] = []
    token_of, block_of = last_token.item, plan.block_tables.item
    for index, seq in enumerate(plan.sequences):
        at, end = seq.start, seq.start + len(seq.token_ids)
        if end - at == 1:  # nearly all of them
            token = seq.token_ids[0]
            input_ids.append(token_of(seq.row) if token < 0 else token)
            positions.append(at)
            slots.append(block_of(index, at // block_size) * block_size + at % block_size)
        else:
            input_ids += [token_of(seq.row) if token < 0 else token for token in seq.token_ids]
            positions += range(at, end)
            while at < end:
                slot = block_of(index, at // block_size) * block_size + at % block_size
                count = min(end - at, block_size - at % block_size)
                slots += range(slot, slot + count)
                at += count
        query_start.append(len(input_ids))
        seq_lens.append(end)
    return {
        "input_ids": np.array(input_ids, np.int32),
        "positions": np.array(positions, np.int32),
        "slot_mapping": np.array(slots, np.int32),
        "query_start": np.array(query_start, np.int32),
        "seq_lens": np.array(seq_lens, np.int32),
        "block_tables": np.ascontiguousarray(plan.block_tables, np.int32),
    }


def sampled_rows(plan: SchedulerOutput, query_start: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Rows whose logits are sampled, int32[R], and for each sequence the index in it of its first one (-1: none).

    A sequence with k drafts wants k + 1 rows: one for each draft to verify and one for the token after them.
    """
    rows: list[int] = []
    first: list[int] = []
    for seq, end in zip(plan.sequences, query_start[1:].tolist(), strict=True):
        if not seq.sample_rows:
            first.append(-1)
            continue
        first.append(len(rows))
        rows.extend(range(end - 1 - seq.num_drafts, end))
    return np.array(rows, np.int32), first
