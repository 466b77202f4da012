"""bf16 weights in 12 bits each: the numbers are those that were given, and so are the products, bit for bit.

Those in whole numbers are in test_fixed.py."""

import numpy as np
import pytest

from octavo.backends.base import Array
from octavo.backends.cpu.backend import CpuBackend
from octavo.quant.layouts import Dense
from tests.ops.devices import BF16, ISAS, device, normal, same_bits

COMPACT = [isa for isa in ISAS if isa in ("avx512_bf16", "amx", "amx_emulated")]
pytestmark = pytest.mark.parametrize("isa", COMPACT)


def padded_bytes(n: int, k: int) -> int:
    return -(-n // 32) * 32 * -(-k // 32) * 32 * 2


def is_compact(backend: CpuBackend, matrix: np.ndarray) -> bool:
    """Whether it takes three quarters of what it would take otherwise."""
    packed = backend.weight(Dense(matrix))
    assert packed.num_bytes in (padded_bytes(*matrix.shape), padded_bytes(*matrix.shape) * 3 // 4)
    return packed.num_bytes < padded_bytes(*matrix.shape)


def with_exceptions(matrix: np.ndarray, *places: tuple[int, int]) -> np.ndarray:
    """Numbers much smaller and much larger than the others; and zeros, plain and negative, which are rare there."""
    values = [1e-30, -3e-20, 1e15, -2e25, 0.0, -0.0, 1e-9, 7e9]
    changed = matrix.copy()
    for i, place in enumerate(places):
        changed[place] = values[i % len(values)]
    return changed


def corners(n: int, k: int) -> list[tuple[int, int]]:
    """The first and the last of everything, and some between; two that share a pair, three a group."""
    return [
        (0, 0),
        (0, k - 1),
        (n - 1, 0),
        (n - 1, k - 1),
        (n // 2, k // 2),
        (n // 3, 4),
        (n // 3, 5),
        (n // 3, 6),
        (n - 2, k - 2),
    ]


def same_numbers(backend: CpuBackend, matrix: np.ndarray) -> None:
    """Every weight, seen through the embedding and through products with one input."""
    packed = backend.weight(Dense(matrix))
    n, k = matrix.shape
    ids = np.arange(n, dtype=np.int32)[::-1].copy()
    embedded = backend.to_host(backend.ops.embedding(ids, packed))
    assert same_bits(embedded, matrix[ids].astype(np.float32))
    one = np.eye(k, dtype=np.float32).astype(BF16)
    for rows in (1, 5, 12, 13, k):
        for begin in range(0, k, max(rows, k // 3)):
            found = backend.to_host(backend.ops.linear(one[begin : begin + rows].copy(), packed))
            np.testing.assert_array_equal(found, matrix[:, begin : begin + rows].T.astype(np.float32))


@pytest.mark.parametrize(
    ("n", "k"), [(96, 64), (33, 31), (64, 33), (100, 130), (32, 2), (1, 1), (31, 577), (96, 577), (130, 579), (160, 576)]
)
def test_weights_are_what_was_given(isa: str, n: int, k: int) -> None:
    backend, matrix = device(isa, "bfloat16"), normal(n + k, n, k).astype(BF16)
    same_numbers(backend, matrix)
    changed = with_exceptions(matrix, *(place for place in corners(n, k) if place[1] < k and place[0] >= 0))
    assert n * k < 2**15 or is_compact(backend, changed)  # so many exceptions leave smaller ones as they are
    same_numbers(backend, changed)


@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((64, 64), np.float32),
        np.full((40, 50), -1.5, np.float32),
        normal(1, 64, 96) * (np.arange(64)[:, None] < 40),
        np.ldexp(1.0, np.arange(-100, 100, dtype=np.int32))[:, None].repeat(64, 1).astype(np.float32),
    ],
    ids=["zeros", "one number", "rows of zeros", "a row for each exponent"],
)
def test_unusual_weights_are_what_was_given(isa: str, matrix: np.ndarray) -> None:
    same_numbers(device(isa, "bfloat16"), matrix.astype(BF16))


def test_what_has_many_exponents_stays_as_it_is(isa: str) -> None:
    backend, usual = device(isa, "bfloat16"), normal(3, 96, 256)
    assert is_compact(backend, usual.astype(BF16))
    assert is_compact(backend, with_exceptions(usual, *corners(96, 256)).astype(BF16))
    exponents = np.random.default_rng(4).integers(-60, 60, usual.shape)
    assert not is_compact(backend, np.ldexp(usual, exponents).astype(BF16))


def products(backend: CpuBackend, weight: Array, x: np.ndarray) -> np.ndarray:
    return backend.to_host(backend.ops.linear(x, weight))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("n", "k"), [(192, 576), (320, 130), (64, 1537), (32, 2051)])
def test_products_have_the_bits_of_plain_blocks(isa: str, threads: int, n: int, k: int) -> None:
    backend = device(isa, "bfloat16", threads)
    matrix = with_exceptions(normal(5, n, k), *corners(n, k)[4:8]).astype(BF16)
    # More rows, so unlike each other that nothing is compact: other columns of the product.
    many = np.ldexp(normal(6, 256, k), np.random.default_rng(7).integers(-60, 60, (256, k))).astype(BF16)
    both = np.concatenate([matrix, many])
    assert is_compact(backend, matrix) and not is_compact(backend, both)
    compact, plain = backend.weight(Dense(matrix)), backend.weight(Dense(both))
    for rows in (1, 2, 7, 12, 13, 24, 25, 70, 400):
        x = normal(8 + rows, rows, k).astype(BF16)
        assert same_bits(products(backend, compact, x), np.ascontiguousarray(products(backend, plain, x)[:, :n]))


def test_gates_and_the_best_column_too(isa: str) -> None:
    backend, k = device(isa, "bfloat16"), 160
    matrix = with_exceptions(normal(9, 128, k), (3, 3), (70, 100)).astype(BF16)
    scattered = np.ldexp(normal(10, 128, k), np.random.default_rng(11).integers(-60, 60, (128, k))).astype(BF16)
    for rows in (1, 9, 40):
        x = normal(12 + rows, rows, k).astype(BF16)
        for weights in (matrix, scattered):
            dense = Dense(weights)
            assert is_compact(backend, weights) == (weights is matrix)
            gated = backend.to_host(backend.ops.gated_linear(x, backend.weight(dense, gated=True)))
            sums = backend.ops.linear(x, backend.weight(dense))
            assert same_bits(gated, backend.to_host(backend.ops.silu_and_mul(sums)))
            best = backend.to_host(backend.ops.linear_argmax(x, backend.weight(dense)))
            np.testing.assert_array_equal(best, backend.to_host(backend.ops.argmax(sums)))


def test_zeros_behind_the_last_input_may_be_exceptions(isa: str) -> None:
    """As where sixteen other codes are more frequent: they are no row's."""
    backend, rng = device(isa, "bfloat16"), np.random.default_rng(1)
    matrix = (rng.choice([-1.0, 1.0], (64, 2047)) * np.exp2(rng.integers(-15, 1, (64, 2047)))).astype(BF16)
    assert is_compact(backend, matrix)
    ids = np.arange(64, dtype=np.int32)[::-1].copy()
    embedded = backend.to_host(backend.ops.embedding(ids, backend.weight(Dense(matrix))))
    assert same_bits(embedded, matrix[ids].astype(np.float32))
