"""Products with integer weights: what ``Ops.linear`` means there.

Knows arrays and integer layouts only. All is exact but the float32 sum over groups: dots are computed as float32 products of
matrices, in which every partial sum is a whole number below 2^24.
"""

from dataclasses import dataclass

import numpy as np

from octavo.quant.layouts import GROUP, Integer

SMALLEST = 1e-30
"""Groups of activations below this count as zeros."""


@dataclass(frozen=True, slots=True)
class IntegerWeight:
    """``values`` float32[scales, N, inputs of a scale], whole numbers; ``scales`` float32[scales, N]; ``minimums`` the same, or
    None."""

    values: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None

    @classmethod
    def of(cls, layout: Integer) -> "IntegerWeight":
        rows, scales = layout.scales.shape
        grouped = layout.values.reshape(rows, scales, layout.shape[1] // scales)
        return cls(
            np.ascontiguousarray(grouped.swapaxes(0, 1), np.float32),
            np.ascontiguousarray(layout.scales.T, np.float32),
            np.ascontiguousarray(layout.minimums.T, np.float32) if layout.minimums is not None else None,
        )

    @property
    def shape(self) -> tuple[int, int]:
        scales, rows, inputs = self.values.shape
        return rows, scales * inputs

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Dequantized, float32[len(ids), K]."""
        picked = self.values[:, ids] * self.scales[:, ids, None]
        if self.minimums is not None:
            picked += self.minimums[:, ids, None]
        return np.ascontiguousarray(picked.swapaxes(0, 1)).reshape(len(ids), self.shape[1])


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """Weights of the same inputs, one below the other."""

    parts: tuple[IntegerWeight, ...]


def quantize_activations(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32[T, K] -> (whole numbers from -127 to 127 as float32[T, groups, GROUP], scales float32[T, groups])."""
    return quantize_groups(x.reshape(x.shape[0], -1, GROUP))


def quantize_groups(grouped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32[..., n] -> (whole numbers from -127 to 127 as float32[..., n], scales float32[...])."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        largest = np.abs(grouped).max(axis=-1)
        usable = np.isfinite(largest) & (largest >= np.float32(SMALLEST))
        inverse = np.where(usable, np.float32(127) / largest, np.float32(0))
        quants = np.where(usable[..., None], np.rint(grouped * inverse[..., None]), np.float32(0))
        scales = np.where(largest < np.float32(SMALLEST), np.float32(0), largest / np.float32(127))
    return quants, np.where(np.isfinite(largest), scales, np.float32(np.nan))


def linear(x: np.ndarray, weight: IntegerWeight) -> np.ndarray:
    """float32[T, K] -> float32[T, N]"""
    out = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    quants, scales = quantize_activations(x)
    sums = quants.sum(axis=2)
    parts = len(weight.values) // scales.shape[1]
    for group in range(scales.shape[1]):
        scale = scales[:, group, None]
        products = np.zeros_like(out)
        for part, inputs in enumerate(np.split(quants[:, group], parts, axis=1), group * parts):
            products += inputs @ weight.values[part].T * weight.scales[part]
        out += products * scale
        if weight.minimums is not None:
            out += weight.minimums[group] * (scale * sums[:, group, None])
    return out
