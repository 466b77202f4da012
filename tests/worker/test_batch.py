"""Plans as arrays: any mixture of chunks, decodes and drafts, against the definition of each array, token by token."""

import numpy as np
import pytest

from octavo.step import PENDING, BlockCopies, ScheduledSequence, SchedulerOutput
from octavo.worker.batch import StepArrays, step_arrays

ROWS = 16


def _plan(rng: np.random.Generator, block_size: int, sequences: int) -> SchedulerOutput:
    scheduled = []
    for row in rng.permutation(ROWS)[:sequences].tolist():
        length = int(rng.choice([1, 1, 1, 2, block_size, 3 * block_size + 1]))
        tokens = rng.integers(0, 1000, length).tolist()
        if rng.random() < 0.5:
            tokens[-1] = PENDING
        scheduled.append(
            ScheduledSequence(
                seq_id=row,
                row=row,
                start=int(rng.integers(0, 3 * block_size)),
                token_ids=tokens,
                prompt_len=1,
                num_drafts=int(rng.integers(0, length)),
                sample_rows=(row,) if rng.random() < 0.8 else (),
            )
        )
    tables = rng.integers(0, 500, (sequences, 7)).astype(np.int32)
    return SchedulerOutput(
        step_id=0, sequences=scheduled, block_tables=tables, copies=BlockCopies(swap_out=[], swap_in=[], copy=[])
    )


def of_batch(arrays: StepArrays) -> dict[str, np.ndarray]:
    return {name: value for name in arrays.__slots__ if isinstance(value := getattr(arrays, name), np.ndarray)}


@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_every_token_has_its_place(block_size: int) -> None:
    rng = np.random.default_rng(block_size)
    last_token = rng.integers(0, 1000, ROWS).astype(np.int32)
    for sequences in [1, 2, 5, ROWS] * 4:
        plan = _plan(rng, block_size, sequences)
        arrays = step_arrays(plan, block_size)
        arrays.fill(last_token)
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in of_batch(arrays).values())
        ids, positions, slots, ends = [], [], [], [0]
        for table, seq in zip(plan.block_tables, plan.sequences, strict=True):
            for offset, token in enumerate(seq.token_ids):
                position = seq.start + offset
                ids.append(last_token[seq.row] if token == PENDING else token)
                positions.append(position)
                slots.append(table[position // block_size] * block_size + position % block_size)
            ends.append(len(ids))
        assert arrays.input_ids.tolist() == ids
        assert arrays.positions.tolist() == positions
        assert arrays.slot_mapping.tolist() == slots
        assert arrays.query_start.tolist() == ends
        assert arrays.seq_lens.tolist() == [seq.start + len(seq.token_ids) for seq in plan.sequences]
        assert np.array_equal(arrays.block_tables, plan.block_tables)


def test_a_plan_without_sequences_is_empty() -> None:
    plan = SchedulerOutput(
        step_id=0,
        sequences=[],
        block_tables=np.zeros((0, 0), np.int32),
        copies=BlockCopies(swap_out=[], swap_in=[], copy=[]),
    )
    arrays = step_arrays(plan, 16)
    arrays.fill(np.zeros(1, np.int32))
    assert {name: array.shape for name, array in of_batch(arrays).items()} == {
        "input_ids": (0,),
        "positions": (0,),
        "slot_mapping": (0,),
        "query_start": (1,),
        "seq_lens": (0,),
        "block_tables": (0, 0),
        "logits_rows": (0,),
    }


def test_rows_to_sample_follow_the_drafts() -> None:
    rng = np.random.default_rng(0)
    for sequences in [1, 3, ROWS] * 4:
        plan = _plan(rng, 16, sequences)
        arrays = step_arrays(plan, 16)
        ends, rows = arrays.query_start, arrays.logits_rows
        for seq, end, at in zip(plan.sequences, ends[1:], arrays.first_rows, strict=True):
            wanted = rows[at : at + seq.num_drafts + 1].tolist() if at >= 0 else []
            assert wanted == (list(range(end - 1 - seq.num_drafts, end)) if seq.sample_rows else [])
        assert len(rows) == sum(seq.num_drafts + 1 for seq in plan.sequences if seq.sample_rows)
