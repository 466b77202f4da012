"""Whatever is handed to the native ops, they answer with one line and touch no memory that is not theirs."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.backends.base import AttentionShape, Batch, KVCacheSpec
from octavo.backends.cpu.backend import CpuBackend
from octavo.quant.integer import quantize_int4
from octavo.quant.layouts import Dense
from octavo.step import BlockCopies
from tests.ops.devices import BF16, ISAS, act, device, normal, nowhere, store

SHAPE = AttentionShape(4, 2, 16)
WIDTH = 128
NONE = np.zeros(0, np.int32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def backend_of(isa: str = "auto") -> CpuBackend:
    return device(isa, "float32")


def cache_of(backend: CpuBackend) -> Any:
    return backend.kv_cache(KVCacheSpec(2, 2, 16, 16, "float32"), num_blocks=4, num_host_blocks=3)


def attention(
    b: CpuBackend,
    *,
    rows: int = 3,
    layer: int = 0,
    starts: tuple[int, ...] = (0, 1, 3),
    lengths: tuple[int, ...] = (5, 20),
    tables: Any = ((0, 1), (2, 3)),
    shape: AttentionShape = SHAPE,
    window: int | None = None,
    slots: np.ndarray | None = None,
    wanted: np.ndarray | None = None,
) -> np.ndarray:
    batch = Batch(
        NONE, NONE, nowhere(rows) if slots is None else slots, ints(*starts), ints(*lengths), np.array(tables, np.int32), NONE
    )
    return b.ops.attention(cache_of(b), layer, normal(1, rows, WIDTH), batch, shape, scale=0.2, window=window, rows=wanted)


def copy(b: CpuBackend, **pairs: list[tuple[int, int]]) -> None:
    b.ops.copy_blocks(cache_of(b), BlockCopies(**{"swap_out": [], "swap_in": [], "copy": [], **pairs}))


def rotary(b: CpuBackend, positions: np.ndarray, *, columns: int = 16, shape: AttentionShape = SHAPE) -> None:
    b.ops.rotary(normal(1, 2, WIDTH), positions, normal(2, 10, columns), shape)


def head_norm(b: CpuBackend, size: int, *, part: str) -> None:
    b.ops.head_norm(normal(1, 2, WIDTH), normal(1, size), SHAPE, part=part, eps=1e-6)


def table(b: CpuBackend) -> Any:
    return b.weight(Dense(normal(1, 40, 24)))


def gates(b: CpuBackend) -> Any:
    return b.weight(Dense(normal(1, 64, 24)), gated=True)


def sample(b: CpuBackend, size: int = 9, **columns: np.ndarray) -> np.ndarray:
    ones = np.ones(2, np.float32)
    values: dict[str, Any] = {"temperature": ones, "top_p": ones, "min_p": ones, "top_k": ints(0, 0)}
    values |= {"seeds": np.zeros(2, np.uint64), "positions": np.zeros(2, np.int64)}
    return b.ops.sample(np.zeros((2, size), np.float32), **{**values, **columns})


OUT_OF_RANGE: list[tuple[str, Callable[[CpuBackend], object]]] = [
    ("token id out of range: values must be in \\[0, 40\\), found 40", lambda b: b.ops.embedding(ints(3, 40), table(b))),
    ("token id out of range: values must be in \\[0, 40\\), found -1", lambda b: b.ops.embedding(ints(3, -1), table(b))),
    ("slot out of range: .* found 64", lambda b: attention(b, slots=ints(0, 1, 64))),
    ("slot out of range: .* found -2", lambda b: attention(b, slots=ints(-2, 0, 1))),
    ("one slot for each row", lambda b: attention(b, slots=ints(0))),
    ("layer out of range", lambda b: attention(b, layer=2)),
    ("another number of kv heads or another head_dim", lambda b: attention(b, shape=AttentionShape(6, 1, 16))),
    ("qkv must have", lambda b: attention(b, shape=AttentionShape(6, 2, 16))),
    ("number of heads must be a multiple", lambda b: attention(b, shape=AttentionShape(3, 2, 16))),
    ("head_dim must be a multiple of 8", lambda b: attention(b, shape=AttentionShape(4, 2, 20))),
    ("block id out of range in block_tables", lambda b: attention(b, tables=((0, 1), (2, 4)))),
    ("block id out of range in block_tables", lambda b: attention(b, tables=((-1, 1), (2, 3)))),
    ("must run from 0 to the number of rows", lambda b: attention(b, starts=(0, 1, 4))),
    ("must run from 0 to the number of rows", lambda b: attention(b, starts=(1, 1, 3))),
    ("query_start must not decrease", lambda b: attention(b, starts=(0, 4, 3), lengths=(5, 20))),
    ("one value more than seq_lens", lambda b: attention(b, starts=(0, 3))),
    ("one row of block_tables for each", lambda b: attention(b, tables=((0, 1),))),
    ("cannot be shorter than its queries", lambda b: attention(b, lengths=(5, 1))),
    ("block table is too short", lambda b: attention(b, lengths=(5, 33))),
    ("layer out of range", lambda b: attention(b, layer=-1)),
    ("window must be positive", lambda b: attention(b, window=0)),
    ("row out of range: .* found 3", lambda b: attention(b, wanted=ints(0, 3))),
    ("row out of range: .* found -1", lambda b: attention(b, wanted=ints(-1))),
    ("rows must ascend", lambda b: attention(b, wanted=ints(1, 1))),
    ("source block out of range: .* found 4", lambda b: copy(b, swap_out=[(4, 0)])),
    ("target block out of range: .* found 3", lambda b: copy(b, swap_out=[(0, 0), (0, 3)])),
    ("source block out of range: .* found 3", lambda b: copy(b, swap_in=[(3, 0)])),
    ("target block out of range: .* found -1", lambda b: copy(b, copy=[(0, -1)])),
    ("position out of range: .* found 10", lambda b: rotary(b, ints(0, 10))),
    ("position out of range: .* found -1", lambda b: rotary(b, ints(0, -1))),
    ("one position for each row", lambda b: rotary(b, ints(0))),
    ("cos_sin must have head_dim columns", lambda b: rotary(b, ints(0, 0), columns=8)),
    ("row out of range: .* found 5", lambda b: b.ops.gather_rows(normal(1, 5, 3), ints(5))),
    ("row out of range: .* found -1", lambda b: b.ops.gather_rows(normal(1, 5, 3), ints(-1))),
    ("chosen token out of range", lambda b: b.ops.top_logprobs(normal(1, 1, 9), ints(9), 2)),
    ("number of log-probabilities out of range", lambda b: b.ops.top_logprobs(normal(1, 1, 9), ints(0), 10)),
    ("number of log-probabilities out of range", lambda b: b.ops.top_logprobs(normal(1, 1, 9), ints(0), -1)),
    ("one chosen token for each row", lambda b: b.ops.top_logprobs(normal(1, 2, 9), ints(0), 1)),
    ("argmax: there are no logits", lambda b: b.ops.argmax(np.zeros((2, 0), np.float32))),
    ("sample: there are no logits", lambda b: sample(b, 0)),
    ("every parameter must have one value for each row", lambda b: sample(b, top_k=ints(1))),
    ("allowed must have a bit for each logit", lambda b: sample(b, 33, allowed=np.zeros((2, 1), np.int32))),
    ("allowed must have a row for each row", lambda b: sample(b, allowed=np.zeros((1, 1), np.int32))),
    (
        "allowed must have a bit for each logit",
        lambda b: b.ops.linear_argmax(normal(1, 2, 24), table(b), np.zeros((2, 3), np.int32)),
    ),
    ("x must have one column for each input", lambda b: b.ops.linear(normal(1, 2, 23), table(b))),
    ("bias must have one value", lambda b: b.ops.linear(normal(1, 2, 24), table(b), bias=normal(1, 39))),
    ("bias must have one value", lambda b: b.ops.linear(normal(1, 2, 24), table(b), bias=normal(1, 41))),
    ("residual must have the shape", lambda b: b.ops.linear(normal(1, 2, 24), table(b), residual=normal(1, 1, 40))),
    (
        "packed by a device of another compute dtype",
        lambda b: b.ops.linear(normal(1, 2, 24), table(device("auto", "bfloat16"))),
    ),
    ("weight must have one value for each column", lambda b: b.ops.rms_norm(normal(1, 2, 24), normal(1, 23), eps=1e-6)),
    (
        "weight must have head_dim values",
        lambda b: head_norm(b, 8, part="q"),
    ),
    ('part must be "q" or "k"', lambda b: head_norm(b, 16, part="v")),
    ("x must have one column for each input", lambda b: b.ops.gated_linear(normal(1, 2, 23), gates(b))),
    ("bias must have one value", lambda b: b.ops.gated_linear(normal(1, 2, 24), gates(b), bias=normal(1, 32))),
    ("linear: the weight was packed for gated_linear", lambda b: b.ops.linear(normal(1, 2, 24), gates(b))),
    ("embedding: the table was packed for gated_linear", lambda b: b.ops.embedding(ints(0), gates(b))),
    ("linear_argmax: the weight was packed for gated_linear", lambda b: b.ops.linear_argmax(normal(1, 2, 24), gates(b))),
    ("x must have one column for each input", lambda b: b.ops.linear_argmax(normal(1, 2, 23), table(b))),
    ("the weight was packed for linear", lambda b: b._device.gated_linear(normal(1, 2, 24), table(b), None)),
    ("multiple of 64 rows", lambda b: b._device.pack([normal(1, 96, 24)], gated=True)),
    ("the same columns and dtype", lambda b: b._device.pack([normal(1, 3, 24), normal(1, 3, 23)])),
    ("the same columns and dtype", lambda b: b._device.pack([normal(1, 3, 24), act(normal(1, 3, 24), "bfloat16")])),
    (
        "packed by a device of another compute dtype",
        lambda b: b.ops.gated_linear(normal(1, 2, 24), gates(device("auto", "bfloat16"))),
    ),
    ("even number of columns", lambda b: b.ops.silu_and_mul(normal(1, 2, 9))),
]


@pytest.mark.parametrize(("message", "call"), OUT_OF_RANGE)
def test_a_value_error_names_what_is_wrong(message: str, call: Callable[[CpuBackend], object]) -> None:
    with pytest.raises(ValueError, match=message):
        call(backend_of())


@pytest.mark.parametrize("packer", ISAS)
@pytest.mark.parametrize("isa", ISAS)
def test_a_weight_of_other_kernels_is_read_or_refused(isa: str, packer: str) -> None:
    """Only kernels that would make them can read compact blocks and pairs of groups."""
    own, other = (CpuBackend(isa=name, num_threads=1, tuning="zen4") for name in (isa, packer))
    x, ids = act(normal(1, 3, 256), "bfloat16"), ints(1, 2)
    table = Dense(act(normal(2, 2048, 256), "bfloat16"))
    wide, gated = other.weight(table), other.weight(Dense(act(normal(3, 128, 256), "bfloat16")), gated=True)
    four = other.weight(quantize_int4(normal(4, 96, 256)))
    assert isinstance(wide, _native.PackedWeight) and isinstance(four, _native.IntegerWeight)
    fits = _native.compact_of(wide) is None or own.packing.split()[-1] == other.packing.split()[-1]
    assert (_native.compact_of(wide) is not None) == other.packing.endswith(("compact", "fixed"))
    refused = pytest.raises(ValueError, match="the weight was packed for other kernels")
    with nullcontext() if fits else refused:
        np.testing.assert_allclose(own.ops.linear(x, wide), own.ops.linear(x, own.weight(table)), atol=0.5)
    for use in (
        lambda: own.ops.linear_argmax(x, wide),
        lambda: own.ops.embedding(ids, wide),
        lambda: own.ops.gated_linear(x, gated),
        lambda: own.shortlist(wide),
    ):
        with nullcontext() if fits else refused:
            use()
    with nullcontext() if not four.paired or "paired" in own.packing else refused:
        own.ops.linear(x, four)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block_size", [3, 16])
@pytest.mark.parametrize("threads", [1, 2])
def test_no_block_id_reads_beyond_the_cache(isa: str, block_size: int, threads: int) -> None:
    """Wherever it stands, in whichever partition, on whichever thread; but an id that no row needs is not looked at."""
    b = device(isa, "float32", threads)
    blocks = -(-1300 // block_size)
    cache = b.kv_cache(KVCacheSpec(1, 2, 16, block_size, "float32"), num_blocks=blocks, num_host_blocks=0)
    rows = normal(1, 2, WIDTH)
    for place, bad in ((0, -1), (blocks // 2, blocks), (blocks - 1, 2**31 - 1), (blocks // 3, -(2**31))):
        tables = np.arange(blocks, dtype=np.int32)[None].copy()
        tables[0, place] = bad
        batch = Batch(NONE, NONE, nowhere(2), ints(0, 2), ints(1300), tables, NONE)
        with pytest.raises(ValueError, match="block id out of range in block_tables"):
            b.ops.attention(cache, 0, rows, batch, SHAPE, scale=0.2, window=None)
        seen = (1299 - 40) // block_size <= place
        if not seen:
            b.ops.attention(cache, 0, rows, batch, SHAPE, scale=0.2, window=40)


WRONG_TYPES: list[tuple[str, Callable[[CpuBackend], object]]] = [
    ("ids must be a C-contiguous int32 array of 1 dimension", lambda b: b.ops.embedding(np.zeros(2, np.int64), table(b))),
    ("ids must be .* int32", lambda b: b.ops.embedding(np.zeros((2, 1), np.int32), table(b))),
    ("ids must be", lambda b: b.ops.embedding(np.zeros(4, np.int32)[::2], table(b))),
    ("ids must be", lambda b: b.ops.embedding([1, 2], table(b))),  # type: ignore[arg-type]
    ("ids must be .* array", lambda b: b.ops.embedding(np.zeros(2, ">i4"), table(b))),
    ("x must be a C-contiguous float32 array of 2 dimensions", lambda b: b.ops.linear(np.zeros((2, 24), BF16), table(b))),
    ("x must be .* float32", lambda b: b.ops.rms_norm(np.zeros((2, 8)), normal(1, 8), eps=1e-6)),
    ("qkv must be .* float32", lambda b: b.ops.rotary(np.zeros((2, WIDTH), np.int32), ints(0, 0), normal(2, 9, 16), SHAPE)),
    ("slot_mapping must be .* int32", lambda b: attention(b, slots=np.zeros(3, np.int64))),
    ("rows must be .* int32", lambda b: attention(b, wanted=np.zeros(1, np.int64))),
    ("logits must be", lambda b: b.ops.argmax(np.zeros((4, 4), np.float32).T[:2])),
    ("seeds must be a C-contiguous uint64 array", lambda b: sample(b, seeds=np.zeros(2, np.int64))),
    ("gate_up must be", lambda b: b.ops.silu_and_mul(np.zeros(8, np.float32))),
    ("weight must be .* float32", lambda b: b._device.pack([np.zeros((4, 4), np.float16)])),
]


@pytest.mark.parametrize(("message", "call"), WRONG_TYPES)
def test_a_type_error_names_what_is_expected(message: str, call: Callable[[CpuBackend], object]) -> None:
    with pytest.raises(TypeError, match=message):
        call(backend_of())


def test_what_may_not_be_written_is_refused() -> None:
    qkv, residual = normal(1, 2, WIDTH), normal(1, 2, 40)
    qkv.flags.writeable = residual.flags.writeable = False
    b = backend_of()
    with pytest.raises(TypeError, match="qkv must be writeable"):
        b.ops.rotary(qkv, ints(0, 0), normal(2, 9, 16), SHAPE)
    with pytest.raises(TypeError, match="residual must be writeable"):
        b.ops.linear(normal(1, 2, 24), table(b), residual=residual)


def test_a_refused_copy_has_copied_nothing() -> None:
    b = backend_of()
    cache = cache_of(b)
    rows = normal(1, 64, WIDTH)
    store(b, cache, 0, rows, np.arange(64, dtype=np.int32), SHAPE)
    batch = Batch(NONE, NONE, nowhere(1), ints(0, 1), ints(16), np.array([[1]], np.int32), NONE)

    def see() -> np.ndarray:
        return np.array(b.ops.attention(cache, 0, rows[:1], batch, SHAPE, scale=0.2, window=None))

    before = see()
    with pytest.raises(ValueError, match="target block"):
        b.ops.copy_blocks(cache, BlockCopies([], [], [(0, 1), (0, 9)]))
    np.testing.assert_array_equal(see(), before)


GOOD_BLOCKS: dict[str, Any] = {
    "num_layers": 1,
    "num_blocks": 2,
    "num_host_blocks": 0,
    "num_kv_heads": 1,
    "head_dim": 64,
    "block_size": 16,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize(
    "bad",
    [
        {"head_dim": 12}, {"head_dim": 0}, {"head_dim": 264}, {"head_dim": -8}, {"block_size": 0}, {"block_size": 65537},
        {"block_size": -1}, {"num_kv_heads": 0}, {"num_blocks": -1}, {"num_layers": -1}, {"num_blocks": 2**62},
        {"num_host_blocks": -5}, {"num_blocks": 2**40, "num_layers": 2**40}, {"dtype": "int4"},
    ],
    ids=str,
)  # fmt: skip
def test_senseless_caches_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"size out of range|block size|head_dim|kv head|KV cache's dtype"):
        _native.KVBlocks(**{**GOOD_BLOCKS, **bad})


def test_unknown_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="compute_dtype must be one of bfloat16, float32, not 'float16'"):
        CpuBackend(compute_dtype="float16", num_threads=1)
    with pytest.raises(ValueError, match="KV cache dtype must be one of bfloat16, float32, int8, not 'int4'"):
        backend_of().kv_cache(KVCacheSpec(1, 1, 64, 16, "int4"), num_blocks=1, num_host_blocks=0)


def test_steps_of_nothing_are_nothing_special() -> None:
    b = backend_of()
    batch = Batch(NONE, NONE, NONE, ints(0), NONE, np.zeros((0, 1), np.int32), NONE)
    assert b.ops.attention(cache_of(b), 0, normal(1, 0, WIDTH), batch, SHAPE, scale=1.0, window=None).shape == (0, 64)
    assert b.ops.argmax(np.zeros((0, 5), np.float32)).shape == (0,)
    assert b.ops.gather_rows(normal(1, 3, 4), NONE).shape == (0, 4)
    store(b, cache_of(b), 0, normal(1, 0, WIDTH), NONE, SHAPE)
    copy(b)
