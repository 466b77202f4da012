"""A plan as flat arrays: what a step computes, in the shape that ops want.

Pure numpy; knows tokens, positions and slots, not models. Everything is derived from the plan and ``last_token``, the one
thing the worker remembers.
"""

from itertools import chain

import numpy as np

from octavo.step import SchedulerOutput


def step_arrays(plan: SchedulerOutput, last_token: np.ndarray, block_size: int) -> dict[str, np.ndarray]:
    """The int32 arrays of ``backends.base.Batch`` but for ``logits_rows``. Placeholders become the row's last token."""
    sequences = plan.sequences
    lengths = np.fromiter((len(s.token_ids) for s in sequences), np.int32, len(sequences))
    starts = np.fromiter((s.start for s in sequences), np.int32, len(sequences))
    total = int(lengths.sum())
    input_ids = np.fromiter(chain.from_iterable(s.token_ids for s in sequences), np.int32, total)
    query_start = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    owner = np.repeat(np.arange(len(sequences), dtype=np.int32), lengths)
    positions = starts[owner] + np.arange(total, dtype=np.int32) - query_start[:-1][owner]
    pending = np.flatnonzero(input_ids < 0)
    if len(pending):
        rows = np.fromiter((s.row for s in sequences), np.int32, len(sequences))
        input_ids[pending] = last_token[rows[owner[pending]]]
    block, offset = np.divmod(positions, block_size)
    return {
        "input_ids": input_ids,
        "positions": positions,
        "slot_mapping": plan.block_tables[owner, block] * np.int32(block_size) + offset,
        "query_start": query_start,
        "seq_lens": starts + lengths,
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
