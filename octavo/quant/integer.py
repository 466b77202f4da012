"""Quantizes matrices to the integer layouts, group by group, without data.

Knows arrays only. Values are chosen for the scales that are stored, float16, so rounding a scale costs no accuracy of its
own. The invariant: a group's result depends on that group alone. Sums have a fixed order, so that native code
(``octavo.backends.cpu.quantize``) can give the same bits.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from octavo.quant.layouts import GROUP, Int4Group, Int8Group, Integer

Bits = Literal[4, 8]

Quantize = Callable[[np.ndarray, Bits], Integer]
"""float32 or bfloat16 [out_features, in_features] -> ``Int4Group`` or ``Int8Group``. Raises ``ValueError`` for what cannot be
done."""

_CHUNK = 1 << 17
"""Values quantized at once: the intermediate arrays stay in the second-level cache."""

_SHRINK = (1.0, 0.88)
"""Parts of a group's range that 4 bits are first spread over: a few values cut off may make the steps of all others finer."""

_SMALLEST = np.float32(2.0**-24)
"""The smallest float16: a scale is never rounded to nothing while its group has values."""


def quantize(matrix: np.ndarray, bits: Bits) -> Integer:
    """The ``Quantize`` that defines the others."""
    return quantize_int4(matrix) if bits == 4 else quantize_int8(matrix)


def quantize_int8(matrix: np.ndarray) -> Int8Group:
    """float32 or bfloat16 [out_features, in_features] -> symmetric 8 bits. Raises ``ValueError`` for what cannot be done."""
    check_groups(matrix)
    rows, columns = matrix.shape
    values = np.empty((rows * columns // GROUP, GROUP), np.int8)
    scales = np.empty(len(values), np.float16)
    for part, groups in _chunks(matrix):
        scale = _as_stored(np.abs(groups).max(axis=1) / np.float32(127))
        scales[part] = scale
        quants = np.rint(groups * _inverse(scale)[:, None])
        values[part] = np.clip(quants, -127, 127, out=quants)
    return Int8Group(values.reshape(rows, columns), scales.reshape(rows, -1))


def quantize_int4(matrix: np.ndarray) -> Int4Group:
    """float32 or bfloat16 [out_features, in_features] -> 4 bits with a minimum: of a few ranges, the one whose squared error
    is least for each group. Raises ``ValueError`` for what cannot be done."""
    check_groups(matrix)
    rows, columns = matrix.shape
    packed = np.empty((rows * columns // GROUP, GROUP // 2), np.uint8)
    scales = np.empty(len(packed), np.float16)
    minimums = np.empty(len(packed), np.float16)
    for part, groups in _chunks(matrix):
        quants, scale, minimum = _best_int4(groups)
        codes = quants.astype(np.uint8)
        packed[part] = codes[:, : GROUP // 2] | codes[:, GROUP // 2 :] << 4
        scales[part], minimums[part] = scale, minimum
    return Int4Group(packed.reshape(rows, -1), scales.reshape(rows, -1), minimums.reshape(rows, -1))


def check_groups(matrix: np.ndarray) -> None:
    """Raises ``ValueError`` unless this is a matrix whose rows are whole groups."""
    if matrix.ndim != 2 or matrix.shape[1] % GROUP:
        raise ValueError(f"the inputs of a matrix of shape {list(matrix.shape)} are not groups of {GROUP}")


def _chunks(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Consecutive groups, float32[n, GROUP], and where they belong."""
    groups = np.ascontiguousarray(matrix).reshape(-1, GROUP)
    step = _CHUNK // GROUP
    for start in range(0, len(groups), step):
        chunk = groups[start : start + step].astype(np.float32)
        if not np.isfinite(chunk).all():
            raise ValueError("a weight is infinite or not a number")
        yield slice(start, start + len(chunk)), chunk


def _as_stored(scale: np.ndarray) -> np.ndarray:
    """Rounded to float16, as float32. Raises ``ValueError`` for scales beyond its range."""
    with np.errstate(over="ignore"):
        stored = np.where(scale > 0, np.maximum(scale, _SMALLEST), 0).astype(np.float16).astype(np.float32)
    if not np.isfinite(stored).all():
        raise ValueError("a weight is too large")
    return stored


def _inverse(scale: np.ndarray) -> np.ndarray:
    inverse: np.ndarray = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return inverse


def _best_int4(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float32[n, GROUP] -> (values float32[n, GROUP], scales float32[n], minimums float32[n])"""
    low, high = groups.min(axis=1) + np.float32(0), groups.max(axis=1) + np.float32(0)  # -0 becomes 0
    middle, half = (low + high) / 2, (high - low) / 2
    quants, scale, minimum = _int4(groups, half * np.float32(2 / 15), low)
    error = _squared_error(groups, quants, scale, minimum)
    for part in _SHRINK:
        reach = half * np.float32(part)
        rough = _int4(groups, reach * np.float32(2 / 15), middle - reach)
        found = _int4(groups, *_fitted(groups, *rough))
        found_error = _squared_error(groups, *found)
        better = found_error < error
        error[better] = found_error[better]
        for kept, new in zip((quants, scale, minimum), found, strict=True):
            kept[better] = new[better]
    return quants, scale, minimum


def _int4(groups: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values nearest to the groups, for that scale and minimum as they are stored."""
    scale = _as_stored(scale)
    with np.errstate(over="ignore"):
        minimum = minimum.astype(np.float16).astype(np.float32)
    if not np.isfinite(minimum).all():
        raise ValueError("a weight is too large")
    quants = groups - minimum[:, None]
    quants *= _inverse(scale)[:, None]
    np.rint(quants, out=quants)
    return np.clip(quants, 0, 15, out=quants), scale, minimum


def _fitted(groups: np.ndarray, quants: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale and minimum that suit the values best: a linear regression for each group."""
    mean, middle = _total(groups) / np.float32(GROUP), _total(quants) / np.float32(GROUP)
    around = quants - middle[:, None]
    variance, covariance = _total(around * around), _total(around * groups)
    usable = (variance > 0) & (covariance > 0)
    slope = np.divide(covariance, variance, out=scale.copy(), where=usable)
    return slope, np.where(usable, mean - slope * middle, minimum)


def _squared_error(groups: np.ndarray, quants: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    wrong = quants * scale[:, None]
    wrong += minimum[:, None]
    wrong -= groups
    return _total(wrong * wrong)


def _total(terms: np.ndarray) -> np.ndarray:
    """float32[n, GROUP] -> the sums float32[n]; halves are added until one is left."""
    while (half := terms.shape[1] // 2) > 0:
        terms = terms[:, :half] + terms[:, half:]
    return terms[:, 0]
