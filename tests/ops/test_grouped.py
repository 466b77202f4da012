"""Integer weights whose products take activations as they are: bit for bit what the dequantized matrix gives, on every
instruction set, in every op that takes a weight."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.quant.layouts import GROUP, Dense
from tests.ops.devices import BF16, ISAS, normal, same_bits, some_allowed
from tests.ops.test_integer import COLUMNS, GROUPS, KINDS, ROWS, SEEDS, random_weight

pytestmark = [pytest.mark.parametrize("isa", ISAS), pytest.mark.parametrize("kind", KINDS)]


@cache
def device(isa: str, threads: int = 2) -> CpuBackend:
    return CpuBackend(isa=isa, num_threads=threads, quantized_activations=False)


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    m=st.integers(0, 500) | ROWS,
    groups=GROUPS,
    n=st.integers(1, 400) | COLUMNS,
    bias=st.booleans(),
    residual=st.booleans(),
    threads=ROWS,
)
def test_linear_and_its_argmax_are_those_of_the_numbers(
    isa: str, kind: str, seed: int, m: int, groups: int, n: int, bias: bool, residual: bool, threads: int
) -> None:
    weight, backend = random_weight(seed, kind, n, groups), device(isa, 1 + threads % 3)
    x = normal(seed + 1, m, groups * GROUP).astype(BF16)
    if m:
        x[seed % m, 0] = (np.nan, np.inf, 0)[seed % 3]
    added = [normal(seed + 2, n) if bias else None, normal(seed + 3, m, n) if residual else None]
    allowed = some_allowed(seed, m, n)
    results = []
    for packed in (backend.weight(weight), backend.weight(Dense(weight.dequantize()))):
        product = backend.ops.linear(x, packed, bias=added[0], residual=None if added[1] is None else added[1].copy())
        found = [product, backend.ops.linear_argmax(x, packed), backend.ops.linear_argmax(x, packed, allowed)]
        results.append([np.array(array) for array in found])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert same_bits(found, expected)


@pytest.mark.parametrize("m", [1, 3, 33, 290])
@pytest.mark.parametrize("n", [64, 192])
def test_gated_linear_is_that_of_the_numbers(isa: str, kind: str, m: int, n: int) -> None:
    weight, backend = random_weight(5, kind, n, 14), device(isa)
    x, bias = normal(6, m, 14 * GROUP).astype(BF16), normal(7, n)
    results = []
    for packed in (backend.weight(weight, gated=True), backend.weight(Dense(weight.dequantize()), gated=True)):
        assert packed.gated
        results.append(np.array(backend.ops.gated_linear(x, packed, bias=bias)))
    assert same_bits(results[0], results[1])


def test_rows_keep_their_bits_at_every_batch_size(isa: str, kind: str) -> None:
    backend = device(isa)
    weight = random_weight(1, kind, 500, 131)
    packed = backend.weight(weight)
    x = normal(2, 600, 131 * GROUP).astype(BF16)
    whole = np.array(backend.ops.linear(x, packed))
    assert same_bits(whole, np.array(backend.ops.linear(x, backend.weight(Dense(weight.dequantize())))))
    for m in (1, 2, 3, 5, 6, 7, 8, 12, 13, 17, 33, 64, 65, 193, 257):
        assert same_bits(np.array(backend.ops.linear(x[:m].copy(), packed)), whole[:m])


def test_every_number_is_seen_through_the_embedding_and_through_products_with_one_input(isa: str, kind: str) -> None:
    weight, backend = random_weight(3, kind, 70, 7), device(isa)
    numbers = weight.dequantize().astype(BF16).astype(np.float32)
    packed = backend.weight(weight)
    ids = np.arange(70, dtype=np.int32)[::-1].copy()
    np.testing.assert_array_equal(np.array(backend.ops.embedding(ids, packed)), numbers[ids])
    one = np.eye(7 * GROUP, dtype=np.float32).astype(BF16)
    np.testing.assert_array_equal(np.array(backend.ops.linear(one, packed)), numbers.T)
    oracle = ReferenceBackend(compute_dtype="bfloat16", quantized_activations=False)
    np.testing.assert_array_equal(oracle.ops.linear(one, oracle.weight(weight)), numbers.T)


def test_memory_is_that_of_the_integers(isa: str, kind: str) -> None:
    weight = random_weight(8, kind, 96, 4)
    expected = 96 * 4 * (GROUP * int(kind[-1]) // 8 + (2 if kind == "int8" else 4))
    assert device(isa).weight(weight).num_bytes == expected


def test_what_cannot_be_is_refused(isa: str, kind: str) -> None:
    weight = random_weight(9, kind, 96, 2)
    packed = device(isa).weight(weight, gated=True)  # no multiple of 64 rows: gates are an op of their own
    assert not packed.gated
    native = _native.Device(isa, 1, cores=[], act_bfloat16=True, bfloat16=BF16)
    values, scales = np.zeros((96, 64), np.uint8), np.zeros((96, 2), np.uint16)
    with pytest.raises(ValueError, match="multiple of 64 rows"):
        native.pack_grouped(8, values, scales, None, gated=True)
    with pytest.raises(ValueError, match="one scale for each group"):
        native.pack_grouped(8, values, scales[:5], None)
    with pytest.raises(ValueError, match="one column for each input"):
        native.linear(np.zeros((1, 32), BF16), packed, None, None)
    with pytest.raises(ValueError, match="token id"):
        native.embedding(np.array([96], np.int32), packed)
    plain = _native.Device(isa, 1, cores=[], act_bfloat16=False, bfloat16=BF16)
    with pytest.raises(ValueError, match="as bfloat16 numbers"):
        plain.pack_grouped(8, values, scales, None)
