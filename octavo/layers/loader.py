"""``Loader``: what a layer pulls its weights through: from a source, fused, quantized if asked, on the device.

Knows names, shapes, the backend's compute dtype and the quantization that was asked for; not formats. Fusing matrices of one
input costs no copy: they are packed from where they lie, integer ones some rows at a time.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from octavo.backends.base import Array, Backend, Weight
from octavo.config import ConfigError
from octavo.quant.integer import Quantize, quantize
from octavo.quant.layouts import GROUP, Dense, Int4Group, Int8Group, Integer, Layout, Piecewise, Stacked, Unrepresentable
from octavo.weights.source import WeightSource

WeightFormat = Literal["plain", "stored", "int8", "int4"]
"""How weights are computed: as plain numbers of the compute dtype; as the file stores them, where that is an integer format;
or in 8 or 4 bits, quantized when loaded. With "int4" the vocabulary's matrices have 8 bits: they are the most sensitive."""


Keep = Callable[[str, Callable[[], Weight]], Weight]
"""A matrix by its key: as it was packed before, or as the function makes it."""


def make_now(key: str, make: Callable[[], Weight]) -> Weight:
    return make()


@dataclass(frozen=True, slots=True)
class Loader:
    """Pulls tensors under Hugging Face names. Every method raises ``ConfigError`` for a tensor that is missing or of
    another shape, before anything of the expected size is allocated, and for one that cannot be quantized as asked."""

    source: WeightSource
    backend: Backend
    weight_format: WeightFormat = "plain"
    quantize: Quantize = quantize
    keep: Keep = make_now
    asked: set[str] = field(default_factory=set)
    """The tensors that layers have pulled, or know to leave out."""

    def matrix(
        self, names: Sequence[str], *, rows: Sequence[int], columns: int, vocabulary: bool = False, gated: bool = False
    ) -> Weight:
        """The matrices [rows[i], columns] stacked in order -> one packed weight [sum(rows), columns]. ``vocabulary``: of token
        embeddings or of the head. ``gated``: for ``gated_linear``."""
        self.asked.update(names)
        for name, count in zip(names, rows, strict=True):
            self.source.check(name, (count, columns))
        return self.keep("+".join(names), lambda: self._pack(names, rows, columns, vocabulary, gated))

    def _pack(self, names: Sequence[str], rows: Sequence[int], columns: int, vocabulary: bool, gated: bool) -> Weight:
        for layout in self._layouts(names, rows, columns, vocabulary, gated):
            with contextlib.suppress(Unrepresentable):
                return self.backend.weight(layout, gated=gated, vocabulary=vocabulary)
        raise AssertionError("the last one is made of plain numbers")

    def vector(self, names: Sequence[str], *, sizes: Sequence[int]) -> Array:
        """The vectors joined in order, float32 on the device."""
        self.asked.update(names)
        parts = [self.source.vector(name, size=size) for name, size in zip(names, sizes, strict=True)]
        return self.backend.tensor(np.concatenate(parts))

    def _layouts(
        self, names: Sequence[str], rows: Sequence[int], columns: int, vocabulary: bool, gated: bool
    ) -> Iterator[Layout]:
        """Those that the matrix may have, best first: integers as they are stored may turn out to be unrepresentable."""
        if self.weight_format in ("int8", "int4"):
            four = self.weight_format == "int4" and not vocabulary
            for as_stored in (True, False):
                yield _stacked(
                    [self._quantized(name, (count, columns), four, as_stored) for name, count in zip(names, rows, strict=True)]
                )
            return
        if self.weight_format == "stored":
            parts = [self.source.integer(name, shape=(count, columns)) for name, count in zip(names, rows, strict=True)]
            integers = [part for part in parts if part is not None]
            if len(integers) == len(parts):
                yield self._as_stored(integers, gated)
        yield self._dense(names, rows, columns)

    def _dense(self, names: Sequence[str], rows: Sequence[int], columns: int) -> Dense:
        dtype = self.backend.compute_dtype
        parts = [self.source.dense(name, shape=(count, columns), dtype=dtype) for name, count in zip(names, rows, strict=True)]
        return Dense(parts[0].array, tuple(part.array for part in parts[1:]))

    def _quantized(self, name: str, shape: tuple[int, int], four: bool, as_stored: bool) -> Piecewise:
        """One matrix in 4 or 8 bits: as it is stored where that is the same."""
        if shape[1] % GROUP:
            raise ConfigError(
                f"tensor {name!r} has {shape[1]} inputs, not a multiple of {GROUP}, and cannot be quantized: "
                "use --quantization none"
            )
        kind = Int4Group if four else Int8Group
        stored = self.source.integer(name, shape=shape) if as_stored else None
        if stored is not None and stored.kind is kind:
            return stored
        plain = self.source.dense(name, shape=shape, dtype=self.backend.compute_dtype).array

        def read(first: int, end: int) -> Integer:
            try:
                return self.quantize(plain[first:end], 4 if four else 8)
            except ValueError as error:
                raise ConfigError(f"tensor {name!r} cannot be quantized ({error}): use --quantization none") from error

        return Piecewise(kind, shape[1], ((shape[0], read),))

    def _as_stored(self, parts: Sequence[Piecewise], gated: bool) -> Piecewise | Stacked:
        """In one layout if it is theirs; gates are 8 bits if theirs differ."""
        if len({part.kind for part in parts}) > 1:
            if not gated:
                return Stacked(tuple(parts))
            parts = [part if part.kind is Int8Group else self._in_8_bits(part) for part in parts]
        return _stacked(parts)

    def _in_8_bits(self, part: Piecewise) -> Piecewise:
        [(rows, read_stored)] = part.parts

        def read(first: int, end: int) -> Integer:
            try:
                return self.quantize(read_stored(first, end).dequantize(), 8)
            except ValueError as error:
                raise Unrepresentable(str(error)) from None

        return Piecewise(Int8Group, part.columns, ((rows, read),))


def _stacked(parts: Sequence[Piecewise]) -> Piecewise:
    """Matrices of one layout and the same inputs, one below the other."""
    return Piecewise(parts[0].kind, parts[0].columns, tuple(one for part in parts for one in part.parts))
