"""Integer layouts: what they mean, how they stack, what is refused; and how close quantizing comes."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.quant.integer import quantize_int4, quantize_int8
from octavo.quant.layouts import Dense, Int4Group, Int8Group, Integer, Piecewise, concatenate

SEEDS = st.integers(0, 2**32)


def normal(seed: int, rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def test_meaning_of_int4() -> None:
    packed = np.arange(32, dtype=np.uint8).reshape(1, 32) * 7
    layout = Int4Group(packed, np.array([[0.5, 2]], np.float16), np.array([[-1, 3]], np.float16))
    expected = np.empty((1, 64), np.float32)
    for group, (scale, minimum) in enumerate([(0.5, -1.0), (2.0, 3.0)]):
        for i in range(16):
            byte = int(packed[0, 16 * group + i])
            expected[0, 32 * group + i] = scale * (byte & 15) + minimum
            expected[0, 32 * group + 16 + i] = scale * (byte >> 4) + minimum
    np.testing.assert_array_equal(layout.dequantize(), expected)
    assert layout.shape == (1, 64)
    assert layout.values.max() <= 15


def test_meaning_of_int8() -> None:
    values = np.arange(-64, 64, dtype=np.int8).reshape(2, 64)
    scales = np.array([[1, 0.5], [0.25, 2]], np.float16)
    expected = values * scales.astype(np.float32).repeat(32, axis=1)
    np.testing.assert_array_equal(Int8Group(values, scales).dequantize(), expected)


@settings(max_examples=40)
@given(seed=SEEDS, rows=st.integers(1, 20), groups=st.integers(1, 5), size=st.sampled_from([1e-3, 0.02, 1, 100]))
def test_quantized_weights_are_within_half_a_step(seed: int, rows: int, groups: int, size: float) -> None:
    matrix = normal(seed, rows, 32 * groups) * np.float32(size)
    grouped = matrix.reshape(rows, groups, 32)
    eight = quantize_int8(matrix)
    step = np.abs(grouped).max(axis=2, keepdims=True) / 127
    slack = 1.01 + 2.0**-11 * 127 + 2.0**-24 * 127 / step  # of rounding the scale to float16
    assert (np.abs(eight.dequantize().reshape(grouped.shape) - grouped) <= step / 2 * slack).all()
    assert (eight.values >= -127).all()
    four = quantize_int4(matrix).dequantize().reshape(grouped.shape)
    spread = (grouped.max(axis=2) - grouped.min(axis=2)) / 15
    error = np.sqrt(((four - grouped) ** 2).mean(axis=2))
    assert (error <= spread / 2 * 1.05 + 2.0**-23).all()


def test_the_search_beats_the_full_range() -> None:
    matrix = normal(3, 400, 512)
    grouped = matrix.reshape(400, 16, 32)
    low, high = grouped.min(axis=2, keepdims=True), grouped.max(axis=2, keepdims=True)
    step = (high - low) / 15
    plain = np.rint((grouped - low) / step) * step + low
    found = quantize_int4(matrix).dequantize().reshape(grouped.shape)
    assert ((found - grouped) ** 2).mean() < 0.95 * ((plain - grouped) ** 2).mean()


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_quantizing_again_changes_nothing_much_and_special_groups_survive(quantize: object) -> None:
    assert callable(quantize)
    matrix = np.zeros((3, 64), np.float32)
    matrix[1] = 0.75
    matrix[2, :32] = np.where(np.arange(32) % 2, 1.0, -1.0)
    found = quantize(matrix).dequantize()
    np.testing.assert_array_equal(found[0], 0)
    np.testing.assert_allclose(found[1], 0.75, rtol=2e-3)
    np.testing.assert_allclose(found[2], matrix[2], atol=2e-3)
    np.testing.assert_allclose(quantize(found).dequantize(), found, atol=2e-3)
    rounded = quantize(normal(1, 4, 64).astype(ml_dtypes.bfloat16))
    assert rounded.shape == (4, 64)


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
@pytest.mark.parametrize(("value", "problem"), [(np.nan, "not a number"), (np.inf, "infinite"), (1e30, "too large")])
def test_what_cannot_be_quantized(quantize: object, value: float, problem: str) -> None:
    assert callable(quantize)
    matrix = normal(1, 2, 64)
    matrix[1, 5] = value
    with pytest.raises(ValueError, match=problem):
        quantize(matrix)
    with pytest.raises(ValueError, match="not groups of 32"):
        quantize(normal(1, 2, 63))


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_stacking(quantize: object) -> None:
    assert callable(quantize)
    parts = [quantize(normal(seed, rows, 64)) for seed, rows in ((1, 5), (2, 1), (3, 40))]
    stacked = concatenate(parts)
    np.testing.assert_array_equal(stacked.dequantize(), np.concatenate([part.dequantize() for part in parts]))
    assert stacked.shape == (46, 64)
    assert concatenate(parts[:1]) is parts[0]
    with pytest.raises(ValueError, match="dimension"):
        concatenate([parts[0], quantize(normal(1, 5, 32))])


def test_pieces_are_rows_in_order() -> None:
    parts = [quantize_int4(normal(seed, rows, 64)) for seed, rows in ((1, 5), (2, 1), (3, 40))]
    one = Piecewise(Int4Group, 64, tuple(Piecewise.of(part).parts[0] for part in parts))
    assert one.shape == (46, 64)
    assert [piece.shape[0] for piece in one.pieces(16)] == [5, 1, 16, 16, 8]
    expected = concatenate(parts).dequantize()
    np.testing.assert_array_equal(np.concatenate([piece.dequantize() for piece in one.pieces(16)]), expected)
    np.testing.assert_array_equal(one.dequantize(), expected)


def test_plain_matrices_one_below_the_other() -> None:
    matrix = normal(1, 7, 40).astype(ml_dtypes.bfloat16)
    layout = Dense(matrix[:4], (matrix[4:5], matrix[5:]))
    assert layout.shape == (7, 40)
    np.testing.assert_array_equal(layout.dequantize(), matrix.astype(np.float32))


def test_stacking_different_layouts_needs_a_decision() -> None:
    eight, four = quantize_int8(normal(1, 5, 64)), quantize_int4(normal(2, 5, 64))
    with pytest.raises(ValueError, match="cannot be stacked"):
        concatenate([eight, four])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Int8Group(np.zeros((2, 63), np.int8), np.zeros((2, 1), np.float16)),
        lambda: Int8Group(np.zeros((2, 64), np.uint8), np.zeros((2, 2), np.float16)),
        lambda: Int8Group(np.zeros((2, 64), np.int8), np.zeros((2, 2), np.float32)),
        lambda: Int8Group(np.zeros((2, 64), np.int8), np.zeros((1, 2), np.float16)),
        lambda: Int4Group(np.zeros((2, 24), np.uint8), np.zeros((2, 1), np.float16), np.zeros((2, 1), np.float16)),
        lambda: Int4Group(np.zeros((2, 32), np.uint8), np.zeros((2, 2), np.float16), np.zeros((2, 3), np.float16)),
        lambda: Int4Group(np.zeros(32, np.uint8), np.zeros((1, 2), np.float16), np.zeros((1, 2), np.float16)),
    ],
)
def test_arrays_must_belong_together(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="must be"):
        make()


def test_every_layout_says_its_shape() -> None:
    layouts: list[Dense | Integer] = [Dense(normal(1, 3, 64)), quantize_int8(normal(1, 3, 64)), quantize_int4(normal(1, 3, 64))]
    assert {layout.shape for layout in layouts} == {(3, 64)}
    assert {layout.dequantize().shape for layout in layouts} == {(3, 64)}
