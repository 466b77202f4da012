"""A model's forward as one native call: its ops recorded once, replayed for every batch.

Owns the arrays that a replay copies its batch into and the results that it leaves behind. Ops, threads and checks are those
of the eager path: a replay runs the very same code and gives the same bits. One caller at a time.
"""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.base import Array, Batch, BatchCapacity, Forward
from octavo.backends.cpu.lanes import Lanes, Trial

if TYPE_CHECKING:
    from octavo import _native

TOKENS, SEQUENCES, ROWS, STARTS = range(4)
"""Inputs of a group have one entry each for the same things. The first three are cut into lanes."""


class RecordedForward:
    """See ``backends.base.Graph``."""

    def __init__(self, device: "_native.Device", forward: Forward, capacity: BatchCapacity) -> None:
        self._device = device
        self._program = program = device.new_program()
        self._lanes = Lanes(device.num_threads)
        self._trial = Trial()
        batch = Batch(
            input_ids=program.input(TOKENS, capacity.tokens),
            positions=program.input(TOKENS, capacity.tokens),
            slot_mapping=program.input(TOKENS, capacity.tokens),
            query_start=program.input(STARTS, capacity.sequences + 1),
            seq_lens=program.input(SEQUENCES, capacity.sequences),
            block_tables=program.input(SEQUENCES, capacity.sequences, capacity.blocks),
            logits_rows=program.input(ROWS, capacity.logits_rows),
            allowed=program.input(ROWS, capacity.logits_rows, (capacity.vocab_size + 31) // 32),
        )
        device.begin_recording(program)
        try:
            self._results = forward(batch)
        finally:
            device.end_recording()
        weakref.finalize(self, device.wait)  # at exit, too: a thread that still computes must not outlive the interpreter

    def _inputs(self, batch: Batch) -> list[np.ndarray]:
        return [
            batch.input_ids,
            batch.positions,
            batch.slot_mapping,
            batch.query_start,
            batch.seq_lens,
            batch.block_tables,
            batch.logits_rows,
            np.empty((len(batch.logits_rows), 0), np.int32) if batch.allowed is None else batch.allowed,
        ]

    def start(self, batch: Batch) -> None:
        trial = self._lanes.trial(batch)
        self._device.start(self._program, self._inputs(batch), trial.cuts)
        self._trial = trial

    def go_on(self, batch: Batch, gaps: Sequence[int], rows: Sequence[int]) -> list[int]:
        trial = self._lanes.trial(batch)
        inputs = self._inputs(batch)
        tokens, seconds = self._device.go_on(self._program, self._results[0], inputs, trial.cuts, gaps, rows)
        self._trial.took(seconds)
        self._trial = trial
        return tokens

    def result(self) -> tuple[Array, ...]:
        self._device.finish(self._program)
        self._trial.took(self._program.seconds)
        return tuple(self._program.trimmed(result) for result in self._results)
