"""GGUF blocks unpacked by the native module, on several threads: the fast twin of ``octavo.quant.gguf.dequantize``.

Gives the same bits. Knows nothing of files or names; the composition root hands it to whoever opens checkpoints.
"""

import ml_dtypes
import numpy as np

from octavo.quant.gguf import Dequantize, GgmlType


def native_dequantize(num_threads: int) -> Dequantize:
    """A ``Dequantize`` that uses up to ``num_threads`` threads and releases the GIL. Raises ``ImportError`` if the native
    module is not built."""
    from octavo import _native

    def dequantize(kind: GgmlType, data: np.ndarray, out: np.ndarray) -> None:
        values = out.view(np.uint16) if out.dtype == ml_dtypes.bfloat16 else out
        _native.dequantize(int(kind), data, values, num_threads)

    return dequantize
