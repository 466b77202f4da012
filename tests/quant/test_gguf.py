"""Dequantization against the ``gguf`` package on random bytes, bit for bit."""

import gguf
import ml_dtypes
import numpy as np
import pytest

from octavo.quant.gguf import FORMATS, OTHER_TYPES, GgmlType, dequantize

BLOCKS = 300


def random_bytes(kind: GgmlType, blocks: int, seed: int = 0) -> np.ndarray:
    """Any bytes are valid blocks; only the half-precision scales must be finite for values to be comparable."""
    data = np.random.default_rng(seed).integers(0, 256, (blocks, FORMATS[kind].bytes), np.uint8)
    if kind in (GgmlType.F32, GgmlType.F16, GgmlType.BF16):
        return np.random.default_rng(seed).standard_normal(blocks).astype(_plain(kind)).view(np.uint8).reshape(blocks, -1)
    for offset in _SCALE_OFFSETS[kind]:
        scale = np.random.default_rng(seed + 1 + offset).normal(0, 0.1, (blocks, 1)).astype(np.float16)
        data[:, offset : offset + 2] = scale.view(np.uint8)
    return data


def _plain(kind: GgmlType) -> type:
    plain: type = {GgmlType.F32: np.float32, GgmlType.F16: np.float16, GgmlType.BF16: ml_dtypes.bfloat16}[kind]
    return plain


_SCALE_OFFSETS = {
    **dict.fromkeys([GgmlType.Q4_0, GgmlType.Q5_0, GgmlType.Q8_0], (0,)),
    **dict.fromkeys([GgmlType.Q4_1, GgmlType.Q5_1, GgmlType.Q4_K, GgmlType.Q5_K], (0, 2)),
    GgmlType.Q2_K: (80, 82),
    GgmlType.Q3_K: (108,),
    GgmlType.Q6_K: (208,),
}


@pytest.mark.parametrize("kind", list(GgmlType))
def test_equals_the_gguf_package_bit_for_bit(kind: GgmlType) -> None:
    data = random_bytes(kind, BLOCKS)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType(kind.value)).reshape(-1)
    out = np.full(BLOCKS * FORMATS[kind].elements, np.nan, np.float32)
    dequantize(kind, data.reshape(-1), out)
    np.testing.assert_array_equal(out.view(np.uint32), expected.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("kind", list(GgmlType))
def test_bfloat16_is_the_rounded_float32(kind: GgmlType) -> None:
    data = random_bytes(kind, BLOCKS, seed=7).reshape(-1)
    exact = np.empty(BLOCKS * FORMATS[kind].elements, np.float32)
    rounded = np.empty(exact.size, ml_dtypes.bfloat16)
    dequantize(kind, data, exact)
    dequantize(kind, data, rounded)
    np.testing.assert_array_equal(rounded.view(np.uint16), exact.astype(ml_dtypes.bfloat16).view(np.uint16))


def test_more_blocks_than_one_chunk() -> None:
    data = random_bytes(GgmlType.Q4_1, 20_000)
    out = np.empty(20_000 * 32, np.float32)
    dequantize(GgmlType.Q4_1, data.reshape(-1), out)
    np.testing.assert_array_equal(out, gguf.dequantize(data, gguf.GGMLQuantizationType.Q4_1).reshape(-1))


@pytest.mark.parametrize(("num_bytes", "values"), [(33, 32), (34, 31), (68, 32), (0, 32)])
def test_sizes_must_agree(num_bytes: int, values: int) -> None:
    with pytest.raises(ValueError, match="Q8_0"):
        dequantize(GgmlType.Q8_0, np.zeros(num_bytes, np.uint8), np.zeros(values, np.float32))


def test_block_sizes_and_names_are_those_of_the_gguf_package() -> None:
    for kind, block in FORMATS.items():
        assert gguf.GGMLQuantizationType(kind.value).name == kind.name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind.value)] == (block.elements, block.bytes)
    for number, name in OTHER_TYPES.items():
        if number in set(gguf.GGMLQuantizationType):
            assert gguf.GGMLQuantizationType(number).name == name
