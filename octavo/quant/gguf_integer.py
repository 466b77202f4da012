"""GGUF blocks as integer layouts, without a detour over plain numbers where the formats agree.

Knows bytes and arrays; not files or names. Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 keep every bit. Q3_K, Q4_K, Q5_K and Q6_K keep their
values, and their scales and minimums, products of two numbers, are rounded to float16. What no layout holds, Q2_K (minimums in
groups of 16), becomes 8 bits, whose error is a small part of a step of its own.
"""

from collections.abc import Iterator

import numpy as np

from octavo.quant.gguf import FORMATS, Dequantize, GgmlType, k_scales, split
from octavo.quant.integer import quantize_int8
from octavo.quant.layouts import GROUP, Int4Group, Int5Group, Int6Group, Int8Group, Integer

_PLAIN = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
_FIVE_BITS = (GgmlType.Q5_0, GgmlType.Q5_1, GgmlType.Q5_K)
_HALF_GROUPS = (GgmlType.Q3_K, GgmlType.Q6_K)
_CHUNK = 1 << 20
"""Values converted at once."""


def integer_layout(kind: GgmlType, data: np.ndarray, shape: tuple[int, int], *, dequantize: Dequantize) -> Integer | None:
    """uint8[bytes] of a matrix [out_features, in_features] -> its layout; None for plain numbers, for rows that are no groups
    and for scales that float16 cannot hold.

    Raises ``ValueError`` if the sizes do not agree.
    """
    block = FORMATS[kind]
    rows, columns = shape
    if kind in _PLAIN or columns % max(GROUP, block.elements):
        return None
    if data.size != rows * columns // block.elements * block.bytes:
        raise ValueError(f"{data.size} bytes of {kind.name} are not {rows * columns} values")
    blocks = data.reshape(rows, columns // block.elements, block.bytes)
    if kind == GgmlType.Q8_0:
        return Int8Group(blocks[..., 2:].view(np.int8).reshape(rows, columns), _halves(blocks, 0))
    if kind == GgmlType.Q4_1:
        return Int4Group(blocks[..., 4:].reshape(rows, -1), _halves(blocks, 0), _halves(blocks, 2))
    if kind == GgmlType.Q4_0:
        scales = _halves(blocks, 0)
        return _int4(blocks[..., 2:].reshape(rows, -1), scales.astype(np.float32), scales.astype(np.float32) * np.float32(-8))
    if kind == GgmlType.Q4_K:
        return _q4_k(blocks)
    if kind in _FIVE_BITS:
        return _as_int5(kind, blocks)
    if kind in _HALF_GROUPS:
        return _as_int6(kind, blocks)
    return _as_int8(kind, data, shape, dequantize)


def _halves(blocks: np.ndarray, start: int) -> np.ndarray:
    """The half-precision number at byte ``start`` of each block, float16[rows, blocks]."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view("<f2")[..., 0].astype(np.float16, copy=False)


def _int4(packed: np.ndarray, scales: np.ndarray, minimums: np.ndarray) -> Int4Group | None:
    """None where a scale or minimum is beyond float16."""
    halves = _as_halves(scales), _as_halves(minimums)
    return Int4Group(packed, *halves) if np.isfinite(halves).all() else None


def _as_halves(numbers: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float16)


def _q4_k(blocks: np.ndarray) -> Int4Group | None:
    """Eight groups a block; byte i of a quarter holds value i of one group and value i of the next."""
    rows = blocks.shape[0]
    flat = blocks.reshape(-1, blocks.shape[2])
    scales, minima = k_scales(flat[:, 4:16])
    with np.errstate(over="ignore", invalid="ignore"):
        scale = _halves(flat, 0).astype(np.float32)[:, None] * scales.astype(np.float32)
        minimum = _halves(flat, 2).astype(np.float32)[:, None] * -minima.astype(np.float32)
    quarters = flat[:, 16:].reshape(-1, 4, 2, GROUP // 2)
    first = quarters[:, :, 0] & 15 | quarters[:, :, 1] << 4
    second = quarters[:, :, 0] >> 4 | quarters[:, :, 1] & 240
    packed = np.stack([first, second], axis=2)
    return _int4(packed.reshape(rows, -1), scale.reshape(rows, -1), minimum.reshape(rows, -1))


def _parts(blocks: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """uint8[rows, blocks, bytes] -> some rows at a time and their blocks, uint8[blocks, bytes]."""
    rows, count, size = blocks.shape
    step = max(1, _CHUNK // max(count * size, 1))
    for start in range(0, rows, step):
        some = slice(start, min(rows, start + step))
        yield some, blocks[some].reshape(-1, size)


def _as_int5(kind: GgmlType, blocks: np.ndarray) -> Int5Group | None:
    rows, groups = blocks.shape[0], blocks.shape[1] * FORMATS[kind].elements // GROUP
    values = np.empty((rows, groups * GROUP), np.uint8)
    scales, minimums = np.empty((rows, groups), np.float16), np.empty((rows, groups), np.float16)
    for some, part in _parts(blocks):
        with np.errstate(over="ignore", invalid="ignore"):
            quants = split(kind, part)
        lowest = quants.scales * np.float32(-16) if quants.minimums is None else quants.minimums
        lift = np.uint8(16 if quants.minimums is None else 0)
        values[some] = (quants.values.view(np.uint8) + lift).reshape(-1, values.shape[1])
        scales[some], minimums[some] = (_as_halves(x).reshape(-1, groups) for x in (quants.scales, lowest))
    return Int5Group(values, scales, minimums) if np.isfinite(scales).all() and np.isfinite(minimums).all() else None


def _as_int6(kind: GgmlType, blocks: np.ndarray) -> Int6Group | None:
    rows, halves = blocks.shape[0], blocks.shape[1] * FORMATS[kind].elements // GROUP * 2
    values, scales = np.empty((rows, halves * GROUP // 2), np.int8), np.empty((rows, halves), np.float16)
    for some, part in _parts(blocks):
        with np.errstate(over="ignore", invalid="ignore"):
            quants = split(kind, part)
        values[some] = quants.values.reshape(-1, values.shape[1])
        scales[some] = _as_halves(quants.scales).reshape(-1, halves)
    return Int6Group(values, scales) if np.isfinite(scales).all() else None


def _as_int8(kind: GgmlType, data: np.ndarray, shape: tuple[int, int], dequantize: Dequantize) -> Int8Group | None:
    rows, columns = shape
    values, scales = np.empty(shape, np.int8), np.empty((rows, columns // GROUP), np.float16)
    step = max(1, _CHUNK // columns)
    width = data.size // max(rows, 1)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        plain = np.empty((count, columns), np.float32)
        dequantize(kind, data[start * width : (start + count) * width], plain.reshape(-1))
        try:
            part = quantize_int8(plain)
        except ValueError:
            return None
        values[start : start + count], scales[start : start + count] = part.values, part.scales
    return Int8Group(values, scales)
