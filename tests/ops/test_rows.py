"""Norms, rotary positions, gates and gathers: against the oracle, and bitwise under the row contract."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.base import AttentionShape
from octavo.backends.cpu.backend import CpuBackend
from tests.ops.devices import DTYPES, ISAS, act, assert_close, device, normal, oracle, same_bits, width_of

SEEDS = st.integers(0, 2**32)
ROWS = st.integers(1, 60)
DEVICES = [(isa, dtype) for isa in ISAS for dtype in DTYPES]
SHAPES = st.builds(
    lambda group, kv_heads, eighths: AttentionShape(group * kv_heads, kv_heads, 8 * eighths),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 17),
)


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=25)
@given(seed=SEEDS, rows=ROWS, size=st.integers(1, 300), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_rms_norm_and_silu(isa: str, dtype: str, seed: int, rows: int, size: int, scale: float) -> None:
    x, weight = normal(seed, rows, size) * np.float32(scale), normal(seed + 1, size)
    backend, reference = device(isa, dtype), oracle(dtype)
    assert_close(backend.ops.rms_norm(x, weight, eps=1e-5), reference.ops.rms_norm(x, weight, eps=1e-5))
    gate_up = normal(seed + 2, rows, 2 * size) * np.float32(scale)
    assert_close(backend.ops.silu_and_mul(gate_up), reference.ops.silu_and_mul(gate_up))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=25)
@given(seed=SEEDS, rows=ROWS, shape=SHAPES, part=st.sampled_from(["q", "k"]))
def test_head_norm_and_rotary_change_their_heads_only(isa: str, seed: int, rows: int, shape: AttentionShape, part: str) -> None:
    backend, reference = device(isa, "float32"), oracle("float32")
    qkv, weight, table = normal(seed, rows, width_of(shape)), normal(seed + 1, shape.head_dim), normal(seed, 70, shape.head_dim)
    positions = np.random.default_rng(seed).integers(0, 70, rows, dtype=np.int32)
    actual, expected = qkv.copy(), qkv.copy()
    for ops, array in ((backend.ops, actual), (reference.ops, expected)):
        ops.head_norm(array, weight, shape, part=part, eps=1e-6)
        ops.rotary(array, positions, table, shape)
    assert_close(actual, expected)
    values = (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    assert same_bits(actual[:, values:].copy(), qkv[:, values:].copy())


def _row_ops(backend: CpuBackend, shape: AttentionShape) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Ops of one matrix of width_of(shape) columns, each with a result of one row for each row."""
    width = width_of(shape)
    weight, head_weight, table = normal(1, width), normal(2, shape.head_dim), normal(3, 4, shape.head_dim)

    def in_place(x: np.ndarray) -> np.ndarray:
        result = x.copy()
        backend.ops.head_norm(result, head_weight, shape, part="q", eps=1e-6)
        backend.ops.rotary(result, np.full(len(x), 3, np.int32), table, shape)
        return result

    return {
        "rms_norm": lambda x: backend.ops.rms_norm(x, weight, eps=1e-6),
        "silu_and_mul": backend.ops.silu_and_mul,
        "in_place": in_place,
        "argmax": backend.ops.argmax,
    }


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=15)
@given(seed=SEEDS, rows=st.integers(1, 140), shape=SHAPES, place=st.integers(0, 139))
def test_a_row_depends_on_nothing_else(isa: str, dtype: str, seed: int, rows: int, shape: AttentionShape, place: int) -> None:
    place %= rows
    x = normal(seed, 1, width_of(shape))
    crowd = np.full((rows, width_of(shape)), np.nan, np.float32)
    crowd[place] = x[0]
    for name in ("rms_norm", "silu_and_mul", "in_place", "argmax"):
        results = []
        for threads in (1, 2):
            backend = device(isa, dtype, threads)
            op = _row_ops(backend, shape)[name]
            results += [np.array(op(x)), np.array(op(crowd))[place : place + 1]]
        assert all(same_bits(result, results[0]) for result in results), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_rows_copies(dtype: str) -> None:
    backend = device("auto", dtype)
    for kind in DTYPES:
        x = act(normal(1, 30, 77), kind)
        rows = np.array([29, 0, 0, 7], np.int32)
        assert same_bits(np.array(backend.ops.gather_rows(x, rows)), x[rows])


def test_silu_of_the_extreme() -> None:
    gate = np.array([[0.0, -0.0, 1e4, -1e4, 88.0, -88.0, -100.0, -3e38, 3e38, np.inf, np.nan]], np.float32)
    both = np.concatenate([gate, np.ones_like(gate)], axis=1)
    for isa in ISAS:
        result = device(isa, "float32").ops.silu_and_mul(both)[0]
        np.testing.assert_allclose(result, [0, 0, 1e4, 0, 88, 0, 0, 0, 3e38, np.inf, np.nan], rtol=1e-6, atol=1e-30)
