"""GGUF blocks as integer layouts against the ``gguf`` package's numbers: exact where the formats agree, within a known error
where they do not."""

import gguf
import numpy as np
import pytest

from octavo.quant.gguf import FORMATS, IN_NUMPY, GgmlType
from octavo.quant.gguf_integer import integer_layout, layout_of
from octavo.quant.layouts import Int4Group, Int5Group, Int6Group, Int8Group, Integer, Unrepresentable
from tests.quant.test_gguf import random_bytes

SHAPE = (30, 512)
PLAIN = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
EXACT = {
    GgmlType.Q4_0: Int4Group,
    GgmlType.Q4_1: Int4Group,
    GgmlType.Q5_0: Int5Group,
    GgmlType.Q5_1: Int5Group,
    GgmlType.Q8_0: Int8Group,
}
ROUNDED = {GgmlType.Q3_K: Int6Group, GgmlType.Q4_K: Int4Group, GgmlType.Q5_K: Int5Group, GgmlType.Q6_K: Int6Group}


def made_of(kind: GgmlType, data: np.ndarray, shape: tuple[int, int] = SHAPE) -> Integer:
    return integer_layout(kind, data.reshape(-1), shape, unpack=IN_NUMPY)


def both(kind: GgmlType) -> tuple[Integer, np.ndarray]:
    """The layout of random bytes and what the ``gguf`` package makes of them."""
    data = random_bytes(kind, SHAPE[0] * SHAPE[1] // FORMATS[kind].elements)
    layout = made_of(kind, data)
    assert type(layout) is layout_of(kind, SHAPE[1])
    assert layout.shape == SHAPE
    return layout, gguf.dequantize(data, gguf.GGMLQuantizationType(kind.value)).reshape(SHAPE)


@pytest.mark.parametrize("kind", EXACT)
def test_formats_that_agree_keep_every_bit(kind: GgmlType) -> None:
    layout, expected = both(kind)
    assert isinstance(layout, EXACT[kind])
    np.testing.assert_array_equal(layout.dequantize(), expected)


@pytest.mark.parametrize("kind", ROUNDED)
def test_others_round_scales_and_minimums_only(kind: GgmlType) -> None:
    layout, expected = both(kind)
    assert isinstance(layout, ROUNDED[kind])
    sizes = np.abs(layout.values.astype(np.float32)) * np.abs(layout.scales.astype(np.float32)).repeat(
        SHAPE[1] // layout.scales.shape[1], axis=1
    )
    if layout.minimums is not None:
        sizes += np.abs(layout.minimums.astype(np.float32)).repeat(32, axis=1)
    bound = sizes * 2.0**-10 + np.abs(layout.values) * 2.0**-24 + 2.0**-20
    assert (np.abs(layout.dequantize() - expected) <= bound).all()


def test_what_no_layout_holds_becomes_8_bits() -> None:
    layout, expected = both(GgmlType.Q2_K)
    assert isinstance(layout, Int8Group)
    step = np.abs(expected.reshape(-1, 32)).max(axis=1, keepdims=True) / 127
    assert (np.abs(layout.dequantize() - expected).reshape(-1, 32) <= step * 0.6 + 1e-7).all()


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_numbers_have_no_integer_layout(kind: GgmlType) -> None:
    assert layout_of(kind, SHAPE[1]) is None
    with pytest.raises(ValueError, match="512 whole numbers"):
        made_of(kind, np.zeros(SHAPE[0] * SHAPE[1] * FORMATS[kind].bytes, np.uint8))


@pytest.mark.parametrize("kind", [GgmlType.Q4_0, GgmlType.Q4_K, GgmlType.Q5_0, GgmlType.Q5_K, GgmlType.Q6_K])
def test_scales_beyond_float16_have_none(kind: GgmlType) -> None:
    data = random_bytes(kind, 2)
    offset = 208 if kind == GgmlType.Q6_K else 0
    data[1, offset : offset + 2] = np.array([60000], np.float16).view(np.uint8)
    data[1, 4:16] |= 63
    with pytest.raises(Unrepresentable, match="beyond float16"):
        made_of(kind, data, (1, 2 * FORMATS[kind].elements))


@pytest.mark.parametrize("kind", ROUNDED)
def test_rows_that_are_no_whole_blocks_have_no_integer_layout(kind: GgmlType) -> None:
    assert layout_of(kind, 288) is None


@pytest.mark.parametrize("kind", [kind for kind in GgmlType if kind not in PLAIN])
def test_sizes_must_agree(kind: GgmlType) -> None:
    with pytest.raises(ValueError, match=kind.name):
        made_of(kind, np.zeros(FORMATS[kind].bytes, np.uint8))


@pytest.mark.parametrize("kind", [GgmlType.Q5_0, GgmlType.Q2_K, GgmlType.Q6_K])
def test_many_rows_are_converted_in_parts(kind: GgmlType) -> None:
    rows = 5 * (1 << 20) // 512
    data = np.tile(random_bytes(kind, 512 // FORMATS[kind].elements), (rows, 1))
    layout = made_of(kind, data, (rows, 512))
    assert (layout.values == layout.values[0]).all()
    assert layout.values.any()
