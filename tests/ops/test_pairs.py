"""Weights of 4 bits in pairs of groups: their products are exactly what they are defined to be, and lose next to nothing."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference.integer import quantize_activations
from octavo.quant.integer import quantize_int4
from octavo.quant.layouts import GROUP, Int4Group
from tests.ops.devices import ISAS, normal, same_bits

KERNELS = [
    *((isa, kernels) for isa in ISAS if isa.startswith("avx512") for kernels in _native.integer_kernels(isa)),
    ("generic", "generic"),
]
MOST, WHOLE = 16383, 32767
"""The largest scale of a weight, and of a row."""


@cache
def device(isa: str, kernels: str, tuning: str = "zen4", threads: int = 2) -> CpuBackend:
    return CpuBackend(compute_dtype="float32", isa=isa, integer_kernels=kernels, tuning=tuning, num_threads=threads)


def any_weight(seed: int, n: int, groups: int) -> Int4Group:
    rng = np.random.default_rng(seed)
    scales, minimums = rng.normal(0, 0.01, (n, groups)), rng.normal(0, 0.1, (n, groups))
    scales[rng.random(scales.shape) < 0.1] = 0
    scales[0] = minimums[0] = 0
    values = rng.integers(0, 256, (n, groups * GROUP // 2)).astype(np.uint8)
    return Int4Group(values, scales.astype(np.float16), minimums.astype(np.float16))


def whole_units(numbers: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """To the nearest, halves away from zero."""
    parts = np.divide(numbers, unit, out=np.zeros_like(numbers), where=unit > 0)
    rounded: np.ndarray = np.sign(parts) * np.floor(np.abs(parts) + np.float32(0.5))
    return rounded.astype(np.int64)


def product_of_pairs(x: np.ndarray, weight: Int4Group) -> np.ndarray:
    """float32[m, k] -> float32[m, n], by the definition in docs/decisions/0076."""
    m, groups = len(x), x.shape[1] // GROUP
    quants, scales = quantize_activations(x)
    largest = scales.max(axis=1, keepdims=True)
    times = np.divide(np.float32(WHOLE), largest, out=np.zeros_like(largest), where=largest > 0)
    shares = np.floor(scales * times + np.float32(0.5)).astype(np.int64)
    sums = 8 * quants.sum(axis=2).astype(np.int64)
    of_weight = weight.scales.astype(np.float32)
    of_minimum = (weight.minimums.astype(np.float32) + 8 * of_weight) / 8
    unit = np.maximum(np.abs(of_weight), np.abs(of_minimum)).max(axis=1, keepdims=True) / np.float32(MOST)
    factors, minimums = whole_units(of_weight, unit), whole_units(of_minimum, unit)
    values = weight.values.reshape(len(weight.scales), groups, GROUP).astype(np.int64) - 8
    dots = np.einsum("mgi,ngi->mng", quants.astype(np.int64), values)
    assert np.abs(dots).max(initial=0) < 2**15
    found = np.zeros((m, len(values)), np.float32)
    for first in range(0, groups, 2):
        pair = np.zeros(found.shape, np.int64)
        for g in (first, first + 1):
            scaled = factors[:, g] * shares[:, g, None] + 0x4000 >> 15
            pair += dots[:, :, g] * scaled + minimums[:, g] * (sums[:, g, None] * shares[:, g, None] + 0x4000 >> 15)
        assert np.abs(pair).max(initial=0) < 2**31
        found += pair.astype(np.float32)
    found *= unit.T
    found *= largest * np.float32(32768 / WHOLE)
    return found


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    m=st.integers(1, 40),
    pairs=st.integers(1, 4),
    n=st.integers(1, 100),
    size=st.sampled_from([1e-36, 1e-29, 1.0, 1e30]),
    threads=st.sampled_from([1, 2]),
)
def test_products_are_as_defined(
    isa: str, kernels: str, seed: int, m: int, pairs: int, n: int, size: float, threads: int
) -> None:
    weight, x = any_weight(seed, n, 2 * pairs), normal(seed + 1, m, 2 * pairs * GROUP) * np.float32(size)
    x[0, :GROUP] *= 300
    x[m // 2, -GROUP:] = 0
    x[m - 1] = np.abs(x[m - 1]).max()  # the largest dots that there are
    backend = device(isa, kernels, threads=threads)
    packed: Any = backend.weight(weight)
    assert packed.paired
    assert same_bits(np.array(backend.ops.linear(x, packed)), product_of_pairs(x, weight))


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize(("m", "groups"), [(7, 18), (70, 66), (230, 130)])
def test_long_rows_are_as_defined(isa: str, kernels: str, m: int, groups: int) -> None:
    weight, x = any_weight(1, 70, groups), normal(2, m, groups * GROUP)
    x[0, -1] = 1e4
    backend = device(isa, kernels)
    assert same_bits(np.array(backend.ops.linear(x, backend.weight(weight))), product_of_pairs(x, weight))


@pytest.mark.parametrize(("outlier", "most"), [(1.0, 1.03), (100.0, 1.03), (3000.0, 1.1)])
def test_scales_in_whole_numbers_lose_next_to_nothing(outlier: float, most: float) -> None:
    weight, x = quantize_int4(normal(1, 300, 1536) / 30), normal(2, 50, 1536)
    x[:, 700] *= np.float32(outlier)
    exact = x.astype(np.float64) @ weight.dequantize().T.astype(np.float64)
    errors = {}
    for tuning in ("common", "zen4"):
        backend = device("generic", "generic", tuning)
        packed: Any = backend.weight(weight)
        assert packed.paired == (tuning == "zen4")
        errors[tuning] = np.abs(np.array(backend.ops.linear(x, packed)) - exact).std()
    assert errors["zen4"] < most * errors["common"]


def test_only_weights_that_products_alone_read_are_paired() -> None:
    backend: Any = device("generic", "generic")
    assert backend.weight(any_weight(1, 64, 2)).paired
    assert backend.weight(any_weight(1, 64, 2), gated=True).paired
    assert not backend.weight(any_weight(1, 64, 3)).paired
    assert not backend.weight(any_weight(1, 64, 2), vocabulary=True).paired
    with pytest.raises(ValueError, match="the table was not packed as that of a vocabulary"):
        backend.ops.embedding(np.zeros(1, np.int32), backend.weight(any_weight(1, 64, 2)))
    of_16_bits: Any = CpuBackend(isa="generic", tuning="zen4", activation_bits=16)
    assert not of_16_bits.weight(any_weight(1, 64, 2)).paired
