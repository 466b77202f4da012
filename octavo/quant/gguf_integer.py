"""GGUF blocks as integer layouts, without a detour over plain numbers where the formats agree.

Knows bytes and arrays; not files or names. Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 keep every bit. Q3_K, Q4_K, Q5_K and Q6_K keep their
values, and their scales and minimums, products of two numbers, are rounded to float16. What no layout holds, Q2_K (minimums in
groups of 16), becomes 8 bits, whose error is a small part of a step of its own.
"""

import numpy as np

from octavo.quant.gguf import FORMATS, Dequantize, GgmlType, Unpack
from octavo.quant.integer import quantize_int8
from octavo.quant.layouts import GROUP, Int4Group, Int5Group, Int6Group, Int8Group, Integer, Unrepresentable

_FOUR_BITS = (GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q4_K)
_FIVE_BITS = (GgmlType.Q5_0, GgmlType.Q5_1, GgmlType.Q5_K)
_SIX_BITS = (GgmlType.Q3_K, GgmlType.Q6_K)


def layout_of(kind: GgmlType, columns: int) -> type[Integer] | None:
    """The layout nearest to how rows of so many values are stored; None: they are plain numbers, or no whole groups."""
    block = FORMATS[kind]
    if not block.inputs or columns % max(GROUP, block.elements):
        return None
    if kind in _FOUR_BITS:
        return Int4Group
    if kind in _FIVE_BITS:
        return Int5Group
    return Int6Group if kind in _SIX_BITS else Int8Group


def integer_layout(kind: GgmlType, data: np.ndarray, shape: tuple[int, int], *, unpack: Unpack) -> Integer:
    """uint8[bytes] of a matrix [out_features, in_features] that has a ``layout_of`` -> that.

    Raises ``ValueError`` if the sizes do not agree, ``Unrepresentable`` for scales that float16 cannot hold.
    """
    block = FORMATS[kind]
    rows, columns = shape
    layout = layout_of(kind, columns)
    if layout is None or data.size != rows * columns // block.elements * block.bytes:
        raise ValueError(f"{data.size} bytes of {kind.name} are not {rows} rows of {columns} whole numbers")
    if kind == GgmlType.Q2_K:
        return _as_int8(kind, data, shape, unpack.dequantize)
    values = np.empty((rows, columns // 2 if layout is Int4Group else columns), np.uint8)
    scales = np.empty((rows, columns // block.inputs), np.float16)
    minimums = np.empty_like(scales) if block.minimums or block.offset else None
    if not unpack.split(kind, data, values.reshape(-1), scales.reshape(-1), None if minimums is None else minimums.reshape(-1)):
        raise Unrepresentable("a scale is beyond float16")
    if minimums is not None:
        return (Int4Group if layout is Int4Group else Int5Group)(values, scales, minimums)
    return (Int6Group if layout is Int6Group else Int8Group)(values.view(np.int8), scales)


def _as_int8(kind: GgmlType, data: np.ndarray, shape: tuple[int, int], dequantize: Dequantize) -> Int8Group:
    plain = np.empty(shape, np.float32)
    dequantize(kind, data, plain.reshape(-1))
    try:
        return quantize_int8(plain)
    except ValueError as error:
        raise Unrepresentable(str(error)) from None
