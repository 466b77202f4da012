"""``Loader``: what a layer pulls its weights through: from a source, fused, on the device.

Knows names, shapes and the backend's compute dtype; not formats. Matrices of one input are read straight into their rows of
one array, so fusing costs no second copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.backends.base import Array, Backend, Weight
from octavo.quant.layouts import Dense
from octavo.weights.source import DTYPES, WeightSource


@dataclass(frozen=True, slots=True)
class Loader:
    """Pulls tensors under Hugging Face names. Every method raises ``ConfigError`` for a tensor that is missing or of
    another shape, before anything of the expected size is allocated."""

    source: WeightSource
    backend: Backend

    def matrix(self, names: Sequence[str], *, rows: Sequence[int], columns: int) -> Weight:
        """The matrices [rows[i], columns] stacked in order -> one packed weight [sum(rows), columns]."""
        dtype = self.backend.compute_dtype
        if len(names) == 1:
            return self.backend.weight(self.source.dense(names[0], shape=(rows[0], columns), dtype=dtype))
        for name, count in zip(names, rows, strict=True):
            self.source.check(name, (count, columns))
        fused = np.empty((sum(rows), columns), DTYPES[dtype])
        start = 0
        for name, count in zip(names, rows, strict=True):
            self.source.read(name, fused[start : start + count])
            start += count
        return self.backend.weight(Dense(fused))

    def vector(self, names: Sequence[str], *, sizes: Sequence[int]) -> Array:
        """The vectors joined in order, float32 on the device."""
        parts = [self.source.vector(name, size=size) for name, size in zip(names, sizes, strict=True)]
        return self.backend.tensor(np.concatenate(parts))
