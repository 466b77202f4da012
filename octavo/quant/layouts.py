"""The compute layouts of weights. Checkpoint formats are many, layouts are few: a format turns tensors into one of these.

Knows arrays only. Integer layouts cut the inputs of each output into groups of ``GROUP``; a group has a scale of its own, and
in ``Int4Group`` a minimum. The invariant: ``dequantize()`` is what a layout means, whatever way a device computes with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GROUP = 32
"""Inputs that share a scale."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain matrix, row-major: ``array`` is [out_features, in_features], float32 or bfloat16 (``ml_dtypes.bfloat16``)."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.array.shape
        return rows, columns

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]"""
        return self.array.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Int8Group:
    """weight = scale * value: ``values`` int8[out_features, in_features], ``scales`` float16[out_features, groups].

    Raises ``ValueError`` if the arrays do not belong together.
    """

    values: np.ndarray
    scales: np.ndarray

    def __post_init__(self) -> None:
        _check("values", self.values, np.int8, self.values.shape)
        if self.values.ndim != 2 or self.values.shape[1] % GROUP:
            raise ValueError(f"values must be a matrix with a multiple of {GROUP} columns, not {list(self.values.shape)}")
        _check("scales", self.scales, np.float16, (self.values.shape[0], self.values.shape[1] // GROUP))

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]; exact."""
        return _scaled(self.values, self.scales).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Int4Group:
    """weight = scale * value + minimum, value in 0 .. 15.

    ``packed`` uint8[out_features, in_features / 2]: of each group's 16 bytes, byte i holds value i in its low half and value
    i + 16 in its high half. ``scales`` and ``minimums``: float16[out_features, groups]. A symmetric format with values from -8
    is the case minimum = -8 * scale. Raises ``ValueError`` if the arrays do not belong together.
    """

    packed: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray

    def __post_init__(self) -> None:
        _check("packed", self.packed, np.uint8, self.packed.shape)
        if self.packed.ndim != 2 or self.packed.shape[1] % (GROUP // 2):
            raise ValueError(f"packed must be a matrix with a multiple of {GROUP // 2} columns, not {list(self.packed.shape)}")
        groups = (self.packed.shape[0], self.packed.shape[1] // (GROUP // 2))
        _check("scales", self.scales, np.float16, groups)
        _check("minimums", self.minimums, np.float16, groups)

    @property
    def shape(self) -> tuple[int, int]:
        rows, half = self.packed.shape
        return rows, 2 * half

    @property
    def values(self) -> np.ndarray:
        """uint8[out_features, in_features]"""
        grouped = self.packed.reshape(-1, GROUP // 2)
        return np.concatenate([grouped & 15, grouped >> 4], axis=1).reshape(self.shape)

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]: the product is exact, the sum is rounded once."""
        weights = _scaled(self.values, self.scales)
        weights += self.minimums.astype(np.float32)[..., None]
        return weights.reshape(self.shape)


Integer = Int8Group | Int4Group
Layout = Dense | Integer


def concatenate(parts: Sequence[Integer]) -> Integer:
    """Matrices of the same inputs stacked along their outputs. Raises ``ValueError`` unless all have one layout and width."""
    if len(parts) == 1:
        return parts[0]
    eights = [part for part in parts if isinstance(part, Int8Group)]
    fours = [part for part in parts if isinstance(part, Int4Group)]
    if eights and fours:
        raise ValueError("layouts of 4 and of 8 bits cannot be stacked")
    if fours:
        packed = np.concatenate([part.packed for part in fours])
        scales = np.concatenate([part.scales for part in fours])
        return Int4Group(packed, scales, np.concatenate([part.minimums for part in fours]))
    return Int8Group(np.concatenate([part.values for part in eights]), np.concatenate([part.scales for part in eights]))


def _check(name: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        wanted = f"{np.dtype(dtype).name}{list(shape)}"
        raise ValueError(f"{name} must be {wanted}, not {array.dtype.name}{list(array.shape)}")


def _scaled(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32[out_features, groups, GROUP]"""
    grouped: np.ndarray = values.astype(np.float32).reshape(*scales.shape, GROUP)
    grouped *= scales.astype(np.float32)[..., None]
    return grouped
