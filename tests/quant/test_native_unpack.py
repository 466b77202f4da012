"""The native twins of what numpy does: the same bits for every type, number of threads and output dtype."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.backends.cpu.unpack import native_unpack
from octavo.quant.gguf import FORMATS, GgmlType, Split, dequantize, split
from tests.quant.test_gguf import random_bytes

# enough values for several threads to have work
BLOCKS = {1: 300_001, 32: 15_001, 256: 2_001}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", list(GgmlType))
def test_equals_numpy_bit_for_bit(kind: GgmlType, threads: int, dtype: Any) -> None:
    blocks = BLOCKS[FORMATS[kind].elements]
    data = random_bytes(kind, blocks).reshape(-1)
    expected = np.empty(blocks * FORMATS[kind].elements, dtype)
    found = np.empty_like(expected)
    dequantize(kind, data, expected)
    native_unpack(threads).dequantize(kind, data, found)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [kind for kind, block in FORMATS.items() if block.inputs])
def test_splits_as_numpy_does(kind: GgmlType, packed: bool, threads: int) -> None:
    block = FORMATS[kind]
    blocks = BLOCKS[block.elements]
    data = random_bytes(kind, blocks).reshape(-1)
    n = blocks * block.elements
    results = []
    for one in (split, native_unpack(threads).split):
        values, scales = np.empty(n // 2 if packed else n, np.uint8), np.empty(n // block.inputs, np.float16)
        minimums = np.empty_like(scales) if block.minimums or block.offset else None
        finite = one(kind, data, values, scales, minimums)
        results.append([finite, values.tobytes(), scales.tobytes(), b"" if minimums is None else minimums.tobytes()])
    assert results[0] == results[1]


@pytest.mark.parametrize("one", [split, native_unpack(2).split])
def test_scales_that_are_not_finite_are_told(one: Split) -> None:
    data, values = random_bytes(GgmlType.Q4_0, 20_000), np.empty(320_000, np.uint8)
    scales, minimums = np.empty(20_000, np.float16), np.empty(20_000, np.float16)
    assert one(GgmlType.Q4_0, data.reshape(-1), values, scales, minimums)
    for scale in (60000, np.inf, np.nan):  # the first is finite, the minimum that follows from it is not
        for block in (0, 3, 9_999, 19_999):
            wrong = data.copy()
            wrong[block, :2] = np.array([scale], np.float16).view(np.uint8)
            assert not one(GgmlType.Q4_0, wrong.reshape(-1), values, scales, minimums)


@pytest.mark.parametrize("offset", [0, 4096])
def test_products_are_rounded_to_half_precision_as_numpy_does(offset: int) -> None:
    """Every d of Q4_K with some of the 6-bit scales."""
    blocks = random_bytes(GgmlType.Q4_K, 8192)
    for start in range(0, 65536, 8192):
        blocks[:, :4] = np.repeat(np.arange(start, start + 8192, dtype=np.uint16)[:, None], 2, axis=1).view(np.uint8)
        blocks[:, :4] = np.roll(blocks[:, :4], offset, axis=0)
        results = []
        for one in (split, native_unpack(1).split):
            values, scales = np.empty(8192 * 128, np.uint8), np.empty(65536, np.float16)
            minimums = np.empty_like(scales)
            one(GgmlType.Q4_K, blocks.reshape(-1), values, scales, minimums)
            results.append(np.concatenate([scales, minimums]))
        numbers = ~np.isnan(results[0])
        assert results[1][numbers].tobytes() == results[0][numbers].tobytes()
        assert np.isnan(results[1][~numbers]).all()


@pytest.mark.parametrize("one", [split, native_unpack(1).split])
def test_what_is_split_must_have_room(one: Split) -> None:
    data, values, scales = np.zeros(20 * 3, np.uint8), np.empty(96, np.uint8), np.empty(3, np.float16)
    one(GgmlType.Q4_1, data, values, scales, scales.copy())
    for wrong in ((scales, None), (scales[:2], scales[:2]), (scales, scales[:2])):
        with pytest.raises(ValueError, match=r"scales and minimums must fit|could not broadcast"):
            one(GgmlType.Q4_1, data, values, *wrong)
    with pytest.raises(ValueError, match=r"scales and minimums must fit|has no whole numbers"):
        one(GgmlType.F32, data, values[:15], scales, None)


def test_every_half_precision_number() -> None:
    data = np.arange(65_536, dtype=np.uint16)
    numbers = ~np.isnan(data.view(np.float16))
    for dtype in (np.float32, ml_dtypes.bfloat16):
        expected, found = np.empty(65_536, dtype), np.empty(65_536, dtype)
        dequantize(GgmlType.F16, data.view(np.uint8), expected)
        native_unpack(1).dequantize(GgmlType.F16, data.view(np.uint8), found)
        assert found[numbers].tobytes() == expected[numbers].tobytes()
        assert np.isnan(found[~numbers]).all()


@pytest.mark.parametrize("out", [np.empty(31, np.float32), np.empty(64, np.float32), np.empty(0, np.float32)])
def test_sizes_must_agree(out: np.ndarray) -> None:
    with pytest.raises(ValueError, match="34 bytes of type 8"):
        native_unpack(1).dequantize(GgmlType.Q8_0, np.zeros(34, np.uint8), out)


def test_read_only_bytes_are_read_and_read_only_outputs_refused() -> None:
    data, out = np.zeros(34, np.uint8), np.ones(32, np.float32)
    data.flags.writeable = False
    native_unpack(1).dequantize(GgmlType.Q8_0, data, out)
    assert not out.any()
    out.flags.writeable = False
    with pytest.raises(TypeError):
        native_unpack(1).dequantize(GgmlType.Q8_0, data, out)


def test_nothing_to_do() -> None:
    native_unpack(2).dequantize(GgmlType.Q4_1, np.empty(0, np.uint8), np.empty(0, np.float32))
