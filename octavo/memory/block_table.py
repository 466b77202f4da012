"""The block tables of running sequences as one int32 matrix.

Row r belongs to the sequence that holds row r; its first entries are that sequence's block ids in order of position. Rows
are lent and taken back here; the entries are written by the KV cache manager alone.
"""

import numpy as np


class OutOfRowsError(RuntimeError):
    """More sequences than rows. A bug of the caller, never of a request."""


class BlockTables:
    """int32[max_num_seqs, max_blocks]"""

    def __init__(self, num_rows: int, max_blocks: int) -> None:
        self._matrix = np.zeros((num_rows, max_blocks), np.int32)
        self._free_rows = list(range(num_rows - 1, -1, -1))

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    def lend(self, block_ids: list[int]) -> int:
        """A free row, filled with ``block_ids``."""
        if not self._free_rows:
            raise OutOfRowsError(f"all {len(self._matrix)} rows are lent")
        row = self._free_rows.pop()
        self._matrix[row, : len(block_ids)] = block_ids
        return row

    def take_back(self, row: int) -> None:
        self._free_rows.append(row)

    def set(self, row: int, index: int, block_id: int) -> None:
        self._matrix[row, index] = block_id

    def gather(self, rows: list[int], width: int) -> np.ndarray:
        """A copy of ``rows``, ``width`` entries each: int32[len(rows), width]. A copy, because steps in flight keep it."""
        return self._matrix[rows, :width]
