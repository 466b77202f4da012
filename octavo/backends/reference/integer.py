"""Products with integer weights: what ``Ops.linear`` means there.

Knows arrays and integer layouts only. Dots are exact: they are computed as products of matrices of floats in which every
partial sum is a whole number that they have, below 2^24 in float32.
"""

from dataclasses import dataclass

import numpy as np

from octavo.quant.layouts import GROUP, Integer, Piecewise

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
    def of(cls, layout: Integer | Piecewise) -> "IntegerWeight":
        layout = layout.whole() if isinstance(layout, Piecewise) else layout
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


LARGEST = {8: 127, 16: 255 * 127 + 127}
"""The largest value of an activation in so many bits. With 16 it is 255 * high + low, both from -127 to 127."""


def quantize_activations(x: np.ndarray, bits: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """float32[T, K] -> (whole numbers as float32[T, groups, GROUP], scales float32[T, groups])."""
    return quantize_groups(x.reshape(x.shape[0], -1, GROUP), LARGEST[bits])


def quantize_groups(grouped: np.ndarray, limit: int = 127) -> tuple[np.ndarray, np.ndarray]:
    """float32[..., n] -> (whole numbers from -limit to limit as float32[..., n], scales float32[...])."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        largest = np.abs(grouped).max(axis=-1)
        usable = np.isfinite(largest) & (largest >= np.float32(SMALLEST))
        inverse = np.where(usable, np.float32(limit) / largest, np.float32(0))
        quants = np.where(usable[..., None], np.rint(grouped * inverse[..., None]), np.float32(0))
        scales = np.where(largest < np.float32(SMALLEST), np.float32(0), largest / np.float32(limit))
    return quants, np.where(np.isfinite(largest), scales, np.float32(np.nan))


def linear(x: np.ndarray, weight: IntegerWeight, activation_bits: int = 8) -> np.ndarray:
    """float32[T, K] -> float32[T, N]"""
    out = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    quants, scales = quantize_activations(x, activation_bits)
    exact = np.float32 if activation_bits == 8 else np.float64
    sums = quants.sum(axis=2)
    parts = len(weight.values) // scales.shape[1]
    for group in range(scales.shape[1]):
        scale = scales[:, group, None]
        products = np.zeros_like(out)
        for part, inputs in enumerate(np.split(quants[:, group], parts, axis=1), group * parts):
            dots = inputs.astype(exact, copy=False) @ weight.values[part].T.astype(exact, copy=False)
            products += dots.astype(np.float32) * weight.scales[part]
        out += products * scale
        if weight.minimums is not None:
            out += weight.minimums[group] * (scale * sums[:, group, None])
    return out
