"""What ops have to move and to compute, counted another way; and what each is for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.base import AttentionShape, KVCacheSpec
from octavo.bench.roofline.timed import Call
from octavo.bench.roofline.work import Precision, Work, kinds_of, work_of

SHAPE = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=8)
CACHES = [
    SimpleNamespace(spec=KVCacheSpec(3, SHAPE.num_kv_heads, SHAPE.head_dim, 4, dtype))
    for dtype in ("float32", "bfloat16", "int8")
]


def call(op: str, *arguments: Any, result: Any = None, **keywords: Any) -> Call:
    return Call(op, arguments, keywords, result)


@pytest.mark.parametrize(
    ("bits", "dtype", "activation_bits", "arithmetic", "dots"),
    [
        (16, "bfloat16", 16, "bf16", 1),
        (32, "float32", 16, "fp32", 1),
        (9, "bfloat16", 8, "int8", 1),
        (5, "float32", 8, "int8", 1),
        (5, "float32", 16, "int8", 2),
    ],
)
def test_a_product(bits: int, dtype: str, activation_bits: int, arithmetic: str, dots: int) -> None:
    weight = SimpleNamespace(rows=64, columns=32, num_bytes=64 * 32 * bits // 8)
    x, out = np.zeros((3, 32), np.float32), np.zeros((3, 64), np.float32)
    found = work_of(call("linear", x, weight, residual=out, result=out), Precision(dtype, activation_bits))
    assert found == Work(weight.num_bytes, x.nbytes + 2 * out.nbytes, dots * 2 * 3 * 64 * 32, arithmetic)


@pytest.mark.parametrize(
    ("rows", "copied", "expected"),
    [
        (3, 17 * 64 * 2, (17 * 64 * 2, 1, "int8")),  # bytes of a copy
        (3, 0, (20 * 64, 1, "int8")),  # or its own, with fewer dots
        (2, 0, (20 * 64, 2, "int8")),  # not for so few
    ],
)
def test_the_largest_of_a_product(rows: int, copied: int, expected: tuple[int, int, str]) -> None:
    shortlist = SimpleNamespace(num_bytes=copied, levels=1, takes=lambda rows: rows > 2)
    weight = SimpleNamespace(rows=64, columns=32, num_bytes=20 * 64, shortlists=[shortlist])
    x, out = np.zeros((rows, 32), np.float32), np.zeros(rows, np.int32)
    found = work_of(call("linear_argmax", x, weight, result=out), Precision("bfloat16", 16))
    streamed, dots, arithmetic = expected
    assert found == Work(streamed, x.nbytes + out.nbytes, dots * 2 * rows * 64 * 32, arithmetic)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(0, 5)),
)
def test_attention(sequences: list[tuple[int, int]], window: int | None, last: int | None) -> None:
    """Against positions counted one by one."""
    rows = [count for count, _ in sequences]
    batch = SimpleNamespace(
        query_start=np.concatenate([[0], np.cumsum(rows)]).astype(np.int32),
        seq_lens=np.array([count + before for count, before in sequences], np.int32),
    )
    qkv, out = np.zeros((sum(rows), 80), np.float32), np.zeros((sum(rows), 48), np.float32)
    wanted = None
    if last is not None:  # of each sequence
        ends = np.cumsum(rows)
        wanted = np.concatenate([np.arange(end - min(last, count), end) for end, count in zip(ends, rows, strict=True)])
        out = out[: len(wanted)]
    pairs, read = 0, 0
    for count, before in sequences:
        ends_of = range(before + 1 + (0 if last is None else max(0, count - last)), before + count + 1)
        seen = [range(max(0, end - (window or end)), end) for end in ends_of]
        pairs += sum(map(len, seen))
        read += len(set().union(*seen))
    for cache, token_bytes, arithmetic in zip(CACHES, (128, 64, 48), ("fp32", "bf16", "bf16"), strict=True):
        made = call("attention", cache, 0, qkv, batch, SHAPE, scale=1.0, window=window, rows=wanted, result=out)
        moved = qkv.nbytes + out.nbytes
        assert work_of(made, Precision("bfloat16")) == Work(read * token_bytes, moved, pairs * 6 * 8 * 4, arithmetic)


def test_an_op_that_nobody_knows_moves_its_arrays() -> None:
    x = np.zeros((2, 4), np.float32)
    assert work_of(call("swizzle", x, 3, scale=x, result=x), Precision("float32")) == Work(0, 3 * 32, 0)


def test_kinds_are_told_by_the_flow_of_data() -> None:
    layer = ["rms_norm", "linear", "rotary", "attention", "linear", "rms_norm", "linear", "silu_and_mul", "linear"]
    kinds = ["norms", "qkv", "rotary", "attention", "o", "norms", "gate_up", "silu", "down"]
    ops = ["embedding", *layer, *layer, "gather_rows", "rms_norm", "linear", "argmax"]
    assert kinds_of(ops) == ["embedding", *kinds, *kinds, "embedding", "norms", "lm_head", "sampling"]


def test_a_gated_product_is_of_the_mlp() -> None:
    layer = ["rms_norm", "linear", "rotary", "attention", "linear", "rms_norm", "gated_linear", "linear"]
    kinds = ["norms", "qkv", "rotary", "attention", "o", "norms", "gate_up", "down"]
    assert kinds_of([*layer, "gather_rows", "rms_norm", "linear"]) == [*kinds, "embedding", "norms", "lm_head"]


@pytest.mark.parametrize("after", [["head_norm", "head_norm", "rotary", "attention"], ["rotary", "attention"], ["attention"]])
def test_kinds_of_other_layers(after: list[str]) -> None:
    assert kinds_of(["rms_norm", "linear", *after])[1] == "qkv"
    assert kinds_of(["linear"]) == ["lm_head"] and kinds_of(["swizzle"]) == ["swizzle"]
