"""bf16 weights multiplied in whole numbers: the bits of the definition, and how near the products are to exact ones."""

import numpy as np
import pytest

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from octavo.quant.layouts import Dense
from tests.ops.devices import BF16, FIXED, ISAS, device, normal, same_bits

pytestmark = pytest.mark.parametrize("isa", [isa for isa in ISAS if isa in FIXED])
GROUP = 64


def exponents(values: np.ndarray) -> np.ndarray:
    """Of the largest magnitude along the last axis, as bf16 stores exponents."""
    largest = np.abs(values).max(-1, keepdims=True)
    return np.where(largest > 0, np.frexp(np.where(largest > 0, largest, 1.0))[1] + 126, 0)


def shifts_of(block: np.ndarray, padded: int) -> np.ndarray:
    """Powers of two for the columns of a block: what makes the roots of their mean squares nearly equal."""
    largest = exponents(block)[:, 0]
    squares = np.square(np.ldexp(block.astype(np.float64), 127 - largest[:, None])).sum(-1) / padded
    root = np.trunc((np.frexp(np.where(squares > 0, squares, 1.0))[1] - 1) / 2).astype(int)
    size = np.where(squares > 0, largest + root, 0)
    return np.where(size > 0, size.max() - size, 0)


def fixed_product(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """What whole numbers make of the product of ``x`` [rows, k] and ``matrix`` [n, k], both bf16."""
    (rows, k), n = x.shape, len(matrix)
    padded = -(-k // 32) * 32
    out = np.zeros((rows, n), np.float32)
    for first in range(0, n, 32):
        block = matrix[first : first + 32].astype(np.float32)
        shifts = shifts_of(block, padded)
        block = np.ldexp(block, shifts[:, None])
        sums = np.zeros((rows, len(block)), np.float64)
        for at in range(0, k, GROUP):
            weights, inputs = block[:, at : at + GROUP].astype(np.float64), x[:, at : at + GROUP].astype(np.float64)
            top = max(13, int(exponents(weights).max()))
            tops = np.maximum(12, exponents(inputs))
            numbers = np.floor(np.ldexp(weights, 139 - top) + 0.5)
            dots = np.rint(np.ldexp(inputs, 138 - tops)) @ numbers.T
            assert np.abs(dots).max(initial=0) < 2**31
            product = np.ldexp(dots.astype(np.float32).astype(np.float64), top - 139 + tops - 138)
            sums = (sums + product).astype(np.float32).astype(np.float64)
        out[:, first : first + 32] = np.ldexp(sums, -shifts)
    return out


def uneven(seed: int, n: int, k: int) -> np.ndarray:
    """Columns of different lengths, inputs of different sizes, some numbers far larger or smaller than others, and zeros."""
    rng = np.random.default_rng(seed)
    matrix = normal(seed, n, k) * np.exp2(rng.integers(-6, 7, (n, 1))) * np.exp2(rng.integers(-1, 2, (1, k)))
    flat = matrix.reshape(-1)
    for value in (0.0, -0.0, 1e-3, -3e-4):
        flat[rng.integers(0, flat.size, 1 + flat.size // 50_000)] *= value
    flat[rng.integers(0, flat.size, 1 + flat.size // 50_000)] *= 9
    return matrix.astype(BF16)


def is_fixed(backend: CpuBackend, matrix: np.ndarray) -> bool:
    """Whether weights lie in compact blocks: those are the ones."""
    (n, k), packed = matrix.shape, backend.weight(Dense(matrix)).num_bytes
    return bool(packed < -(-n // 32) * 32 * -(-k // 32) * 32 * 2)


@pytest.mark.parametrize(("n", "k"), [(192, 576), (320, 160), (200, 1537), (96, 100), (64, 2051), (130, 33)])
def test_products_are_those_of_the_definition(isa: str, n: int, k: int) -> None:
    matrix = uneven(n + k, n, k)
    for threads in (1, 2):
        for kernels in _native.integer_kernels(isa):
            backend = CpuBackend(isa=isa, num_threads=threads, integer_kernels=kernels)
            assert is_fixed(backend, matrix)
            weight = backend.weight(Dense(matrix))
            ids = np.arange(n, dtype=np.int32)[::-1].copy()
            assert same_bits(backend.to_host(backend.ops.embedding(ids, weight)), matrix[ids].astype(np.float32))
            for rows in (1, 2, 3, 5, 6, 7, 10, 11, 12, 13, 25, 70, 400):
                x = (normal(8 + rows, rows, k) * np.exp2(np.random.default_rng(rows).integers(-9, 3, (rows, k)))).astype(BF16)
                found = backend.to_host(backend.ops.linear(x, weight))
                np.testing.assert_array_equal(found, fixed_product(x, matrix))


def test_gates_and_the_best_column_are_of_the_same_products(isa: str) -> None:
    backend, matrix = device(isa, "bfloat16"), uneven(9, 128, 640)
    weight, gated = backend.weight(Dense(matrix)), backend.weight(Dense(matrix), gated=True)
    for rows in (1, 9, 40):
        x = normal(12 + rows, rows, 640).astype(BF16)
        sums = backend.ops.linear(x, weight)
        assert same_bits(backend.to_host(backend.ops.gated_linear(x, gated)), backend.to_host(backend.ops.silu_and_mul(sums)))
        best = backend.to_host(backend.ops.linear_argmax(x, weight))
        np.testing.assert_array_equal(best, backend.to_host(backend.ops.argmax(sums)))


@pytest.mark.parametrize(
    "matrix", [np.zeros((64, 64)), np.full((40, 50), -1.5), normal(1, 64, 96) * (np.arange(64)[:, None] < 40)]
)
def test_unusual_weights(isa: str, matrix: np.ndarray) -> None:
    backend, weights = device(isa, "bfloat16"), matrix.astype(BF16)
    assert is_fixed(backend, weights)
    x = normal(1, 5, matrix.shape[1]).astype(BF16)
    found = backend.to_host(backend.ops.linear(x, backend.weight(Dense(weights))))
    np.testing.assert_array_equal(found, fixed_product(x, weights))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_no_size_is_special(isa: str, size: float) -> None:
    backend, matrix, x = device(isa, "bfloat16"), (uneven(1, 96, 640) * size).astype(BF16), normal(2, 9, 640)
    assert is_fixed(backend, matrix)
    for other in (x.astype(BF16), (x / size).astype(BF16)):
        found = backend.to_host(backend.ops.linear(other, backend.weight(Dense(matrix))))
        np.testing.assert_array_equal(found, fixed_product(other, matrix))


def test_products_are_nearer_than_those_of_numbers_with_eight_bits(isa: str) -> None:
    """Inputs are bf16 and so are weights; what whole numbers lose is a tenth of what rounding inputs to bf16 has lost."""
    backend, exact = device(isa, "bfloat16"), normal(1, 64, 1536)
    matrix, x = normal(2, 576, 1536).astype(BF16), exact.astype(BF16)
    product = x.astype(np.float64) @ matrix.astype(np.float64).T
    lost = backend.to_host(backend.ops.linear(x, backend.weight(Dense(matrix)))) - product
    rounded = exact.astype(np.float64) @ matrix.astype(np.float64).T - product
    assert np.sqrt(np.square(lost).mean()) < 0.1 * np.sqrt(np.square(rounded).mean())


def test_weights_that_would_lose_too_much_stay_floats(isa: str) -> None:
    """Numbers so large that those beside them become nothing, in all groups and of another column each: the worst case."""
    backend, scattered = device(isa, "bfloat16"), np.random.default_rng(4).integers(-60, 60, (96, 256))
    assert not is_fixed(backend, np.ldexp(normal(3, 96, 256), scattered).astype(BF16))
    matrix, x = np.full((32, 2048), 0.12, np.float32), normal(4, 20, 2048).astype(BF16)
    for large in (0.12, 100.0, 1024.0, np.inf, np.nan):
        matrix[np.arange(32), np.arange(0, 2048, 64)] = large
        assert is_fixed(backend, matrix.astype(BF16)) == (large <= 100)
    matrix[np.arange(32), np.arange(0, 2048, 64)] = 1024
    found = backend.to_host(backend.ops.linear(x, backend.weight(Dense(matrix.astype(BF16)))))
    np.testing.assert_allclose(found, x.astype(np.float64) @ matrix.astype(BF16).astype(np.float64).T, atol=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_disturbs_no_other(isa: str, bad: float) -> None:
    backend, weight = device(isa, "bfloat16"), device(isa, "bfloat16").weight(Dense(normal(5, 96, 320).astype(BF16)))
    x = normal(6, 30, 320).astype(BF16)
    expected = backend.to_host(backend.ops.linear(x, weight))
    x[7, 100] = bad
    found = backend.to_host(backend.ops.linear(x, weight))
    assert not np.isfinite(found[7]).any()
    assert same_bits(np.delete(found, 7, 0), np.delete(expected, 7, 0))


def test_columns_too_unlike_for_a_common_size(isa: str) -> None:
    """A scale would be no float: the matrix stays plain, and is what was given."""
    backend, matrix = device(isa, "bfloat16"), normal(9, 64, 640)
    for exponent in (-100, -124):
        matrix[3] = np.ldexp(normal(10, 640), exponent)
        matrix[4] = np.ldexp(normal(11, 640), 20)
        weights = matrix.astype(BF16)
        assert is_fixed(backend, weights) == (exponent == -100)
        read = backend.ops.embedding(np.arange(64, dtype=np.int32), backend.weight(Dense(weights)))
        assert same_bits(backend.to_host(read), weights.astype(np.float32))


def test_denormal_weights_are_zeros(isa: str) -> None:
    backend, matrix = device(isa, "bfloat16"), normal(7, 64, 640).astype(BF16)
    matrix[3, 5], matrix[9] = -1e-39, (normal(8, 640) * 1e-39).astype(BF16)
    weight, x = backend.weight(Dense(matrix)), normal(2, 3, 640).astype(BF16)
    matrix[np.abs(matrix.astype(np.float64)) < 1e-38] *= 0
    assert same_bits(backend.to_host(backend.ops.embedding(np.arange(64, dtype=np.int32), weight)), matrix.astype(np.float32))
    np.testing.assert_array_equal(backend.to_host(backend.ops.linear(x, weight)), fixed_product(x, matrix))
