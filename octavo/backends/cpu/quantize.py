"""Weights quantized by the native module, on several threads: the fast twin of ``octavo.quant.integer.quantize``.

Gives the same bits. Knows nothing of files or names; the composition root hands it to whoever loads models.
"""

import ml_dtypes
import numpy as np

from octavo.quant.integer import Bits, Quantize, check_groups
from octavo.quant.layouts import GROUP, Int4Group, Int8Group, Integer


def native_quantize(num_threads: int, *, isa: str = "auto") -> Quantize:
    """A ``Quantize`` that uses up to ``num_threads`` threads and releases the GIL. ``isa``: one of
    ``_native.cpu_features()`` or "auto". Raises ``ImportError`` if the native module is not built."""
    from octavo import _native

    def quantize(matrix: np.ndarray, bits: Bits) -> Integer:
        check_groups(matrix)
        rows, columns = matrix.shape
        numbers = np.ascontiguousarray(matrix)
        plain = numbers.view(np.uint16) if matrix.dtype == ml_dtypes.bfloat16 else numbers
        scales = np.empty((rows, columns // GROUP), np.float16)
        if bits == 8:
            values = np.empty(matrix.shape, np.int8)
            _native.quantize(plain, values.view(np.uint8), scales.view(np.uint16), None, isa, num_threads)
            return Int8Group(values, scales)
        packed, minimums = np.empty((rows, columns // 2), np.uint8), np.empty_like(scales)
        _native.quantize(plain, packed, scales.view(np.uint16), minimums.view(np.uint16), isa, num_threads)
        return Int4Group(packed, scales, minimums)

    return quantize
