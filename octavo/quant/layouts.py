"""The compute layouts of weights. Checkpoint formats are many, layouts are few: a format turns tensors into one of these."""

from dataclasses import dataclass

import numpy as np


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
