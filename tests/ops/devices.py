"""Devices under test and comparable inputs for them: every instruction set that this machine can run, and the oracle."""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from octavo import _native
from octavo.backends.base import AttentionShape, Batch, KVCacheSpec
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference import ReferenceBackend

BF16 = np.dtype(ml_dtypes.bfloat16)
ISAS = [*(name for name, (usable, _) in _native.cpu_features().items() if usable), "amx_emulated"]
FIXED = ("avx2", "avx512")
"""Where bf16 weights are multiplied in whole numbers."""
DTYPES = ("bfloat16", "float32")
KV_DTYPES = (*DTYPES, "int8")


@cache
def device(isa: str, dtype: str, threads: int = 2) -> CpuBackend:
    return CpuBackend(compute_dtype=dtype, isa=isa, num_threads=threads)


@cache
def oracle(dtype: str) -> ReferenceBackend:
    return ReferenceBackend(compute_dtype=dtype)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def act(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(BF16 if dtype == "bfloat16" else np.float32)


def assert_close(actual: np.ndarray, expected: np.ndarray, *, scale: float = 1.0) -> None:
    """Equal but for rounding: of the result's own dtype, and of float32 sums of magnitude ``scale``."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    relative = 1.01 * 2.0**-7 if actual.dtype == BF16 else 2e-5
    np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), rtol=relative, atol=1e-5 * scale)


def rounding(isa: str, dtype: str) -> float:
    """``scale`` of products of numbers of magnitude 1, relative to that of float32 sums: whole numbers round more."""
    return 200.0 if isa in FIXED and dtype == "bfloat16" else 1.0


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def make_batch(
    query_lens: list[int], seq_lens: list[int], block_size: int, block_ids: np.ndarray, *, width: int | None = None
) -> Batch:
    """A step in which sequence i computes its last ``query_lens[i]`` tokens; blocks are taken from ``block_ids`` in order."""
    counts = [-(-length // block_size) for length in seq_lens]
    tables = np.full((len(seq_lens), width or max(counts)), -1, np.int32)
    taken = 0
    for row, count in zip(tables, counts, strict=True):
        row[:count] = block_ids[taken : taken + count]
        taken += count
    positions, slots = [], []
    for i, (queries, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        for position in range(length - queries, length):
            positions.append(position)
            slots.append(tables[i, position // block_size] * block_size + position % block_size)
    return Batch(
        input_ids=np.zeros(len(positions), np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int32),
        query_start=np.cumsum([0, *query_lens], dtype=np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        block_tables=tables,
        logits_rows=np.zeros(0, np.int32),
    )


def spec_of(shape: AttentionShape, block_size: int, dtype: str, *, layers: int = 1) -> KVCacheSpec:
    return KVCacheSpec(layers, shape.num_kv_heads, shape.head_dim, block_size, dtype)


def width_of(shape: AttentionShape) -> int:
    return (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim


def store(
    backend: Any, cache: Any, layer: int, rows: np.ndarray, slots: np.ndarray, shape: AttentionShape, *, alone: bool = False
) -> None:
    """Put k and v of ``rows`` into ``slots`` by a step whose output nobody wants: of one sequence, or of one for each row."""
    kv_heads, n, size = shape.num_kv_heads, len(rows), cache.spec.block_size
    few = np.ascontiguousarray(rows[:, (shape.num_heads - kv_heads) * shape.head_dim :])
    none = np.zeros(0, np.int32)
    starts, lengths = (np.arange(n + 1), np.ones(n)) if alone else (np.array([0, n]), np.array([n]))
    tables = np.zeros((len(lengths), max(1, -(-int(lengths.max(initial=1)) // size))), np.int32)
    batch = Batch(none, none, slots, starts.astype(np.int32), lengths.astype(np.int32), tables, none)
    with np.errstate(all="ignore"):
        backend.ops.attention(cache, layer, few, batch, AttentionShape(kv_heads, kv_heads, shape.head_dim), scale=1.0, window=1)


def nowhere(count: int) -> np.ndarray:
    """Slots of rows that are not to be stored."""
    return np.full(count, -1, np.int32)


def some_allowed(seed: int, rows: int, columns: int) -> np.ndarray:
    """Bits as ``linear_argmax`` and ``sample`` take them: of some rows few, of some most, of some none."""
    rng = np.random.default_rng(seed)
    bits = rng.random((rows, (columns + 31) // 32 * 32)) < rng.choice([0.0, 0.02, 0.5, 0.99, 1.0], (rows, 1))
    return np.packbits(bits, axis=1, bitorder="little").view("<i4")
