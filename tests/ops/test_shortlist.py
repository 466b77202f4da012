"""A shortlist changes how long ``linear_argmax`` takes, never what it gives: the argmax of what ``linear`` computes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference.sampling import masked
from octavo.quant.integer import quantize
from octavo.quant.layouts import Dense, Int4Group, Int5Group, Int6Group, Int8Group
from tests.ops.devices import BF16, DTYPES, FIXED, ISAS, act, device, normal, some_allowed

SEEDS = st.integers(0, 2**32 - 1)
COLUMNS = st.sampled_from([2048, 2060, 2111])


def listed(backend: CpuBackend, layout: Any, inputs: np.ndarray | None = None) -> Any:
    weight = backend.weight(layout)
    backend.shortlist(weight, inputs)
    return weight


def matrix_and_rows(seed: int, m: int, k: int, n: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, matrix = normal(seed, m, k), normal(seed + 1, n, k)
    if kind == "outliers":
        x *= np.exp(2 * normal(seed + 2, m, k))
        matrix *= np.exp(normal(seed + 3, n, 1))
    elif kind == "equals":  # sums without rounding: many columns are the same
        x, matrix = np.sign(x), np.round(matrix)
    elif kind == "close":  # what is largest for a row is so by a bit of a number
        few = rng.permutation(n)[:50]
        matrix[few] = 3 * x[rng.integers(0, m, 50)] * (1 + rng.integers(-1, 2, (50, k)) * 2.0**-8)
    return x, matrix


def assert_same(backend: CpuBackend, x: np.ndarray, weight: Any, allowed: np.ndarray) -> None:
    ops = backend.ops
    with np.errstate(all="ignore"):
        logits = np.array(ops.linear(x, weight))
        np.testing.assert_array_equal(ops.linear_argmax(x, weight), ops.argmax(logits))
        np.testing.assert_array_equal(ops.linear_argmax(x, weight, allowed), ops.argmax(masked(logits, allowed)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["normal", "outliers", "equals", "close"])
@settings(max_examples=8)
@given(seed=SEEDS, m=st.sampled_from([1, 2, 3, 4, 17, 40, 300]), groups=st.integers(1, 8), n=COLUMNS)
def test_the_largest_of_plain_numbers(isa: str, dtype: str, kind: str, seed: int, m: int, groups: int, n: int) -> None:
    x, matrix = matrix_and_rows(seed, m, 32 * groups, n, kind)
    for threads in (1, 3):
        backend = device(isa, dtype, threads)
        weight = listed(backend, Dense(act(matrix, dtype)))
        assert [each.num_bytes > 0 for each in weight.shortlists] == [True]
        assert_same(backend, act(x, dtype), weight, some_allowed(seed, m, n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [32, 96, 544, 576, 2048])
def test_inputs_that_are_larger_than_others(isa: str, dtype: str, columns: int) -> None:
    """Inputs share scales by how large they are: where that is known, few columns are left to be computed."""
    sizes = np.exp(1.5 * normal(3, columns))
    x, matrix = normal(1, 40, columns) * sizes, normal(2, 2060, columns)
    matrix[np.arange(40) * 50] += 10 * x / np.linalg.norm(x, axis=1, keepdims=True)  # else little tells which is the largest
    backend = device(isa, dtype)
    weight = listed(backend, Dense(act(matrix, dtype)), sizes.astype(np.float32))
    (shortlist,) = weight.shortlists
    tried = [rows for rows in (1, 2, 6, 7, 12, 13, 40) if shortlist.takes(rows)]
    for rows in tried:
        assert_same(backend, act(x[:rows], dtype), weight, some_allowed(4, rows, 2060))
    assert (shortlist.settled, shortlist.given_up) == (2 * len(tried), 0)


@pytest.mark.parametrize("inputs", [np.zeros(64), np.full(64, np.nan), np.full(64, np.inf), np.geomspace(1e-30, 1e30, 64)])
def test_inputs_of_which_nothing_useful_is_known(inputs: np.ndarray) -> None:
    backend, matrix, x = device("auto", "bfloat16"), normal(1, 2048, 64).astype(BF16), normal(2, 9, 64).astype(BF16)
    for layout in (Dense(matrix), quantize(matrix.astype(np.float32), 8)):
        assert_same(backend, x, listed(backend, layout, inputs.astype(np.float32)), some_allowed(3, 9, 2048))
    with pytest.raises(ValueError, match="one size for each column"):
        listed(backend, Dense(matrix), inputs[1:])


def _in_bits(bits: int, matrix: np.ndarray) -> Int4Group | Int5Group | Int6Group | Int8Group:
    if bits in (4, 8):
        return quantize(matrix, 4 if bits == 4 else 8)
    rows, columns = matrix.shape
    low, high = matrix.min(), matrix.max()
    size = 32 if bits == 5 else 16
    scales = np.full((rows, columns // size), (high - low) / (31 if bits == 5 else 63), np.float16)
    step = np.repeat(scales.astype(np.float32), size, axis=1)
    if bits == 6:
        return Int6Group(np.clip(np.round(matrix / step), -32, 31).astype(np.int8), scales)
    minimums = np.full((rows, columns // 32), low, np.float16)
    values = np.clip(np.round((matrix - np.float32(np.float16(low))) / step), 0, 31)
    return Int5Group(values.astype(np.uint8), scales, minimums)


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["normal", "outliers", "close"])
@settings(max_examples=6)
@given(seed=SEEDS, m=st.sampled_from([9, 16, 40]), groups=st.integers(1, 8), n=COLUMNS, far=st.booleans())
def test_the_largest_of_integers_in_16_bits(
    isa: str, bits: int, kind: str, seed: int, m: int, groups: int, n: int, far: bool
) -> None:
    x, matrix = matrix_and_rows(seed, m, 32 * groups, n, kind)
    layout = _in_bits(bits, matrix + (30 if far and bits < 6 else 0))  # minimums much larger than what is left of them
    backend = CpuBackend(compute_dtype="bfloat16", isa=isa, num_threads=2, activation_bits=16)
    weight = listed(backend, layout)
    assert weight.shortlists[-1].num_bytes == 0
    assert_same(backend, x.astype(BF16), weight, some_allowed(seed, m, n))


@pytest.mark.parametrize("activation_bits", [8, 16])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["normal", "outliers", "equals", "close"])
@settings(max_examples=6)
@given(seed=SEEDS, m=st.sampled_from([1, 2, 3, 4, 5]), groups=st.integers(1, 8), n=COLUMNS)
def test_the_largest_for_few_rows_of_integers_in_8_bits(
    isa: str, activation_bits: Any, kind: str, seed: int, m: int, groups: int, n: int
) -> None:
    x, matrix = matrix_and_rows(seed, m, 32 * groups, n, kind)
    for threads in (1, 3):
        backend = CpuBackend(compute_dtype="bfloat16", isa=isa, num_threads=threads, activation_bits=activation_bits)
        weight = listed(backend, quantize(matrix, 8))
        assert_same(backend, x.astype(BF16), weight, some_allowed(seed, m, n))


@pytest.mark.parametrize("isa", ISAS)
def test_integers_in_8_bits_have_a_copy_in_5_where_that_is_faster(isa: str) -> None:
    matrix, x = normal(1, 4096, 576), normal(2, 5, 576)
    matrix[100:105] += x  # else 5 bits do not tell which is the largest
    layout = quantize(matrix, 8)
    for bits, most_rows in ((8, 4), (16, 3)):
        backend = CpuBackend(compute_dtype="bfloat16", isa=isa, num_threads=2, activation_bits=bits)
        weight = listed(backend, layout)
        copies = [each for each in weight.shortlists if each.num_bytes]
        assert len(copies) == ("avx512_vnni" in _native.integer_kernels(isa))
        if not copies:
            continue
        (few,) = copies
        assert few.num_bytes == 4096 * 576 * 6 // 8
        for rows in range(1, 6):
            backend.ops.linear_argmax(x[:rows].astype(BF16), weight)
        assert (few.settled, few.given_up) == (most_rows, 0)


def test_few_columns_are_computed_twice() -> None:
    """And where too many would be, all are at once for a while; then it is tried again."""
    backend = device("auto", "bfloat16")
    weight = listed(backend, Dense(normal(1, 4096, 576).astype(BF16)))
    x = normal(2, 3, 576).astype(BF16)
    for _ in range(3):
        backend.ops.linear_argmax(x, weight)
    (shortlist,) = weight.shortlists
    assert (shortlist.settled, shortlist.given_up) == (3, 0)
    same = np.zeros((3, 576), BF16)
    tried = []
    for _ in range(12):
        assert list(backend.ops.linear_argmax(same, weight)) == [0, 0, 0]
        tried.append(shortlist.given_up)
    assert tried == [1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4]
    for _ in range(9):
        backend.ops.linear_argmax(x, weight)
    assert (shortlist.settled, shortlist.given_up) == (5, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_no_bound_holds_for(isa: str, dtype: str) -> None:
    """NaN, infinity, numbers whose squares are none, and nothing at all."""
    backend = device(isa, dtype)
    weight = listed(backend, Dense(act(normal(1, 2048, 64), dtype)))
    x, allowed = normal(2, 3, 64), np.zeros((3, 64), np.int32)
    for bad in (np.nan, np.inf, 1e30, 1e-30, 1e-42, 0.0):
        row = np.where(np.arange(64) % 7 == 0, bad, 0.0 if bad == 0 else bad * 0.1)
        assert_same(backend, act(np.concatenate([x[:1], row[None], x[1:2]]), dtype), weight, allowed)
    assert list(backend.ops.linear_argmax(act(x, dtype), weight, allowed)) == [-1, -1, -1]


@pytest.mark.parametrize("isa", ISAS)
def test_more_rows_than_a_chunk_has(isa: str) -> None:
    backend = device(isa, "bfloat16")
    weight, x = listed(backend, Dense(normal(1, 3000, 256).astype(BF16))), normal(2, 500, 256).astype(BF16)
    assert_same(backend, x, weight, some_allowed(3, 500, 3000))
    (shortlist,) = weight.shortlists
    as_they_are = isa in ("generic", "amx", "amx_emulated")  # so many rows are multiplied so
    assert shortlist.settled == (0 if as_they_are else 2)


@pytest.mark.parametrize(
    ("rows", "columns", "spoilt"), [(2047, 64, 0.0), (2048, 65, 0.0), (2048, 2080, 0.0), (2048, 64, np.nan), (2048, 64, 3e38)]
)
def test_matrices_without_one(rows: int, columns: int, spoilt: float) -> None:
    backend = device("auto", "float32")
    matrix = normal(1, rows, columns)
    if spoilt:
        matrix[5] = spoilt
    weight = listed(backend, Dense(matrix))
    assert not weight.shortlists
    assert_same(backend, normal(2, 2, columns), weight, some_allowed(3, 2, rows))


def test_none_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, weight = CpuBackend(num_threads=1), normal(1, 2048, 64)
    monkeypatch.setattr(backend, "available_memory", lambda: 16 * 2048 * 68 - 1)
    assert not listed(backend, Dense(weight)).shortlists
    monkeypatch.setattr(backend, "available_memory", lambda: 16 * 2048 * 68)
    assert listed(backend, Dense(weight)).shortlists[0].num_bytes == 2048 * 68


def test_integers_in_fewer_bits_with_activations_in_8_have_none() -> None:
    backend = CpuBackend(num_threads=1, activation_bits=8)
    assert not listed(backend, quantize(normal(1, 2048, 64), 4)).shortlists


def found_by_a_list(backend: CpuBackend, layout: Any, x: np.ndarray) -> list[int]:
    """The largest columns, of which few blocks were computed as ever, and which are those of all columns."""
    weight = listed(backend, layout)
    found = np.array(backend.ops.linear_argmax(x, weight))
    assert weight.shortlists[-1].settled == 1
    np.testing.assert_array_equal(found, backend.ops.argmax(backend.ops.linear(x, weight)))
    return list(found)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("last", [80, 2047])
def test_all_that_bytes_lose_of_a_row_goes_one_way(isa: str, dtype: str, threads: int, last: int) -> None:
    """What is largest looks far smaller roughly, or what is not looks far larger: no bound may be less than it is."""
    matrix, backend = np.zeros((2048, 64), np.float32), device(isa, dtype, threads)
    matrix[40, :63] = 1
    for few, other, best in ((23.5 / 2048, 11 / 16, 40), (13 / 1024, 0.875, last)):
        x = np.full((1, 64), few, np.float32)
        x[0, 63], matrix[last, 63] = 1, other
        assert found_by_a_list(backend, Dense(act(matrix, dtype)), act(x, dtype)) == [best]


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa in FIXED])
@pytest.mark.parametrize("sampled", [False, True], ids=["equal sizes", "sizes apart"])
@pytest.mark.parametrize("lossy", ["weights", "rows"])
def test_what_whole_numbers_lose_comes_to_what_bytes_lose(isa: str, sampled: bool, lossy: str) -> None:
    """Of a column, or of a row, all in one way."""
    matrix, x = np.zeros((2048, 64), np.float32), np.zeros((1, 64), np.float32)
    if sampled:  # sizes of inputs are taken from every sixteenth block
        matrix[0], matrix[0, 63] = -(2.0**-8), -1
    if lossy == "weights":
        few = 161 / 8192
        x[0, :63] = 1
        matrix[40, :63], matrix[40, 63] = few, 1
        matrix[80, :32], matrix[80, 32:63] = few, few + 2.0**-13
    else:
        x[0, :63], x[0, 63] = 23.5 / 2048, 1
        matrix[40, :63], matrix[80, 63] = 1, 187 / 256
    assert found_by_a_list(device(isa, "bfloat16", 1), Dense(matrix.astype(BF16)), x.astype(BF16)) == [40]


@pytest.mark.parametrize("isa", ISAS)
def test_what_16_bits_lose_comes_to_what_8_bits_lose(isa: str) -> None:
    values, scales = np.zeros((2048, 64), np.int8), np.zeros((2048, 2), np.float16)
    x = np.full((9, 64), 272.51 / 32512, np.float32)
    x[:, [31, 63]] = 1
    values[40], values[80, 63], scales[40], scales[80] = 127, 127, 1 / 127, 1074 * 2.0**-18
    values[40, [31, 63]] = 0
    backend = CpuBackend(compute_dtype="float32", isa=isa, num_threads=1, activation_bits=16)
    assert found_by_a_list(backend, Int8Group(values, scales), x) == [40] * 9
