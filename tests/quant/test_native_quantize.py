"""The native twin of the numpy quantizer: the same bits on every instruction set, for every dtype and number of threads."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.cpu.quantize import native_quantize
from octavo.quant.integer import Bits, quantize
from octavo.quant.layouts import Int4Group, Int8Group, Integer
from tests.ops.devices import DTYPES, ISAS, act, normal

BITS: list[Bits] = [4, 8]


def bits_of(layout: Integer) -> tuple[bytes, ...]:
    if isinstance(layout, Int4Group):
        return layout.packed.tobytes(), layout.scales.tobytes(), layout.minimums.tobytes()
    return layout.values.tobytes(), layout.scales.tobytes()


def odd_groups(seed: int, rows: int, groups: int) -> np.ndarray:
    """Normal values, and groups that are constant, tiny, zero of either sign, one-sided or far from zero."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice(np.array([1e-7, 1e-3, 0.02, 1, 60], np.float32), (rows, 1, 1))
    matrix: np.ndarray = rng.standard_normal((rows, groups, 32), np.float32) * sizes
    kind = rng.integers(0, 12, (rows, groups))
    matrix[kind == 0] = 0
    matrix[kind == 1] = -0.0
    matrix[kind == 2] = matrix[kind == 2, :1]
    matrix[kind == 3] = np.abs(matrix[kind == 3])
    matrix[kind == 4] += 1000
    matrix[kind == 5, ::2] = -0.0
    matrix[kind == 6, 3] *= 100
    matrix[kind == 7] *= np.float32(1e-38)
    return matrix.reshape(rows, groups * 32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", BITS)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 30), groups=st.integers(1, 7), dtype=st.sampled_from(DTYPES))
def test_equals_numpy_bit_for_bit(isa: str, bits: Bits, seed: int, rows: int, groups: int, dtype: str) -> None:
    matrix = act(odd_groups(seed, rows, groups), dtype)
    assert bits_of(native_quantize(2, isa=isa)(matrix, bits)) == bits_of(quantize(matrix, bits))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("threads", [1, 3])
def test_many_units_on_several_threads(bits: Bits, threads: int) -> None:
    matrix = odd_groups(5, 331, 101)
    assert bits_of(native_quantize(threads)(matrix, bits)) == bits_of(quantize(matrix, bits))


@pytest.mark.parametrize("isa", ISAS)
def test_scales_of_every_size_are_rounded_as_numpy_rounds(isa: str) -> None:
    """Groups whose scale is each of many numbers between and at half-precision ones."""
    halves = np.arange(0, 0x7BFF, 7, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2, np.nextafter(halves, np.float32(np.inf))])
    matrix = np.repeat((between * 127)[:, None], 32, axis=1)
    found, expected = native_quantize(1, isa=isa)(matrix, 8), quantize(matrix, 8)
    assert isinstance(found, Int8Group)
    assert isinstance(expected, Int8Group)
    assert bits_of(found) == bits_of(expected)
    assert len(np.unique(found.scales)) > 4000


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("value", "problem"), [(np.nan, "not a number"), (-np.inf, "infinite"), (1e30, "too large"), (-3e38, "too large")]
)
def test_what_cannot_be_quantized(isa: str, bits: Bits, value: float, problem: str) -> None:
    for row in (0, 299):
        matrix = normal(1, 300, 1024)
        matrix[row, 70] = value
        with pytest.raises(ValueError, match=problem):
            native_quantize(2, isa=isa)(matrix, bits)
        with pytest.raises(ValueError, match=problem):
            native_quantize(2, isa=isa)(matrix.astype(ml_dtypes.bfloat16), bits)


def test_sizes_must_agree() -> None:
    from octavo import _native

    with pytest.raises(ValueError, match="not groups of 32"):
        native_quantize(1)(normal(1, 2, 48), 4)
    matrix, scales = normal(1, 3, 64), np.empty((3, 2), np.uint16)
    for values, some_scales, minimums, problem in (
        (np.empty((3, 32), np.uint8), scales, None, "values must fit"),
        (np.empty((3, 64), np.uint8), scales, scales, "values must fit"),
        (np.empty((2, 64), np.uint8), scales, None, "values must fit"),
        (np.empty((3, 64), np.uint8), scales[:2], None, "one scale"),
        (np.empty((3, 32), np.uint8), scales, scales[:2], "one minimum"),
    ):
        with pytest.raises(ValueError, match=problem):
            _native.quantize(matrix, values, some_scales, minimums, "auto", 1)


def test_nothing_to_do() -> None:
    assert native_quantize(2)(np.empty((0, 64), np.float32), 4).shape == (0, 64)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", BITS)
def test_the_largest_scale_that_there_is(isa: str, bits: Bits) -> None:
    matrix = np.zeros((1, 64), np.float32)
    matrix[0, ::2] = 65504 * 127 if bits == 8 else -65504
    assert bits_of(native_quantize(1, isa=isa)(matrix, bits)) == bits_of(quantize(matrix, bits))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("groups", [1, 8191, 8193, 16385])
def test_nothing_is_written_behind_the_last_group(bits: Bits, groups: int) -> None:
    from octavo import _native

    sizes, types = [groups * (16 if bits == 4 else 32), groups, groups], [np.uint8, np.uint16, np.uint16]
    room = [np.full(size + 1024, 77, dtype) for size, dtype in zip(sizes, types, strict=True)]
    values, scales, minimums = (memory[None, :size] for memory, size in zip(room, sizes, strict=True))
    _native.quantize(normal(1, 1, 32 * groups), values, scales, minimums if bits == 4 else None, "auto", 2)
    assert all((memory[size:] == 77).all() for memory, size in zip(room, sizes, strict=True))
