"""Writing keys and values into slots and copying blocks. A query that sees one position only reads its values back."""

import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.base import AttentionShape, Batch
from octavo.step import BlockCopies
from tests.ops.devices import (
    BF16,
    ISAS,
    KV_DTYPES,
    assert_close,
    device,
    normal,
    nowhere,
    oracle,
    same_bits,
    spec_of,
    store,
    width_of,
)

SHAPES = [AttentionShape(4, 2, 64), AttentionShape(3, 3, 40), AttentionShape(2, 1, 128)]


def _see(backend: Any, cache: Any, layer: int, rows: np.ndarray, shape: AttentionShape, *, one: bool) -> np.ndarray:
    """Each of the rows attends to the slot (``one``) or to the block up to the slot of its own number."""
    size = cache.spec.block_size
    slots = np.arange(len(rows), dtype=np.int32)
    none = np.zeros(0, np.int32)
    starts = np.arange(len(rows) + 1, dtype=np.int32)
    batch = Batch(none, none, nowhere(len(rows)), starts, slots % size + 1, (slots // size)[:, None].copy(), none)
    window = 1 if one else None
    return np.array(backend.ops.attention(cache, layer, rows, batch, shape, scale=0.2, window=window))


def seen_by(backend: Any, kv_dtype: str, shape: AttentionShape, block_size: int, alone: bool) -> list[np.ndarray]:
    """What each layer has, the middle one's slots having been written a second time in another order, and some of them not."""
    blocks = max(2, 60 // block_size)
    slots = np.random.default_rng(1).permutation(blocks * block_size).astype(np.int32)
    slots[::5] = -1  # written nowhere
    first, second = (normal(seed, len(slots), width_of(shape)) for seed in (1, 2))
    cache = backend.kv_cache(spec_of(shape, block_size, kv_dtype, layers=3), num_blocks=blocks, num_host_blocks=0)
    everywhere = np.arange(len(slots), dtype=np.int32)
    for layer in range(3):
        store(backend, cache, layer, first, everywhere, shape)
    store(backend, cache, 1, second, slots, shape, alone=alone)
    return [_see(backend, cache, layer, first, shape, one=one) for layer in range(3) for one in (True, False)]


@cache
def seen_by_oracle(kv_dtype: str, shape: AttentionShape, block_size: int, alone: bool) -> list[np.ndarray]:
    return seen_by(oracle("float32"), kv_dtype, shape, block_size, alone)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 4, 8, 16, 24, 256])
@pytest.mark.parametrize("alone", [False, True], ids=["one sequence", "a sequence for each row"])
def test_every_token_gets_into_its_slot(isa: str, kv_dtype: str, shape: AttentionShape, block_size: int, alone: bool) -> None:
    actually = seen_by(device(isa, "float32"), kv_dtype, shape, block_size, alone)
    expectedly = seen_by_oracle(kv_dtype, shape, block_size, alone)
    for i, (actual, expected) in enumerate(zip(actually, expectedly, strict=True)):
        assert_close(actual, expected, scale=30.0 if kv_dtype == "int8" else 1.0)
        if kv_dtype == "int8":
            assert i % 2 or np.allclose(actual, expected, rtol=1e-6, atol=0), (
                "values come back as they were stored, but for rounding"
            )
        else:
            assert i % 2 or same_bits(actual, expected), "values come back as they were stored"


def test_values_are_stored_rounded_to_nearest_even() -> None:
    values = [1.0, 1.00390625, 1.01171875, -1.00390625, 3.4e38, 1e-30, 0.1, np.inf]
    shape = AttentionShape(1, 1, 8)
    for block_size in (3, 8, 16):
        rows = np.zeros((1, 24), np.float32)
        rows[0, 16:] = values
        for isa in ISAS:
            backend = device(isa, "float32")
            cache = backend.kv_cache(spec_of(shape, block_size, "bfloat16"), num_blocks=1, num_host_blocks=0)
            store(backend, cache, 0, rows, np.zeros(1, np.int32), shape)
            expected = np.array(values, np.float32).astype(BF16).astype(np.float32)
            np.testing.assert_array_equal(_see(backend, cache, 0, rows, shape, one=True)[0], expected)


def test_int8_has_a_scale_for_each_row() -> None:
    """127 steps to the largest magnitude, rounded to nearest even; tiny rows are zeros, rows that are not finite NaN."""
    shape = AttentionShape(1, 1, 8)
    cases: list[tuple[list[float], list[float]]] = [
        ([127, -127, 0.5, 1.5, 2.5, -2.5, 0.49, 100.51], [127, -127, 0, 2, 2, -2, 0, 101]),
        ([254, 1, 3, -1, 5, 0, 0, 0], [254, 0, 4, 0, 4, 0, 0, 0]),
        ([1e-31, 0, 0, 0, 0, 0, 0, 0], [0] * 8),
        ([1, np.inf, 0, 0, 0, 0, 0, 0], [np.nan] * 8),
        ([1, np.nan, 0, 0, 0, 0, 0, 0], [np.nan] * 8),
    ]
    rows = np.zeros((len(cases), 24), np.float32)
    rows[:, 16:] = [given for given, _ in cases]
    expected = np.array([wanted for _, wanted in cases], np.float32)
    for block_size in (3, 16):
        backends: list[Any] = [oracle("float32"), *(device(isa, "float32") for isa in ISAS)]
        for backend in backends:
            cache = backend.kv_cache(spec_of(shape, block_size, "int8"), num_blocks=2, num_host_blocks=0)
            store(backend, cache, 0, rows, np.arange(len(rows), dtype=np.int32), shape)
            np.testing.assert_allclose(_see(backend, cache, 0, rows, shape, one=True), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_a_block_takes_what_the_spec_says(dtype: str) -> None:
    for shape in SHAPES:
        for block_size in (3, 16):
            spec = spec_of(shape, block_size, dtype, layers=3)
            cache = device("auto", "float32").kv_cache(spec, num_blocks=7, num_host_blocks=0)
            assert cache.blocks.num_bytes == 7 * spec.bytes_per_block


DEVICE_BLOCKS, HOST_BLOCKS = 6, 4


def _pairs(sources: int, targets: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(st.integers(0, sources - 1), st.integers(0, targets - 1)), max_size=5)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("block_size", [3, 8, 16])
@settings(max_examples=40)
@given(
    steps=st.lists(
        st.builds(
            BlockCopies,
            swap_out=_pairs(DEVICE_BLOCKS, HOST_BLOCKS),
            swap_in=_pairs(HOST_BLOCKS, DEVICE_BLOCKS),
            copy=_pairs(DEVICE_BLOCKS, DEVICE_BLOCKS),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_copy_blocks_is_the_oracles(dtype: str, block_size: int, steps: list[BlockCopies]) -> None:
    shape = AttentionShape(2, 2, 16)
    seen = []
    for backend in (device("auto", "float32"), oracle("float32")):
        spec = spec_of(shape, block_size, dtype, layers=2)
        cache = backend.kv_cache(spec, num_blocks=DEVICE_BLOCKS, num_host_blocks=HOST_BLOCKS)
        rows = normal(3, DEVICE_BLOCKS * block_size, width_of(shape))
        for layer in range(2):
            slots = np.arange(len(rows), dtype=np.int32)
            store(backend, cache, layer, rows + np.float32(layer), slots, shape)
        for copies in steps:
            backend.ops.copy_blocks(cache, copies)
        seen.append([_see(backend, cache, layer, rows, shape, one=False) for layer in range(2)])
    for actual, expected in zip(*seen, strict=True):
        assert_close(actual, expected, scale=30.0 if dtype == "int8" else 1.0)


def test_copies_run_in_order_out_in_copy() -> None:
    """Block 0 leaves before block 1's old contents come in over it; what came in is what gets copied."""
    shape = AttentionShape(1, 1, 16)
    backend = device("auto", "float32")
    cache = backend.kv_cache(spec_of(shape, 1, "float32"), num_blocks=4, num_host_blocks=2)
    rows = np.repeat(np.arange(4, dtype=np.float32), 48).reshape(4, 48)
    store(backend, cache, 0, rows, np.arange(4, dtype=np.int32), shape)
    backend.ops.copy_blocks(cache, BlockCopies([(1, 1)], [], []))
    backend.ops.copy_blocks(cache, BlockCopies(swap_out=[(0, 0)], swap_in=[(1, 0), (0, 3)], copy=[(0, 2), (3, 1), (1, 0)]))
    values = _see(backend, cache, 0, rows, shape, one=True)[:, 0]
    np.testing.assert_array_equal(values, [0, 0, 1, 0])


def test_finding_pages_changes_nothing() -> None:
    """Also what is stored meanwhile stays."""
    shape = SHAPES[0]
    backend = device(ISAS[0], "float32")
    cache = backend.kv_cache(spec_of(shape, 16, "float32", layers=2), num_blocks=4096, num_host_blocks=0)
    slots = np.arange(0, 4096 * 16, 97, dtype=np.int32)
    rows = normal(1, len(slots), width_of(shape))
    store(backend, cache, 0, rows, slots, shape)
    for _ in range(2):
        cache.find_pages()
        store(backend, cache, 1, rows, slots, shape)
    starts, none = np.arange(len(rows) + 1, dtype=np.int32), np.zeros(0, np.int32)
    batch = Batch(none, none, nowhere(len(rows)), starts, slots % 16 + 1, (slots // 16)[:, None].copy(), none)
    values = rows.reshape(len(rows), -1, shape.head_dim)[:, -shape.num_kv_heads :]
    expected = np.repeat(values, shape.num_heads // shape.num_kv_heads, axis=1).reshape(len(rows), -1)
    for layer in range(2):
        assert_close(np.array(backend.ops.attention(cache, layer, rows, batch, shape, scale=0.2, window=1)), expected)


def test_finding_pages_changes_no_bit_of_what_is_stored() -> None:
    """Of every slot, once all pages have been touched."""
    shape, backend = AttentionShape(2, 2, 64), device(ISAS[0], "float32")
    cache = backend.kv_cache(spec_of(shape, 16, "float32", layers=2), num_blocks=256, num_host_blocks=0)
    rows = normal(1, 256 * 16, width_of(shape))
    for layer in range(2):
        store(backend, cache, layer, rows, np.arange(len(rows), dtype=np.int32), shape)
    before = [_see(backend, cache, layer, rows, shape, one=True) for layer in range(2)]
    cache.find_pages()
    while any(name.read_text() == "octavo-pages\n" for name in Path("/proc/self/task").glob("*/comm")):
        time.sleep(0.01)
    for layer in range(2):
        assert same_bits(_see(backend, cache, layer, rows, shape, one=True), before[layer])
