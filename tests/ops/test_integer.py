"""Integer weights on every instruction set, with and without dot product instructions: against the oracle, bitwise under the
row contract, and bitwise between the kernels of one instruction set."""

import itertools
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.backends.reference.integer import LARGEST, quantize_activations
from octavo.backends.reference.sampling import masked
from octavo.quant.integer import quantize_int4, quantize_int8
from octavo.quant.layouts import (
    GROUP,
    Int4Group,
    Int5Group,
    Int6Group,
    Int8Group,
    Integer,
    Piecewise,
    ReadRows,
    Stacked,
    Unrepresentable,
)
from tests.ops.devices import BF16, DTYPES, ISAS, act, normal, oracle, same_bits, some_allowed

SEEDS = st.integers(0, 2**32)
ROWS = st.integers(1, 40)
COLUMNS = st.integers(1, 100)
GROUPS = st.integers(1, 6)
BITS = st.sampled_from([8, 16])
KINDS = ("int8", "int6", "int5", "int4")
KERNELS = [
    *((isa, kernels) for isa in ISAS for kernels in _native.integer_kernels(isa) if kernels != "generic"),
    ("generic", "generic"),
]


TUNINGS = st.sampled_from(["common", "zen4"])
"""Of which the second has weights in pairs of groups, where an instruction set has them."""


@cache
def device(
    isa: str, kernels: str = "auto", dtype: str = "bfloat16", threads: int = 2, bits: int = 8, tuning: str = "auto"
) -> CpuBackend:
    return CpuBackend(
        compute_dtype=dtype, isa=isa, num_threads=threads, integer_kernels=kernels, activation_bits=bits, tuning=tuning
    )


def of_exact_scales(kind: str, bits: int) -> str:
    """The tuning with which products are what the reference computes: not in pairs of groups."""
    return "common" if kind == "int4" and bits == 8 else "auto"


def random_weight(seed: int, kind: str, n: int, groups: int) -> Integer:
    """Any values, also those that no quantizer makes, and scales of any sign and size."""
    rng = np.random.default_rng(seed)
    shape = n, groups * GROUP
    scales = rng.normal(0, 0.01, (n, groups * (2 if kind == "int6" else 1))).astype(np.float16)
    scales[rng.random(scales.shape) < 0.05] = 0
    scales[rng.random(scales.shape) < 0.05] = 3e-7  # subnormal
    if kind == "int8":
        return Int8Group(rng.integers(-128, 128, shape).astype(np.int8), scales)
    if kind == "int6":
        return Int6Group(rng.integers(-32, 32, shape).astype(np.int8), scales)
    minimums = rng.normal(0, 0.1, scales.shape).astype(np.float16)
    if kind == "int5":
        return Int5Group(rng.integers(0, 32, shape).astype(np.uint8), scales, minimums)
    return Int4Group(rng.integers(0, 256, (n, groups * GROUP // 2)).astype(np.uint8), scales, minimums)


def size_of_sums(x: np.ndarray, weight: Integer) -> np.ndarray:
    """What float32 rounding errors of an output are relative to."""
    sizes: np.ndarray = np.abs(x.astype(np.float32)) @ np.abs(weight.dequantize()).T
    if weight.minimums is not None:
        minimums = np.abs(weight.minimums.astype(np.float32)).repeat(GROUP, axis=1)
        sizes = sizes + 2 * np.abs(x.astype(np.float32)) @ minimums.T
    return sizes


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=15)
@given(seed=SEEDS, m=st.integers(0, 500), groups=GROUPS, pairs=st.integers(1, 8), bias=st.booleans(), bits=BITS, tuning=TUNINGS)
def test_gated_linear_is_linear_and_its_gates(
    isa: str,
    kernels: str,
    kind: str,
    dtype: str,
    seed: int,
    m: int,
    groups: int,
    pairs: int,
    bias: bool,
    bits: int,
    tuning: str,
) -> None:
    weight, x = random_weight(seed, kind, 64 * pairs, groups), act(normal(seed + 1, m, groups * GROUP), dtype)
    b = normal(seed + 2, 64 * pairs) if bias else None
    for threads in (1, 3):
        backend = device(isa, kernels, dtype, threads, bits, tuning)
        packed = backend.weight(weight, gated=True)
        assert packed.gated
        apart = backend.ops.silu_and_mul(backend.ops.linear(x, backend.weight(weight), bias=b))
        assert same_bits(np.array(backend.ops.gated_linear(x, packed, bias=b)), np.array(apart))


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(seed=SEEDS, m=st.integers(0, 500), groups=GROUPS, n=st.integers(1, 400), spoilt=st.booleans(), bits=BITS, tuning=TUNINGS)
def test_linear_argmax_is_linear_and_its_argmax(
    isa: str, kernels: str, kind: str, seed: int, m: int, groups: int, n: int, spoilt: bool, bits: int, tuning: str
) -> None:
    weight, x = random_weight(seed, kind, n, groups), act(normal(seed + 1, m, groups * GROUP), "bfloat16")
    if spoilt and m:
        x[seed % m, 0] = np.nan
        x[seed // 7 % m] = 0  # every output the same
    for threads in (1, 2, 3):
        backend = device(isa, kernels, threads=threads, bits=bits, tuning=tuning)
        packed = backend.weight(weight)
        found = backend.ops.linear_argmax(x, packed)
        logits, allowed = np.array(backend.ops.linear(x, packed)), some_allowed(seed, m, n)
        np.testing.assert_array_equal(found, backend.ops.argmax(logits))
        found = backend.ops.linear_argmax(x, packed, allowed)
        np.testing.assert_array_equal(found, backend.ops.argmax(masked(logits, allowed)) if m else [])


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    seed=SEEDS,
    m=ROWS,
    groups=GROUPS,
    n=COLUMNS,
    bias=st.booleans(),
    residual=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    bits=BITS,
)
def test_linear_is_what_the_reference_computes(
    isa: str,
    kernels: str,
    kind: str,
    seed: int,
    m: int,
    groups: int,
    n: int,
    bias: bool,
    residual: bool,
    dtype: str,
    bits: int,
) -> None:
    weight = random_weight(seed, kind, n, groups)
    x = act(normal(seed + 1, m, groups * GROUP), dtype)
    b = normal(seed + 2, n) if bias else None
    r = normal(seed + 3, m, n) if residual else None
    reference: Any = ReferenceBackend(compute_dtype=dtype, activation_bits=bits)
    backend = device(isa, kernels, dtype, bits=bits, tuning=of_exact_scales(kind, bits))
    expected = reference.ops.linear(x, reference.weight(weight), bias=b, residual=r)
    actual = backend.ops.linear(x, backend.weight(weight), bias=b, residual=None if r is None else r.copy())
    assert (np.abs(actual - expected) <= 1e-6 * (size_of_sums(x, weight) + 4)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(seed=SEEDS, m=ROWS, groups=GROUPS, n=COLUMNS, bits=BITS, tuning=TUNINGS, data=st.data())
def test_a_row_depends_on_nothing_else(
    isa: str, kind: str, seed: int, m: int, groups: int, n: int, bits: int, tuning: str, data: st.DataObject
) -> None:
    weight = random_weight(seed, kind, n, groups)
    row = normal(seed + 1, 1, groups * GROUP).astype(BF16)
    place = data.draw(st.integers(0, m - 1))
    others = np.full((m, groups * GROUP), np.nan if data.draw(st.booleans()) else 1e30, np.float32).astype(BF16)
    others[place] = row[0]
    results = []
    for kernels in ("auto", *_native.integer_kernels(isa)[-2:]):
        if kernels == "generic" and isa not in ("generic", "amx_emulated"):
            continue
        for threads in (1, 2):
            backend = device(isa, kernels, threads=threads, bits=bits, tuning=tuning)
            packed = backend.weight(weight)
            results.append(backend.to_host(backend.ops.linear(row, packed)))
            results.append(backend.to_host(backend.ops.linear(others, packed))[place : place + 1])
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [18, 50])
@pytest.mark.parametrize(("bits", "tuning"), [(8, "common"), (8, "zen4"), (16, "common")])
def test_rows_keep_their_bits_at_every_batch_size(isa: str, kind: str, groups: int, bits: int, tuning: str) -> None:
    backend = device(isa, bits=bits, tuning=tuning)
    packed = backend.weight(random_weight(1, kind, 300, groups))
    x = normal(2, 600, groups * GROUP).astype(BF16)
    whole = backend.to_host(backend.ops.linear(x, packed))
    for m in (1, 2, 3, 5, 6, 7, 8, 12, 13, 17, 33, 64, 65, 193):
        assert same_bits(np.array(backend.ops.linear(x[:m].copy(), packed)), whole[:m])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 16])
@settings(max_examples=15)
@given(
    seed=SEEDS,
    m=ROWS,
    groups=GROUPS,
    n=st.lists(COLUMNS, min_size=1, max_size=4),
    bias=st.booleans(),
    residual=st.booleans(),
    tuning=TUNINGS,
)
def test_stacked_weights_are_their_parts_side_by_side(
    isa: str, bits: int, seed: int, m: int, groups: int, n: list[int], bias: bool, residual: bool, tuning: str
) -> None:
    parts = [random_weight(seed + i, KINDS[(seed + i) % 4], count, groups) for i, count in enumerate(n)]
    x = normal(seed + 1, m, groups * GROUP).astype(BF16)
    b = normal(seed + 2, sum(n)) if bias else None
    r = normal(seed + 3, m, sum(n)) if residual else None
    backends: list[Any] = [device(isa, bits=bits, tuning=tuning), ReferenceBackend(activation_bits=bits)]
    for backend in backends:
        apart = [np.array(backend.ops.linear(x, backend.weight(part))) for part in parts]
        expected = np.concatenate(apart, axis=1)
        for added in (b, r):
            expected = expected if added is None else expected + added
        stacked = backend.weight(Stacked(tuple(parts)))
        assert same_bits(np.array(backend.ops.linear(x, stacked, bias=b, residual=r)), expected)


def test_what_goes_into_a_result_must_fit() -> None:
    native = _native.Device("auto", 1, cores=[], act_bfloat16=True, bfloat16=BF16)
    weight = packed(native, 8, np.zeros((4, 64), np.uint8), np.zeros((4, 2), np.uint16), None)
    x = np.zeros((3, 64), BF16)
    out = native.new_result(x, 6)
    native.linear(x, weight, None, None, out, 2)
    for into, column in ((out, 3), (out, -1), (native.new_result(x[:2], 6), 0)):
        with pytest.raises(ValueError, match="a row for each of x and the columns of the weight"):
            native.linear(x, weight, None, None, into, column)
    with pytest.raises(ValueError, match="residual must have the shape of the result"):
        native.linear(x, weight, None, np.zeros((3, 4), np.float32), out, 0)


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(seed=SEEDS, groups=GROUPS, n=COLUMNS, count=st.integers(0, 50))
def test_embedding_is_a_dequantized_row(isa: str, kernels: str, kind: str, seed: int, groups: int, n: int, count: int) -> None:
    table = random_weight(seed, kind, n, groups)
    ids = np.random.default_rng(seed).integers(0, n, count, dtype=np.int32)
    backend = device(isa, kernels)
    found = np.array(backend.ops.embedding(ids, backend.weight(table, vocabulary=True)))
    assert same_bits(found, np.ascontiguousarray(table.dequantize()[ids]))
    assert same_bits(oracle("bfloat16").ops.embedding(ids, oracle("bfloat16").weight(table)), found)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [8, 16])
def test_many_groups_in_several_passes_are_what_the_reference_computes(isa: str, kind: str, bits: int) -> None:
    weight, x = random_weight(4, kind, 70, 131), normal(5, 230, 131 * GROUP)
    reference = ReferenceBackend(activation_bits=bits)
    backend = device(isa, dtype="float32", bits=bits, tuning=of_exact_scales(kind, bits))
    expected = reference.ops.linear(x, reference.weight(weight))
    found = np.array(backend.ops.linear(x, backend.weight(weight)))
    assert (np.abs(found - expected) <= 1e-6 * (size_of_sums(x, weight) + 4)).all()


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [8, 16])
def test_sums_of_the_largest_values_fit(isa: str, kernels: str, kind: str, bits: int) -> None:
    n, groups = 37, 3
    scales = np.full((n, groups * (2 if kind == "int6" else 1)), 0.01, np.float16)
    shape = n, groups * GROUP
    least, most, dtype = {
        "int8": (-128, 127, np.int8),
        "int6": (-32, 31, np.int8),
        "int5": (0, 31, np.uint8),
        "int4": (0, 0xFF, np.uint8),
    }[kind]
    values = np.full((n, groups * GROUP // 2) if kind == "int4" else shape, most, dtype)
    values[::2] = least
    layout: Any = {"int8": Int8Group, "int6": Int6Group, "int5": Int5Group, "int4": Int4Group}[kind]
    weight = layout(values, scales, *([0 * scales] if kind in ("int4", "int5") else []))
    reference, backend = ReferenceBackend(activation_bits=bits), device(isa, kernels, "float32", bits=bits)
    for m in (1, 2, 4, 6, 13, 40):
        x = np.full((m, groups * GROUP), 3, np.float32)
        x[1::2] = -3
        expected = reference.ops.linear(x, reference.weight(weight))
        found = np.array(backend.ops.linear(x, backend.weight(weight)))
        np.testing.assert_allclose(found, expected, rtol=1e-3)  # scales of pairs are whole numbers


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize("kind", KINDS)
def test_activations_in_16_bits_cost_no_accuracy(isa: str, kernels: str, kind: str) -> None:
    plain, x = normal(1, 200, 640), normal(2, 20, 640)
    weight = quantize_int4(plain) if kind == "int4" else quantize_int8(plain)
    exact = x.astype(np.float64) @ weight.dequantize().T.astype(np.float64)
    errors = []
    for bits in (8, 16):
        backend = device(isa, kernels, "float32", bits=bits)
        errors.append(np.abs(np.array(backend.ops.linear(x, backend.weight(weight))) - exact).std() / exact.std())
    assert errors[1] < 4e-5 and 1e-3 < errors[0] < 0.008  # bfloat16 numbers: 2e-3


@cache
def identity(isa: str, kernels: str, groups: int, bits: int) -> Any:
    """Outputs are the quantized inputs."""
    columns = groups * GROUP
    layout = Int8Group(np.eye(columns, dtype=np.int8), np.ones((columns, groups), np.float16))
    return device(isa, kernels, "float32", bits=bits).weight(layout)


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize("groups", [3, 67])
@settings(max_examples=20)
@given(seed=SEEDS, size=st.sampled_from([1e-36, 1e-29, 1.0, 1e30]), bits=BITS)
def test_activations_are_quantized_as_defined(isa: str, kernels: str, groups: int, seed: int, size: float, bits: int) -> None:
    x = normal(seed, 5, groups * GROUP) * np.float32(size)
    x[0, :GROUP] = 0
    x[1, :GROUP] = np.arange(-16, 16) + 0.5  # halves between whole numbers: to even
    x[1, 0] = LARGEST[bits]
    x[2, :GROUP] = np.arange(GROUP) * 255 + np.arange(GROUP) % 2 * 127  # at the edges of low bytes
    x[2, 0] = -LARGEST[16]
    quants, scales = quantize_activations(x, bits)
    found = device(isa, kernels, "float32", bits=bits).ops.linear(x, identity(isa, kernels, groups, bits))
    assert same_bits(np.array(found), (quants * scales[..., None]).reshape(x.shape) + np.float32(0))


@pytest.mark.parametrize(("isa", "kernels"), KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_with_what_is_no_number_is_none(isa: str, kernels: str, kind: str, bad: float) -> None:
    x = normal(3, 9, 64)
    x[4, 40] = bad
    backends: list[Any] = [device(isa, kernels, "float32", tuning=tuning) for tuning in ("common", "zen4")]
    backends += [device(isa, kernels, "float32", bits=16), ReferenceBackend()]
    for backend in backends:
        with np.errstate(invalid="ignore"):
            result = np.array(backend.ops.linear(x, backend.weight(random_weight(1, kind, 40, 2))))
        assert np.isnan(result[4]).all()
        assert np.isfinite(np.delete(result, 4, axis=0)).all()


def packed(
    native: _native.Device,
    bits: int,
    values: np.ndarray,
    scales: np.ndarray,
    minimums: np.ndarray | None,
    *,
    gated: bool = False,
) -> _native.IntegerWeight:
    """In one piece."""
    columns = values.shape[1] * (2 if bits == 4 else 1)
    return native.pack_integer(bits, len(values), columns, [(values, scales, minimums)], gated=gated)


@pytest.mark.parametrize("vocabulary", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_the_whole(kind: str, gated: bool, vocabulary: bool) -> None:
    backend = CpuBackend(num_threads=2)
    layout, x = random_weight(1, kind, 192, 4), normal(2, 5, 128).astype(BF16)
    read = Piecewise.of(layout).parts[0][1]
    cuts = [0, 1, 32, 33, 100, 180, 192]
    parts = tuple((end - begin, partial(some_rows, read, begin)) for begin, end in itertools.pairwise(cuts))
    whole, pieces = (
        backend.weight(one, gated=gated, vocabulary=vocabulary) for one in (layout, Piecewise(type(layout), 128, parts))
    )
    op = backend.ops.gated_linear if gated else backend.ops.linear
    assert same_bits(np.array(op(x, pieces)), np.array(op(x, whole)))
    assert pieces.num_bytes == whole.num_bytes


def some_rows(read: ReadRows, begin: int, first: int, end: int) -> Integer:
    return read(begin + first, begin + end)


def test_what_goes_wrong_as_pieces_are_made_is_told() -> None:
    def read(first: int, end: int) -> Integer:
        raise Unrepresentable("a scale is beyond float16")

    with pytest.raises(Unrepresentable, match="beyond float16"):
        CpuBackend().weight(Piecewise(Int8Group, 64, ((40, read),)))


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    native = _native.Device("auto", 1, cores=[], act_bfloat16=True, bfloat16=BF16)
    values, scales = np.zeros((4, 64), np.uint8), np.zeros((4, 2), np.uint16)
    for wrong in (scales[:3], np.zeros((4, 3), np.uint16)):
        for bits in (5, 6, 8):
            with pytest.raises(ValueError, match="one scale for each group"):
                packed(native, bits, values, wrong, scales if bits == 5 else None)
        with pytest.raises(ValueError, match="one scale for each group"):
            packed(native, 4, values[:, :32].copy(), scales, wrong)
    with pytest.raises(ValueError, match="groups of 32"):
        packed(native, 8, np.zeros((4, 63), np.uint8), scales, None)
    with pytest.raises(ValueError, match="groups of 32"):
        packed(native, 4, np.zeros((4, 63), np.uint8), scales, scales)
    with pytest.raises(ValueError, match="groups of 16 bytes"):
        native.pack_integer(4, 4, 128, [(np.zeros((4, 63), np.uint8), scales, scales)])
    for rows, columns, pieces in ((5, 64, 1), (3, 64, 1), (7, 64, 2), (9, 64, 2), (4, 96, 1), (4, 64, 0)):
        with pytest.raises(ValueError, match="pieces must be"):
            native.pack_integer(8, rows, columns, [(values, scales, None)] * pieces)
    for rows, pieces in ((3, 1), (7, 2)):  # before any is packed
        with pytest.raises(ValueError, match="pieces must be rows of the matrix"):
            native.pack_integer(8, rows, 64, [(values, scales, None)] * pieces)
    with pytest.raises(ValueError, match="minimums with 4 and 5 bits, and only then"):
        packed(native, 8, values, scales, scales)
    with pytest.raises(ValueError, match="minimums with 4 and 5 bits, and only then"):
        packed(native, 5, values, scales, None)
    with pytest.raises(ValueError, match="4, 5, 6 or 8"):
        packed(native, 7, values, scales, None)
    with pytest.raises(TypeError):
        packed(native, 8, values.astype(np.int16), scales, None)
    weight = packed(native, 8, values, scales, None)
    assert (weight.rows, weight.columns, weight.num_bytes) == (4, 64, 2 * 1088)
    with pytest.raises(ValueError, match="one column for each input"):
        native.linear(np.zeros((1, 32), BF16), weight, None, None)
    with pytest.raises(ValueError, match="token id"):
        native.embedding(np.array([4], np.int32), weight)
    with pytest.raises(ValueError, match="the weight was packed for linear"):
        native.gated_linear(np.zeros((1, 64), BF16), weight, None)


def test_gates_are_refused_by_all_but_gated_linear() -> None:
    native = _native.Device("auto", 1, cores=[], act_bfloat16=True, bfloat16=BF16)
    with pytest.raises(ValueError, match="multiple of 64 rows"):
        packed(native, 8, np.zeros((96, 64), np.uint8), np.zeros((96, 2), np.uint16), None, gated=True)
    gates = packed(native, 8, np.zeros((64, 64), np.uint8), np.zeros((64, 2), np.uint16), None, gated=True)
    x = np.zeros((1, 64), BF16)
    with pytest.raises(ValueError, match="one column for each input"):
        native.gated_linear(x[:, :32], gates, None)
    with pytest.raises(ValueError, match="bias must have one value"):
        native.gated_linear(x, gates, np.zeros(32, np.float32))
    with pytest.raises(ValueError, match="linear: the weight was packed for gated_linear"):
        native.linear(x, gates, None, None)
    with pytest.raises(ValueError, match="linear_argmax: the weight was packed for gated_linear"):
        native.linear_argmax(x, gates)
    with pytest.raises(ValueError, match="embedding: the table was packed for gated_linear"):
        native.embedding(np.zeros(1, np.int32), gates)


def test_empty_batches_and_unknown_kernels() -> None:
    backend = device("auto")
    matrix = random_weight(1, "int4", 48, 2)
    assert backend.ops.linear(np.empty((0, 64), BF16), backend.weight(matrix)).shape == (0, 48)
    assert backend.ops.embedding(np.empty(0, np.int32), backend.weight(matrix, vocabulary=True)).shape == (0, 64)
    nothing = Int8Group(np.zeros((0, 64), np.int8), np.zeros((0, 2), np.float16))
    for rows in (1, 17):
        assert backend.ops.linear(np.zeros((rows, 64), BF16), backend.weight(nothing)).shape == (rows, 0)
        assert backend.ops.gated_linear(np.zeros((rows, 64), BF16), backend.weight(nothing, gated=True)).shape == (rows, 0)
    with pytest.raises(ValueError, match="integer kernels fast cannot be used"):
        CpuBackend(integer_kernels="fast")
