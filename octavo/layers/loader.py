"""``Loader``: what a layer pulls its weights through: from a source, fused, quantized if asked, on the device.

Knows names, shapes, the backend's compute dtype and the quantization that was asked for; not formats. Dense matrices of one
input are read straight into their rows of one array, so fusing costs no second copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from octavo.backends.base import Array, Backend, Weight
from octavo.config import ConfigError
from octavo.quant.integer import Quantize, quantize
from octavo.quant.layouts import GROUP, Dense, Int4Group, Int8Group, Integer, Stacked, concatenate
from octavo.weights.source import DTYPES, WeightSource

WeightFormat = Literal["plain", "stored", "int8", "int4"]
"""How weights are computed: as plain numbers of the compute dtype; as the file stores them, where that is an integer format;
or in 8 or 4 bits, quantized when loaded. With "int4" the vocabulary's matrices have 8 bits: they are the most sensitive."""


@dataclass(frozen=True, slots=True)
class Loader:
    """Pulls tensors under Hugging Face names. Every method raises ``ConfigError`` for a tensor that is missing or of
    another shape, before anything of the expected size is allocated, and for one that cannot be quantized as asked."""

    source: WeightSource
    backend: Backend
    weight_format: WeightFormat = "plain"
    quantize: Quantize = quantize

    def matrix(
        self, names: Sequence[str], *, rows: Sequence[int], columns: int, vocabulary: bool = False, gated: bool = False
    ) -> Weight:
        """The matrices [rows[i], columns] stacked in order -> one packed weight [sum(rows), columns]. ``vocabulary``: of token
        embeddings or of the head. ``gated``: for ``gated_linear``."""
        for name, count in zip(names, rows, strict=True):
            self.source.check(name, (count, columns))
        integer = self._integer(names, rows, columns, vocabulary, gated)
        layout = self._dense(names, rows, columns) if integer is None else integer
        return self.backend.weight(layout, gated=gated, vocabulary=vocabulary)

    def vector(self, names: Sequence[str], *, sizes: Sequence[int]) -> Array:
        """The vectors joined in order, float32 on the device."""
        parts = [self.source.vector(name, size=size) for name, size in zip(names, sizes, strict=True)]
        return self.backend.tensor(np.concatenate(parts))

    def _dense(self, names: Sequence[str], rows: Sequence[int], columns: int) -> Dense:
        dtype = self.backend.compute_dtype
        if len(names) == 1:
            return self.source.dense(names[0], shape=(rows[0], columns), dtype=dtype)
        fused = np.empty((sum(rows), columns), DTYPES[dtype])
        start = 0
        for name, count in zip(names, rows, strict=True):
            self.source.read(name, fused[start : start + count])
            start += count
        return Dense(fused)

    def _integer(
        self, names: Sequence[str], rows: Sequence[int], columns: int, vocabulary: bool, gated: bool
    ) -> Integer | Stacked | None:
        """None: the matrix is to be dense."""
        if self.weight_format == "plain":
            return None
        shapes = [(count, columns) for count in rows]
        if self.weight_format == "stored":
            parts = [self.source.integer(name, shape=shape) for name, shape in zip(names, shapes, strict=True)]
            return self._stacked(parts, gated)
        four = self.weight_format == "int4" and not vocabulary
        return concatenate([self._quantized(name, shape, four=four) for name, shape in zip(names, shapes, strict=True)])

    def _quantized(self, name: str, shape: tuple[int, int], *, four: bool) -> Integer:
        """One matrix in 4 or 8 bits: as it is stored where that is the same."""
        if shape[1] % GROUP:
            raise ConfigError(
                f"tensor {name!r} has {shape[1]} inputs, not a multiple of {GROUP}, and cannot be quantized: "
                "use --quantization none"
            )
        stored = self.source.integer(name, shape=shape)
        if isinstance(stored, Int4Group if four else Int8Group):
            return stored
        plain = self.source.dense(name, shape=shape, dtype=self.backend.compute_dtype).array
        try:
            return self.quantize(plain, 4 if four else 8)
        except ValueError as error:
            raise ConfigError(f"tensor {name!r} cannot be quantized ({error}): use --quantization none") from error

    def _stacked(self, parts: Sequence[Integer | None], gated: bool) -> Integer | Stacked | None:
        """In one layout if it is theirs; gates are 8 bits if theirs differ. None where one is stored as plain numbers."""
        integers = [part for part in parts if part is not None]
        if len(integers) < len(parts):
            return None
        if len({type(part) for part in integers}) > 1:
            if not gated:
                return Stacked(tuple(integers))
            integers = [part if isinstance(part, Int8Group) else self.quantize(part.dequantize(), 8) for part in integers]
        return concatenate(integers)
