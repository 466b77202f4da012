"""Attention over paged keys and values: against the oracle, and bitwise in any batch, any chunks, any blocks, on any threads.

Every slot of a cache is NaN until a sequence's own token is written there, so that a read of anything else shows.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native
from octavo.backends.base import AttentionShape, Batch
from octavo.backends.cpu.backend import CpuBackend
from tests.ops.devices import (
    DTYPES,
    ISAS,
    KV_DTYPES,
    act,
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

DEVICES = [(isa, dtype) for isa in ISAS for dtype in DTYPES]
CACHES = [*(("float32", kv_dtype) for kv_dtype in KV_DTYPES), ("bfloat16", "bfloat16")]
"""Dtypes of results and of the cache."""
MULTIPLY_PAIRS = ("avx512_bf16", "amx", "amx_emulated")
"""Where results and the cache are bfloat16: queries and weights are, too."""
SPARE_BLOCKS = 3


@dataclass(frozen=True)
class Chunk:
    """The rows ``[start, end)`` of a sequence, computed when it is ``end`` tokens long."""

    sequence: int
    start: int
    end: int


@cache
def rows_of(shape: AttentionShape, seed: int, length: int, rise: float) -> np.ndarray:
    rows = normal(seed, length, width_of(shape))
    if rise:
        heads = rows.reshape(len(rows), -1, shape.head_dim)
        queries, keys, _ = np.split(heads, np.cumsum([shape.num_heads, shape.num_kv_heads]), axis=1)
        queries[..., 0] = shape.head_dim**0.5
        keys[..., 0] = rise * (np.arange(len(rows)) // 64 - len(rows) // 64)[:, None]
    rows.setflags(write=False)
    return rows


@dataclass(frozen=True)
class Paged:
    """Sequences whose keys and values lie in blocks in random order; ``shift`` is added to every block's id."""

    shape: AttentionShape
    block_size: int
    kv_dtype: str
    lengths: tuple[int, ...]
    window: int | None = None
    seed: int = 0
    shift: int = 0
    rise: float = 0.0
    """What a score gains every 64 positions."""

    def rows(self, sequence: int) -> np.ndarray:
        return rows_of(self.shape, self.seed + sequence, self.lengths[sequence], self.rise)

    def tables(self) -> np.ndarray:
        counts = [-(-length // self.block_size) for length in self.lengths]
        blocks = sum(counts) + SPARE_BLOCKS
        ids = (np.random.default_rng(self.seed).permutation(blocks) + self.shift) % blocks
        tables = np.full((len(counts), max(counts)), -1, np.int32)
        for row, count, taken in zip(tables, counts, np.cumsum([0, *counts[:-1]]), strict=True):
            row[:count] = ids[taken : taken + count]
        return tables

    def slots(self, sequence: int, start: int, end: int) -> np.ndarray:
        positions = np.arange(start, end)
        table = self.tables()[sequence]
        slots: np.ndarray = table[positions // self.block_size] * self.block_size + positions % self.block_size
        return slots.astype(np.int32)

    def filled_cache(self, backend: Any) -> Any:
        blocks = int((self.tables() >= 0).sum()) + SPARE_BLOCKS
        cache = backend.kv_cache(
            spec_of(self.shape, self.block_size, self.kv_dtype, layers=2), num_blocks=blocks, num_host_blocks=0
        )
        slots = np.arange(blocks * self.block_size, dtype=np.int32)
        for layer in range(2):
            poison = np.full((len(slots), width_of(self.shape)), np.nan, np.float32)
            store(backend, cache, layer, poison, slots, self.shape)
        for i, length in enumerate(self.lengths):
            store(backend, cache, 1, self.rows(i), self.slots(i, 0, length), self.shape)
        return cache

    def attend(self, backend: Any, cache: Any, *chunks: Chunk, storing: bool = False) -> list[np.ndarray]:
        """The result of each chunk, all computed in one step, which may store their keys and values itself."""
        out = self.attend_rows(backend, cache, None, *chunks, storing=storing)
        return np.split(out, np.cumsum([c.end - c.start for c in chunks])[:-1])

    def attend_rows(
        self, backend: Any, cache: Any, wanted: np.ndarray | None, *chunks: Chunk, storing: bool = False
    ) -> np.ndarray:
        starts = np.cumsum([0, *(c.end - c.start for c in chunks)], dtype=np.int32)
        none = np.zeros(0, np.int32)
        lengths = np.array([c.end for c in chunks], np.int32)
        tables = self.tables()[[c.sequence for c in chunks]]
        slots = [self.slots(c.sequence, c.start, c.end) if storing else nowhere(c.end - c.start) for c in chunks]
        batch = Batch(none, none, np.concatenate(slots), starts, lengths, tables, none)
        rows = np.concatenate([self.rows(c.sequence)[c.start : c.end] for c in chunks])
        scale = self.shape.head_dim**-0.5
        out = backend.ops.attention(cache, 1, rows, batch, self.shape, scale=scale, window=self.window, rows=wanted)
        return np.array(out)

    def last_rows(self, *counts: int) -> list[Chunk]:
        return [
            Chunk(i, length - min(length, n), length) for i, (length, n) in enumerate(zip(self.lengths, counts, strict=True))
        ]


@cache
def attend_by_oracle(paged: Paged, chunks: tuple[Chunk, ...]) -> list[np.ndarray]:
    """Of sequences, wherever they lie: the definition knows no blocks."""
    return paged.attend(oracle("float32"), paged.filled_cache(oracle("float32")), *chunks)


def check_against_oracle(paged: Paged, isa: str, dtype: str, chunks: list[Chunk]) -> None:
    expected = attend_by_oracle(replace(paged, block_size=16), tuple(chunks))
    actual = paged.attend(device(isa, dtype), paged.filled_cache(device(isa, dtype)), *chunks)
    for a, b in zip(actual, expected, strict=True):
        assert np.isfinite(a.astype(np.float32)).all()
        if isa in MULTIPLY_PAIRS and dtype == paged.kv_dtype == "bfloat16":
            check_rounded(paged.shape, a, b)
        else:
            whole_numbers = paged.kv_dtype == "int8"  # queries and weights in 16 bits
            assert_close(a, act(b, dtype), scale=1.0 if dtype == "float32" and not whole_numbers else 30.0)


def check_rounded(shape: AttentionShape, actual: np.ndarray, expected: np.ndarray) -> None:
    """Queries and weights in bfloat16 change a part of what a head's result typically is, however many positions it is a mean
    of."""
    a, b = (x.astype(np.float32).reshape(len(x), shape.num_heads, shape.head_dim) for x in (actual, expected))
    typical = np.sqrt(np.mean(b**2, axis=2, keepdims=True))
    np.testing.assert_array_less(np.abs(a - b), 0.03 * typical + 2.0**-7 * np.abs(b) + 1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), CACHES)
@pytest.mark.parametrize("head_dim", [40, 64, 128])
@pytest.mark.parametrize("block_size", [1, 3, 4, 8, 16, 24, 256])
def test_every_layout_of_blocks(isa: str, block_size: int, head_dim: int, dtype: str, kv_dtype: str) -> None:
    """Contexts of several partitions, a prefill among decodes, with windows that begin anywhere."""
    for window in (None, 37, 600):
        paged = Paged(AttentionShape(6, 2, head_dim), block_size, kv_dtype, (1100, 20, 513), window)
        check_against_oracle(paged, isa, dtype, paged.last_rows(1, 20, 5))


@pytest.mark.parametrize("isa", ISAS)
def test_int8_gives_the_same_bits_by_any_dot_products(isa: str) -> None:
    """Those that the instruction set has, and those that only go with its integer products."""
    paged = Paged(AttentionShape(6, 2, 64), 16, "int8", (1100, 20, 513), 600)
    results = []
    for kernels in _native.integer_kernels(isa):
        backend = CpuBackend(compute_dtype="float32", isa=isa, num_threads=2, integer_kernels=kernels)
        results.append(np.concatenate(paged.attend(backend, paged.filled_cache(backend), *paged.last_rows(1, 20, 5))))
    assert len({result.tobytes() for result in results}) == 1


SHAPES = st.builds(
    lambda group, kv_heads, head_dim: AttentionShape(group * kv_heads, kv_heads, head_dim),
    st.sampled_from([1, 2, 3, 4, 5, 7, 8, 49]),
    st.integers(1, 3),
    st.sampled_from([8, 16, 24, 40, 64, 80, 128]),
)
LENGTHS = st.one_of(st.integers(1, 150), st.sampled_from([511, 512, 513, 1024, 1030]))
PAGED = st.builds(
    Paged,
    shape=SHAPES,
    block_size=st.sampled_from([1, 3, 4, 5, 8, 12, 16, 24, 32, 48, 256]),
    kv_dtype=st.sampled_from(KV_DTYPES),
    lengths=st.lists(LENGTHS, min_size=1, max_size=3).map(tuple),
    window=st.one_of(st.none(), st.sampled_from([1, 2, 15, 64, 65, 511, 600])),
    seed=st.integers(0, 2**32),
)


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=12)
@given(paged=PAGED, data=st.data())
def test_attention_is_its_definition(isa: str, dtype: str, paged: Paged, data: st.DataObject) -> None:
    counts = [data.draw(st.integers(1, min(length, 30))) for length in paged.lengths]
    check_against_oracle(paged, isa, dtype, paged.last_rows(*counts))


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=12)
@given(paged=PAGED, data=st.data())
def test_a_row_is_the_same_bits_in_any_step(isa: str, dtype: str, paged: Paged, data: st.DataObject) -> None:
    """Alone, among others, in chunks cut anywhere, on one thread and on several (which cut long sequences into partitions)."""
    sequence = data.draw(st.integers(0, len(paged.lengths) - 1))
    length = paged.lengths[sequence]
    start = data.draw(st.integers(max(0, length - 60), length - 1))
    cut = data.draw(st.integers(start, length))
    row = data.draw(st.integers(start, length - 1))
    one, two, three = (device(isa, dtype, threads) for threads in (1, 2, 3))
    caches = {backend.num_threads: paged.filled_cache(backend) for backend in (one, two, three)}
    whole = Chunk(sequence, start, length)
    [expected] = paged.attend(one, caches[1], whole)
    others = [chunk for chunk in paged.last_rows(*(33 for _ in paged.lengths)) if chunk.sequence != sequence]
    for backend in (one, two, three):

        def run(*chunks: Chunk, backend: CpuBackend = backend) -> list[np.ndarray]:
            return paged.attend(backend, caches[backend.num_threads], *chunks)

        assert same_bits(run(*others, whole)[-1], expected), "among others"
        parts = [Chunk(sequence, a, b) for a, b in ((start, cut), (cut, length)) if a < b]
        assert same_bits(np.concatenate([run(part)[0] for part in parts]), expected), "in chunks"
        alone = run(Chunk(sequence, row, row + 1))[0]
        assert same_bits(alone, expected[row - start : row - start + 1]), "alone"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), CACHES)
@pytest.mark.parametrize("block_size", [3, 4, 8, 16, 24, 32])
@pytest.mark.parametrize("window", [None, 20])
def test_a_step_may_store_what_it_sees(isa: str, dtype: str, kv_dtype: str, block_size: int, window: int | None) -> None:
    """The bits are those of keys and values that were stored before; single rows among many, also where contexts are cut."""
    lengths = (5, 1100, 1, 700, 64, 16)
    paged = Paged(AttentionShape(6, 2, 64), block_size, kv_dtype, lengths, window)
    chunks = paged.last_rows(1, 1, 1, 33, 20, 1)
    for threads in (1, 2):
        backend = device(isa, dtype, threads)
        before = paged.filled_cache(backend)
        expected = paged.attend(backend, before, *chunks)
        later = paged.filled_cache(backend)
        for i, chunk in enumerate(chunks):
            slots = paged.slots(i, chunk.start, chunk.end)
            store(backend, later, 1, np.full((len(slots), width_of(paged.shape)), np.nan, np.float32), slots, paged.shape)
        for storing in (True, False):
            for a, b in zip(paged.attend(backend, later, *chunks, storing=storing), expected, strict=True):
                assert same_bits(a, b)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), CACHES)
@pytest.mark.parametrize("window", [None, 40])
def test_some_rows_alone(isa: str, dtype: str, kv_dtype: str, window: int | None) -> None:
    """They are the same bits as among all, and what is stored is the same."""
    paged = Paged(AttentionShape(6, 2, 64), 16, kv_dtype, (1200, 40, 90, 7, 33), window)
    chunks = paged.last_rows(70, 1, 30, 1, 33)
    last, random = np.array([69, 70, 100, 101, 134]), np.random.default_rng(7)
    some = np.flatnonzero(random.random(135) < 0.4)
    for threads in (1, 2):
        backend = device(isa, dtype, threads)
        expected = np.concatenate(paged.attend(backend, paged.filled_cache(backend), *chunks))
        for wanted in (np.arange(0), last[:1], last[-1:], last, np.arange(30, 68), some, np.arange(135)):
            cache = paged.filled_cache(backend)
            for chunk in chunks:
                slots = paged.slots(chunk.sequence, chunk.start, chunk.end)
                store(backend, cache, 1, np.full((len(slots), width_of(paged.shape)), np.nan, np.float32), slots, paged.shape)
            actual = paged.attend_rows(backend, cache, wanted.astype(np.int32), *chunks, storing=True)
            assert same_bits(actual, expected[wanted])
            assert same_bits(np.concatenate(paged.attend(backend, cache, *chunks)), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), CACHES)
def test_neither_block_ids_nor_block_size_matter(isa: str, dtype: str, kv_dtype: str) -> None:
    paged = Paged(AttentionShape(4, 2, 64), 16, kv_dtype, (700, 90))
    chunks = paged.last_rows(3, 90)
    backend = device(isa, dtype)
    expected = paged.attend(backend, paged.filled_cache(backend), *chunks)
    for block_size in (1, 3, 4, 8, 12, 16, 24, 32, 256):
        for shift in (0, 1):
            other = replace(paged, block_size=block_size, shift=shift)
            for a, b in zip(other.attend(backend, other.filled_cache(backend), *chunks), expected, strict=True):
                assert same_bits(a, b)


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@pytest.mark.parametrize("block_size", [3, 4, 8, 16])
@pytest.mark.parametrize("window", [1, 40, 520])
def test_what_lies_outside_the_window_or_ahead_cannot_matter(isa: str, dtype: str, block_size: int, window: int) -> None:
    paged = Paged(AttentionShape(4, 2, 64), block_size, "bfloat16", (1200,), window)
    backend = device(isa, dtype)
    cache = paged.filled_cache(backend)
    chunk = Chunk(0, 1090, 1100)
    [expected] = paged.attend(backend, cache, chunk)
    assert np.isfinite(expected.astype(np.float32)).all()
    unseen = np.concatenate([paged.slots(0, 0, 1091 - window), paged.slots(0, 1100, 1200)])
    poison = np.full((len(unseen), width_of(paged.shape)), np.nan, np.float32)
    store(backend, cache, 1, poison, unseen, paged.shape)
    [actual] = paged.attend(backend, cache, chunk)
    assert same_bits(actual, expected)


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_a_row_of_nan_spoils_no_neighbour(isa: str, dtype: str, kv_dtype: str) -> None:
    paged = Paged(AttentionShape(4, 2, 64), 16, kv_dtype, (600, 600))
    backend = device(isa, dtype)
    cache = paged.filled_cache(backend)
    expected = paged.attend(backend, cache, *paged.last_rows(12, 12))[0]
    store(backend, cache, 1, np.full((600, width_of(paged.shape)), np.nan, np.float32), paged.slots(1, 0, 600), paged.shape)
    actual = paged.attend(backend, cache, *paged.last_rows(12, 12))
    assert same_bits(actual[0], expected)
    assert np.isnan(actual[1].astype(np.float32)).all()


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("part", [slice(4 * 64, 6 * 64), slice(6 * 64, 8 * 64)], ids=["keys", "values"])
def test_what_is_not_finite_spoils_only_rows_that_see_it(
    isa: str, dtype: str, window: int | None, value: float, kv_dtype: str, part: slice
) -> None:
    paged = Paged(AttentionShape(4, 2, 64), 16, kv_dtype, (600,), window)
    backend = device(isa, dtype)
    cache = paged.filled_cache(backend)
    chunk = Chunk(0, 564, 600)
    [expected] = paged.attend(backend, cache, chunk)
    for position in (575, 582):
        spoilt = paged.rows(0)[position : position + 1].copy()
        spoilt[:, part] = value
        store(backend, cache, 1, spoilt, paged.slots(0, position, position + 1), paged.shape)
        sees = (np.arange(564, 600) >= position) & (np.arange(564, 600) < position + (window or 600))
        [actual] = paged.attend(backend, cache, chunk)
        assert same_bits(actual[~sees], expected[~sees])
        assert not np.isfinite(actual[sees].astype(np.float32)).any()
        store(backend, cache, 1, paged.rows(0)[position : position + 1], paged.slots(0, position, position + 1), paged.shape)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_a_query_of_nan_spoils_its_own_row_only(kv_dtype: str) -> None:
    paged = Paged(AttentionShape(4, 2, 64), 16, kv_dtype, (600,))
    none = np.zeros(0, np.int32)
    batch = Batch(none, none, nowhere(10), np.array([0, 10], np.int32), np.array([600], np.int32), paged.tables(), none)
    for isa, dtype in DEVICES:
        backend = device(isa, dtype)
        cache = paged.filled_cache(backend)
        rows = paged.rows(0)[590:].copy()
        expected = np.array(backend.ops.attention(cache, 1, rows, batch, paged.shape, scale=0.1, window=None))
        rows[4] = np.nan
        actual = np.array(backend.ops.attention(cache, 1, rows, batch, paged.shape, scale=0.1, window=None))
        assert np.isnan(actual[4].astype(np.float32)).all()
        assert same_bits(np.delete(actual, 4, 0), np.delete(expected, 4, 0))


@pytest.mark.parametrize("isa", ISAS)
def test_scores_far_apart(isa: str) -> None:
    """The largest score may come first or last: what came before shrinks to nothing, or what comes after adds none."""
    shape = AttentionShape(1, 1, 16)
    for best in (0, 63, 64, 600, 1099):
        rows = np.zeros((1100, 48), np.float32)
        rows[:, :16] = 10.0
        rows[best, 16:32] = 10.0
        rows[:, 32:] = np.arange(1100, dtype=np.float32)[:, None] / 8
        backend = device(isa, "float32")
        cache = backend.kv_cache(spec_of(shape, 16, "float32"), num_blocks=69, num_host_blocks=0)
        store(backend, cache, 0, rows, np.arange(1100, dtype=np.int32), shape)
        none = np.zeros(0, np.int32)
        table = np.arange(69, dtype=np.int32)[None]
        batch = Batch(none, none, nowhere(1), np.array([0, 1], np.int32), np.array([1100], np.int32), table, none)
        out = backend.ops.attention(cache, 0, rows[-1:], batch, shape, scale=1.0, window=None)
        np.testing.assert_array_equal(out, np.full((1, 16), best / 8, np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_sum_of_minus_zero_does_not_tell_what_other_rows_see(isa: str, rows: int) -> None:
    """A score far above all before it leaves -0 of negative sums, which values of 0 that only later rows see would make 0."""
    shape, none = AttentionShape(1, 1, 32), np.zeros(0, np.int32)
    qkv = np.zeros((100, 96), np.float32)
    qkv[:, 0] = 1.0
    qkv[64:, 32], qkv[96:, 32] = 300.0, -300.0
    qkv[:64, 64:], qkv[64:96, 64:], qkv[96:, 64:] = -1.0, -0.0, 1.0
    backend = device(isa, "bfloat16")
    cache = backend.kv_cache(spec_of(shape, 16, "bfloat16"), num_blocks=7, num_host_blocks=0)
    store(backend, cache, 0, qkv, np.arange(100, dtype=np.int32), shape)
    ends = (none, none, nowhere(rows), np.array([0, rows], np.int32), np.array([95 + rows], np.int32))
    batch = Batch(*ends, np.arange(7, dtype=np.int32)[None], none)
    out = np.array(backend.ops.attention(cache, 0, qkv[95 : 95 + rows].copy(), batch, shape, scale=1.0, window=None))
    assert same_bits(out[0], np.zeros(32, out.dtype))


@pytest.mark.parametrize("rise", [-3.0, 0.5, 3.0, 7.0, 9.0])
@pytest.mark.parametrize(("dtype", "kv_dtype"), CACHES)
@pytest.mark.parametrize("isa", ISAS)
def test_scores_that_rise(isa: str, dtype: str, kv_dtype: str, rise: float) -> None:
    """By less and by more than may be above what is subtracted from them, within partitions and from one to the next."""
    paged = Paged(AttentionShape(6, 2, 64), 16, kv_dtype, lengths=(1200, 70), rise=rise)
    check_against_oracle(paged, isa, dtype, paged.last_rows(9, 1))


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_the_table_of_a_sequence_without_rows_is_not_followed(block_size: int) -> None:
    """Nobody reads its blocks; what is fetched for the next layer, of which there is one here, must not trust them either."""
    paged = Paged(AttentionShape(4, 2, 64), block_size, "bfloat16", (90,))
    none = np.zeros(0, np.int32)
    tables = np.concatenate([paged.tables(), np.full_like(paged.tables(), 2**31 - 1), np.full_like(paged.tables(), -(2**31))])
    starts, lengths = np.array([0, 1, 1, 1], np.int32), np.array([90, 90, 90], np.int32)
    alone = Batch(none, none, nowhere(1), starts[:2], lengths[:1], tables[:1], none)
    beside = Batch(none, none, nowhere(1), starts, lengths, tables, none)
    for isa in ISAS:
        backend = device(isa, "float32")
        cache = paged.filled_cache(backend)
        store(backend, cache, 0, paged.rows(0), paged.slots(0, 0, 90), paged.shape)
        row = paged.rows(0)[89:]
        expected = np.array(backend.ops.attention(cache, 0, row, alone, paged.shape, scale=0.1, window=None))
        actual = np.array(backend.ops.attention(cache, 0, row, beside, paged.shape, scale=0.1, window=None))
        assert np.isfinite(expected).all()
        assert same_bits(actual, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), CACHES)
def test_what_a_step_stores_at_the_end_of_a_tile(isa: str, dtype: str, kv_dtype: str) -> None:
    """The last position of a tile, of several, and of a partition."""
    paged = Paged(AttentionShape(6, 2, 64), 16, kv_dtype, (64, 128, 512, 1024))
    chunks = paged.last_rows(1, 1, 1, 1)
    for threads in (1, 2):
        backend = device(isa, dtype, threads)
        expected = paged.attend(backend, paged.filled_cache(backend), *chunks)
        cache = paged.filled_cache(backend)
        for chunk in chunks:
            slots, poison = paged.slots(chunk.sequence, chunk.start, chunk.end), np.full((1, width_of(paged.shape)), np.nan)
            store(backend, cache, 1, poison.astype(np.float32), slots, paged.shape)
        for a, b in zip(paged.attend(backend, cache, *chunks, storing=True), expected, strict=True):
            assert same_bits(a, b)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), CACHES)
def test_windows_of_a_unit_that_begin_in_different_partitions(isa: str, dtype: str, kv_dtype: str) -> None:
    """The last row's with a partition, the others' before it; cut into partitions, as on several threads, or not."""
    paged = Paged(AttentionShape(6, 2, 64), 16, kv_dtype, (1100,), window=572)
    one, two = device(isa, dtype, 1), device(isa, dtype, 2)
    [expected], [cut] = (paged.attend(backend, paged.filled_cache(backend), Chunk(0, 1070, 1100)) for backend in (one, two))
    assert same_bits(cut, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("block_size", "head_dim"), [(1, 64), (3, 64), (4, 40), (4, 64), (16, 64)])
def test_blocks_before_the_window_need_not_be_there(isa: str, kv_dtype: str, block_size: int, head_dim: int) -> None:
    paged = Paged(AttentionShape(4, 2, head_dim), block_size, kv_dtype, (300,))
    backend, none = device(isa, "float32"), np.zeros(0, np.int32)
    cache, rows = paged.filled_cache(backend), paged.rows(0)[298:]
    for window in (1, 7, 44, 45, 61):

        def run(tables: np.ndarray, window: int = window) -> np.ndarray:
            ends = (none, none, nowhere(2), np.array([0, 2], np.int32), np.array([300], np.int32))
            batch = Batch(*ends, tables, none)
            return np.array(backend.ops.attention(cache, 1, rows, batch, paged.shape, scale=0.2, window=window))

        freed = paged.tables()
        freed[0, : (299 - window) // block_size] = -1
        assert same_bits(run(freed), run(paged.tables()))


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_number_of_a_query_that_is_not_finite_spoils_its_head(kv_dtype: str, bad: float) -> None:
    paged, none = Paged(AttentionShape(4, 2, 64), 16, kv_dtype, (600,)), np.zeros(0, np.int32)
    batch = Batch(none, none, nowhere(10), np.array([0, 10], np.int32), np.array([600], np.int32), paged.tables(), none)
    for isa in ISAS:
        backend = device(isa, "float32")
        cache, rows = paged.filled_cache(backend), paged.rows(0)[590:].copy()
        expected = np.array(backend.ops.attention(cache, 1, rows, batch, paged.shape, scale=0.1, window=None))
        rows[4, 64 + 5] = bad
        actual = np.array(backend.ops.attention(cache, 1, rows, batch, paged.shape, scale=0.1, window=None))
        assert np.isnan(actual[4, 64:128]).all()
        actual[4, 64:128] = expected[4, 64:128]
        assert same_bits(actual, expected)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa in MULTIPLY_PAIRS])
@pytest.mark.parametrize("window", [None, 33])
def test_pairs_of_positions_are_added_alike_whatever_other_rows_see(isa: str, window: int | None) -> None:
    """Most pairs are large numbers that cancel out: the positive one leaves fewer bits of a sum, if it comes first."""
    shape, none, backend = AttentionShape(4, 2, 64), np.zeros(0, np.int32), device(isa, "bfloat16")
    rows = normal(1, 100, width_of(shape))
    rows[:, : 4 * 64] = 0
    pairs = rows[:, 6 * 64 :].reshape(50, 2, -1)
    large = np.arange(50) % 3 > 0
    pairs[large, 0] = 2.0**20
    pairs[large, 1] = -pairs[large, 0]
    cache = backend.kv_cache(spec_of(shape, 16, "bfloat16"), num_blocks=7, num_host_blocks=0)
    store(backend, cache, 0, rows, np.arange(100, dtype=np.int32), shape)

    def attend(begin: int, end: int) -> np.ndarray:
        ends = (none, none, nowhere(end - begin), np.array([0, end - begin], np.int32), np.array([end], np.int32))
        batch = Batch(*ends, np.arange(7, dtype=np.int32)[None], none)
        return np.array(backend.ops.attention(cache, 0, rows[begin:end].copy(), batch, shape, scale=0.1, window=window))

    alone = np.concatenate([attend(row, row + 1) for row in range(40, 100)])
    for begin in (40, 41):
        assert same_bits(attend(begin, 100), alone[begin - 40 :])
