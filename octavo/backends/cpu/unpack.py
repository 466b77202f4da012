"""GGUF blocks unpacked by the native module, on several threads: the fast twins of those of ``octavo.quant.gguf``.

Give the same bits. Knows nothing of files or names; the composition root hands them to whoever opens checkpoints.
"""

import ml_dtypes
import numpy as np

from octavo.quant.gguf import GgmlType, Unpack


def native_unpack(num_threads: int) -> Unpack:
    """An ``Unpack`` that uses up to ``num_threads`` threads and releases the GIL. Raises ``ImportError`` if the native module
    is not built."""
    from octavo import _native

    def dequantize(kind: GgmlType, data: np.ndarray, out: np.ndarray) -> None:
        values = out.view(np.uint16) if out.dtype == ml_dtypes.bfloat16 else out
        _native.dequantize(int(kind), data, values, num_threads)

    def split(kind: GgmlType, data: np.ndarray, values: np.ndarray, scales: np.ndarray, minimums: np.ndarray | None) -> bool:
        lowest = None if minimums is None else minimums.view(np.uint16)
        return _native.split_blocks(int(kind), data, values, scales.view(np.uint16), lowest, num_threads)

    return Unpack(dequantize, split)
