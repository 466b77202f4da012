"""The compute layouts of weights. Checkpoint formats are many, layouts are few: a format turns tensors into one of these.

Knows arrays only. Integer layouts cut the inputs of each output into groups of ``GROUP``; a group has a scale of its own, in
``Int4Group`` and ``Int5Group`` also a minimum, in ``Int6Group`` a scale for each half. The invariant: ``dequantize()`` is what
a layout means, whatever way a device computes with it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

GROUP = 32
"""Inputs that share a scale."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain matrix, row-major: ``array`` is [out_features, in_features], float32 or bfloat16 (``ml_dtypes.bfloat16``);
    ``below`` are more of its outputs, in arrays of their own."""

    array: np.ndarray
    below: tuple[np.ndarray, ...] = ()

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.array, *self.below

    @property
    def shape(self) -> tuple[int, int]:
        return sum(len(array) for array in self.arrays), self.array.shape[1]

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]"""
        return np.concatenate([array.astype(np.float32) for array in self.arrays])


@dataclass(frozen=True, slots=True)
class Int8Group:
    """weight = scale * value: ``values`` int8[out_features, in_features], ``scales`` float16[out_features, groups].

    Raises ``ValueError`` if the arrays do not belong together.
    """

    bits: ClassVar = 8
    values: np.ndarray
    scales: np.ndarray
    minimums: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_values(self.values, np.int8)
        _check("scales", self.scales, np.float16, _groups(self.values, GROUP))

    @property
    def shape(self) -> tuple[int, int]:
        return _shape(self.values)

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]; exact."""
        return _dequantized(self.values, self.scales)


@dataclass(frozen=True, slots=True)
class Int6Group:
    """weight = scale * value, value in -32 .. 31: ``values`` int8[out_features, in_features], ``scales``
    float16[out_features, 2 * groups], one for each half of a group.

    Raises ``ValueError`` if the arrays do not belong together; values are not looked at.
    """

    bits: ClassVar = 6
    values: np.ndarray
    scales: np.ndarray
    minimums: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_values(self.values, np.int8)
        _check("scales", self.scales, np.float16, _groups(self.values, GROUP // 2))

    @property
    def shape(self) -> tuple[int, int]:
        return _shape(self.values)

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]; exact."""
        return _dequantized(self.values, self.scales)


@dataclass(frozen=True, slots=True)
class Int5Group:
    """weight = scale * value + minimum, value in 0 .. 31: ``values`` uint8[out_features, in_features], ``scales`` and
    ``minimums`` float16[out_features, groups].

    Raises ``ValueError`` if the arrays do not belong together; values are not looked at.
    """

    bits: ClassVar = 5
    values: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray

    def __post_init__(self) -> None:
        _check_values(self.values, np.uint8)
        for name, array in (("scales", self.scales), ("minimums", self.minimums)):
            _check(name, array, np.float16, _groups(self.values, GROUP))

    @property
    def shape(self) -> tuple[int, int]:
        return _shape(self.values)

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]: the product is exact, the sum is rounded once."""
        return _dequantized(self.values, self.scales, self.minimums)


@dataclass(frozen=True, slots=True)
class Int4Group:
    """weight = scale * value + minimum, value in 0 .. 15.

    ``packed`` uint8[out_features, in_features / 2]: of each group's 16 bytes, byte i holds value i in its low half and value
    i + 16 in its high half. ``scales`` and ``minimums``: float16[out_features, groups]. A symmetric format with values from -8
    is the case minimum = -8 * scale. Raises ``ValueError`` if the arrays do not belong together.
    """

    bits: ClassVar = 4
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
        return _dequantized(self.values, self.scales, self.minimums)


Integer = Int8Group | Int6Group | Int5Group | Int4Group


class Unrepresentable(ValueError):
    """Numbers that an integer layout cannot hold."""


ReadRows = Callable[[int, int], Integer]
"""(first, end) -> these rows of a matrix. May raise ``Unrepresentable``."""


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Integer matrices one below the other, made some rows at a time as they are packed: the system takes longer to find fresh
    memory for a whole one than all else takes.

    ``parts`` are the number of rows of each and what makes them, all in the layout ``kind``.
    """

    kind: type[Integer]
    columns: int
    parts: tuple[tuple[int, ReadRows], ...]

    @classmethod
    def of(cls, layout: Integer) -> "Piecewise":
        arrays = [getattr(layout, field.name) for field in fields(layout)]

        def read(first: int, end: int) -> Integer:
            return type(layout)(*(array[first:end] for array in arrays))

        return cls(type(layout), layout.shape[1], ((layout.shape[0], read),))

    @property
    def shape(self) -> tuple[int, int]:
        return sum(rows for rows, _ in self.parts), self.columns

    def pieces(self, most: int) -> Iterator[Integer]:
        """All rows in order, at most ``most`` at a time. Raises ``Unrepresentable``."""
        for rows, read in self.parts:
            for first in range(0, rows, most):
                yield read(first, min(rows, first + most))

    def whole(self) -> Integer:
        """In one piece. Raises ``Unrepresentable``."""
        return concatenate([read(0, rows) for rows, read in self.parts])

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]"""
        return self.whole().dequantize()


@dataclass(frozen=True, slots=True)
class Stacked:
    """Matrices of the same inputs, each in a layout of its own, one below the other: for ``linear`` alone.

    Raises ``ValueError`` if their inputs differ or there are none.
    """

    parts: tuple[Integer | Piecewise, ...]

    def __post_init__(self) -> None:
        if len({part.shape[1] for part in self.parts}) != 1:
            raise ValueError("stacked matrices must have the same inputs")

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def dequantize(self) -> np.ndarray:
        """float32[out_features, in_features]"""
        return np.concatenate([part.dequantize() for part in self.parts])


Layout = Dense | Integer | Piecewise | Stacked


def concatenate(parts: Sequence[Integer]) -> Integer:
    """Matrices of the same inputs stacked along their outputs. Raises ``ValueError`` unless all have one layout and width."""
    kind = type(parts[0])
    if len(parts) == 1:
        return parts[0]
    if any(type(part) is not kind for part in parts):
        raise ValueError("layouts of different bits cannot be stacked")
    return kind(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(kind)))


def _check_values(values: np.ndarray, dtype: type) -> None:
    _check("values", values, dtype, values.shape)
    if values.ndim != 2 or values.shape[1] % GROUP:
        raise ValueError(f"values must be a matrix with a multiple of {GROUP} columns, not {list(values.shape)}")


def _shape(values: np.ndarray) -> tuple[int, int]:
    rows, columns = values.shape
    return rows, columns


def _groups(values: np.ndarray, size: int) -> tuple[int, int]:
    return values.shape[0], values.shape[1] // size


def _check(name: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        wanted = f"{np.dtype(dtype).name}{list(shape)}"
        raise ValueError(f"{name} must be {wanted}, not {array.dtype.name}{list(array.shape)}")


def _dequantized(values: np.ndarray, scales: np.ndarray, minimums: np.ndarray | None = None) -> np.ndarray:
    grouped: np.ndarray = values.astype(np.float32).reshape(*scales.shape, values.shape[1] // max(scales.shape[1], 1))
    grouped *= scales.astype(np.float32)[..., None]
    if minimums is not None:
        grouped += minimums.astype(np.float32)[..., None]
    return grouped.reshape(values.shape)
