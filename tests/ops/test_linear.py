"""Matrix products and embeddings over packed weights: against the oracle, and bitwise under the row contract."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.reference.sampling import masked
from octavo.quant.layouts import Dense, Stacked
from tests.ops.devices import BF16, DTYPES, ISAS, act, assert_close, device, normal, oracle, rounding, same_bits, some_allowed

SEEDS = st.integers(0, 2**32)
DEPTHS = st.integers(1, 140)
COLUMNS = st.integers(1, 100)
ROWS = st.integers(1, 140)
DEVICES = [(isa, dtype) for isa in ISAS for dtype in DTYPES]


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=40)
@given(seed=SEEDS, m=ROWS, k=DEPTHS, n=COLUMNS, bias=st.booleans(), residual=st.booleans())
def test_linear_is_the_product(isa: str, dtype: str, seed: int, m: int, k: int, n: int, bias: bool, residual: bool) -> None:
    x, weight = act(normal(seed, m, k), dtype), Dense(act(normal(seed + 1, n, k), dtype))
    b = normal(seed + 2, n) if bias else None
    r = normal(seed + 3, m, n) if residual else None
    expected = oracle(dtype).ops.linear(x, oracle(dtype).weight(weight), bias=b, residual=r)
    backend = device(isa, dtype)
    actual = backend.ops.linear(x, backend.weight(weight), bias=b, residual=None if r is None else r.copy())
    assert_close(actual, expected, scale=rounding(isa, dtype) * k**0.5)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
def test_matrices_one_below_the_other_are_one(isa: str, dtype: str, stored: str, gated: bool) -> None:
    backend, weight, x = device(isa, dtype), act(normal(1, 192, 70), stored), act(normal(2, 3, 70), dtype)
    parts = np.split(weight, [1, 34, 96, 100])
    op = backend.ops.gated_linear if gated else backend.ops.linear
    expected = np.array(op(x, backend.weight(Dense(weight), gated=gated)))
    assert same_bits(np.array(op(x, backend.weight(Dense(parts[0], tuple(parts[1:])), gated=gated))), expected)


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=25)
@given(seed=SEEDS, m=ROWS, k=DEPTHS, n=COLUMNS, data=st.data())
def test_a_row_of_linear_depends_on_nothing_else(
    isa: str, dtype: str, seed: int, m: int, k: int, n: int, data: st.DataObject
) -> None:
    weight = Dense(act(normal(seed, n, k), dtype))
    row = act(normal(seed + 1, 1, k), dtype)
    place = data.draw(st.integers(0, m - 1))
    others = act(normal(seed + 2, m, k), dtype)
    others[np.arange(m) != place] = np.nan if data.draw(st.booleans()) else 1e30
    others[place] = row[0]
    results = []
    for threads in (1, 2):
        backend = device(isa, dtype, threads)
        packed = backend.weight(weight)
        results.append(backend.to_host(backend.ops.linear(row, packed)))
        results.append(backend.to_host(backend.ops.linear(others, packed))[place : place + 1])
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("k", "n"), [(576, 960), (1536, 576), (577, 1000), (4099, 64)])
def test_rows_keep_their_bits_at_every_batch_size(isa: str, k: int, n: int) -> None:
    backend = device(isa, "bfloat16")
    packed = backend.weight(Dense(normal(1, n, k).astype(BF16)))
    x = normal(2, 70 if isa == "amx_emulated" else 400, k).astype(BF16)
    whole = backend.to_host(backend.ops.linear(x, packed))
    for m in (1, 2, 3, 5, 8, 12, 13, 17, 25, 33, 64, 65):
        assert same_bits(np.array(backend.ops.linear(x[:m].copy(), packed)), whole[:m])


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@pytest.mark.parametrize("n", [12_000, 12_016, 12_001])
def test_a_result_larger_than_caches_has_the_bits_of_its_rows(isa: str, dtype: str, n: int) -> None:
    weight, x, bias = Dense(act(normal(1, n, 9), dtype)), act(normal(2, 90, 9), dtype), normal(3, n)
    backend = device(isa, dtype)
    packed = backend.weight(weight)
    whole = backend.to_host(backend.ops.linear(x, packed, bias=bias))
    for m in (0, 41, 89):
        assert same_bits(backend.to_host(backend.ops.linear(x[m : m + 1].copy(), packed, bias=bias)), whole[m : m + 1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 3, 40, 600])
def test_the_number_of_threads_changes_no_bit(isa: str, dtype: str, m: int) -> None:
    weight, x = Dense(act(normal(1, 300, 65), dtype)), act(normal(2, m, 65), dtype)
    results = []
    for threads in (1, 2, 3, 7, 16):  # more than there are blocks of columns for one chunk of rows
        backend = device(isa, dtype, threads)
        results.append(backend.to_host(backend.ops.linear(x, backend.weight(weight))))
    assert all(same_bits(result, results[0]) for result in results)


def test_the_bits_of_bfloat16_are_those_of_its_definition() -> None:
    """Rounding to nearest even on the way in, also of values halfway, of infinities, NaN and the largest numbers."""
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-30], np.float32)
    for isa in ISAS:
        backend = device(isa, "bfloat16")
        table = backend.weight(Dense(values.reshape(-1, 1)))
        read = backend.ops.embedding(np.arange(len(values), dtype=np.int32), table)
        np.testing.assert_array_equal(read[:, 0], values.astype(BF16).astype(np.float32))


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=15)
@given(seed=SEEDS, k=DEPTHS, n=COLUMNS, source=st.sampled_from(DTYPES), count=st.integers(0, 50))
def test_embedding_reads_rows_back(isa: str, dtype: str, seed: int, k: int, n: int, source: str, count: int) -> None:
    table = Dense(act(normal(seed, n, k), source))
    ids = np.random.default_rng(seed).integers(0, n, count, dtype=np.int32)
    backend = device(isa, dtype)
    expected = oracle(dtype).ops.embedding(ids, oracle(dtype).weight(table))
    assert same_bits(np.array(backend.ops.embedding(ids, backend.weight(table))), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_result_may_take_over_the_residual_but_never_the_input(dtype: str) -> None:
    backend = device("auto", dtype)
    packed = backend.weight(Dense(normal(1, 48, 48)))
    residual = normal(2, 9, 48)
    x = act(residual, dtype)
    expected = backend.to_host(backend.ops.linear(x, packed)) + residual
    aliased = x if dtype == "float32" else residual
    np.testing.assert_array_equal(backend.ops.linear(x, packed, residual=aliased), expected)
    if dtype == "float32":
        np.testing.assert_array_equal(x, residual)  # it was the input: left alone


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=25)
@given(seed=SEEDS, m=ROWS, k=DEPTHS, half=st.sampled_from([1, 31, 32, 64, 96, 160]), bias=st.booleans())
def test_gated_linear_is_linear_and_its_gate(isa: str, dtype: str, seed: int, m: int, k: int, half: int, bias: bool) -> None:
    """Bit for bit, in blocks of columns or not, for any number of threads."""
    x, weight = act(normal(seed, m, k), dtype), Dense(act(normal(seed + 1, 2 * half, k), dtype))
    b = normal(seed + 2, 2 * half) if bias else None
    ops = oracle(dtype).ops
    assert_close(
        device(isa, dtype).ops.gated_linear(x, device(isa, dtype).weight(weight, gated=True), bias=b),
        ops.silu_and_mul(ops.linear(x, oracle(dtype).weight(weight), bias=b)),
        scale=rounding(isa, dtype) * k,
    )
    for threads in (1, 2, 3):
        backend = device(isa, dtype, threads)
        apart = backend.ops.silu_and_mul(backend.ops.linear(x, backend.weight(weight), bias=b))
        assert same_bits(backend.ops.gated_linear(x, backend.weight(weight, gated=True), bias=b), apart)


@pytest.mark.parametrize("isa", ISAS)
def test_gated_rows_in_chunks_keep_their_bits(isa: str) -> None:
    backend = device(isa, "bfloat16")
    weight, x = Dense(normal(1, 1024, 577).astype(BF16)), normal(2, 70 if isa == "amx_emulated" else 500, 577).astype(BF16)
    packed = backend.weight(weight, gated=True)
    whole = np.array(backend.ops.gated_linear(x, packed))
    assert same_bits(whole, np.array(backend.ops.silu_and_mul(backend.ops.linear(x, backend.weight(weight)))))
    for m in (1, 3, 4, 13, 70):
        assert same_bits(np.array(backend.ops.gated_linear(x[:m].copy(), packed)), whole[:m])


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@settings(max_examples=25)
@given(seed=SEEDS, m=ROWS, k=DEPTHS, n=st.integers(1, 400), coarse=st.booleans(), data=st.data())
def test_linear_argmax_is_linear_and_its_argmax(
    isa: str, dtype: str, seed: int, m: int, k: int, n: int, coarse: bool, data: st.DataObject
) -> None:
    """Among ties, NaN and infinity too, for any number of threads; what is unsound in a column is so for every row."""
    x, matrix = act(normal(seed, m, k), dtype), normal(seed + 1, n, k)
    if coarse:
        x, matrix = np.sign(x), np.round(matrix)
    for bad in (np.nan, np.inf, -np.inf):
        if data.draw(st.booleans()):
            x[data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, k - 1))] = bad
    if data.draw(st.booleans()):
        matrix[data.draw(st.integers(0, n - 1))] = data.draw(st.sampled_from([np.nan, np.inf, 3e38]))
    allowed = some_allowed(seed, m, n)
    for threads in (1, 2, 3):
        ops, weight = device(isa, dtype, threads).ops, device(isa, dtype, threads).weight(Dense(act(matrix, dtype)))
        logits = np.array(ops.linear(x, weight))
        np.testing.assert_array_equal(ops.linear_argmax(x, weight), ops.argmax(logits))
        np.testing.assert_array_equal(ops.linear_argmax(x, weight, allowed), ops.argmax(masked(logits, allowed)))


@pytest.mark.parametrize("isa", ISAS)
def test_linear_argmax_of_many_rows(isa: str) -> None:
    """Rows in chunks, columns in panels; as the reference finds them where nothing is close."""
    backend, rows = device(isa, "bfloat16"), 70 if isa == "amx_emulated" else 500
    weight, x = Dense(normal(1, 1000, 577).astype(BF16)), normal(2, rows, 577).astype(BF16)
    found = np.array(backend.ops.linear_argmax(x, backend.weight(weight)))
    np.testing.assert_array_equal(found, backend.ops.argmax(backend.ops.linear(x, backend.weight(weight))))
    assert (found == oracle("bfloat16").ops.linear_argmax(x, oracle("bfloat16").weight(weight))).mean() > 0.98
    allowed = some_allowed(3, rows, 1000)
    found = np.array(backend.ops.linear_argmax(x, backend.weight(weight), allowed))
    logits = np.array(backend.ops.linear(x, backend.weight(weight)))
    np.testing.assert_array_equal(found, backend.ops.argmax(masked(logits, allowed)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [1, 31, 33])
def test_a_sum_of_minus_zero_is_one_at_every_batch_size(isa: str, k: int) -> None:
    """As products that are flushed to zero leave it."""
    weight = np.full((32, k), -1e-30, np.float32)
    weight[0] = 1e30  # a spread that is stored as it is
    backend, x = device(isa, "bfloat16"), act(np.full((13, k), 1e-30, np.float32), "bfloat16")
    packed = backend.weight(Dense(weight))
    alone, together = (np.array(backend.ops.linear(rows, packed)) for rows in (x[:1].copy(), x))
    assert same_bits(alone[0], together[0])


def test_empty_batches_are_nothing_special() -> None:
    backend = device("auto", "bfloat16")
    packed = backend.weight(Dense(normal(1, 48, 48)))
    gated = backend.weight(Dense(normal(1, 64, 48)), gated=True)
    assert backend.ops.gated_linear(np.empty((0, 48), BF16), gated).shape == (0, 32)
    assert backend.ops.linear_argmax(np.empty((0, 48), BF16), packed).shape == (0,)
    assert backend.ops.linear(np.empty((0, 48), BF16), packed).shape == (0, 48)
    assert backend.ops.embedding(np.empty(0, np.int32), packed).shape == (0, 48)


@pytest.mark.parametrize(("isa", "dtype"), [(isa, dtype) for isa, dtype in DEVICES if not isa.startswith("amx")])
@pytest.mark.parametrize("rows", [1, 30])
def test_a_product_without_inputs_is_its_bias(isa: str, dtype: str, rows: int) -> None:
    backend, bias = device(isa, dtype), normal(1, 70)
    weight = backend.weight(Dense(act(normal(2, 70, 0), dtype)))
    found = backend.to_host(backend.ops.linear(act(normal(3, rows, 0), dtype), weight, bias=bias))
    np.testing.assert_array_equal(found, np.broadcast_to(bias, (rows, 70)))


@pytest.mark.parametrize(("isa", "dtype"), [(isa, dtype) for isa, dtype in DEVICES if not isa.startswith("amx")])
def test_gates_of_parts_just_larger_than_a_chunk(isa: str, dtype: str) -> None:
    """Each thread has a part of the rows, of 192 and 193 of them, and memory for the sums of a chunk, which is 192."""
    x, weight = act(normal(1, 3 * 192 + 2, 704), dtype), Dense(act(normal(2, 1024, 704), dtype))
    backend = device(isa, dtype, 3)
    apart = np.array(backend.ops.silu_and_mul(backend.ops.linear(x, backend.weight(weight))))
    packed = backend.weight(weight, gated=True)
    for _ in range(3):
        assert same_bits(np.array(backend.ops.gated_linear(x, packed)), apart)


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
def test_columns_of_a_result_larger_than_caches(isa: str, dtype: str) -> None:
    """Its rows begin anywhere, unlike those of a result that a product has to itself."""
    matrix, x, backend = act(normal(1, 12_001, 9), dtype), act(normal(2, 90, 9), dtype), device(isa, dtype)
    parts = Dense(matrix[:12_000]), Dense(matrix[12_000:])
    stacked = Stacked(parts)  # type: ignore[arg-type]  # plain numbers are never stacked, but are written as others are
    whole = np.array(backend.ops.linear(x, backend.weight(stacked)))
    assert same_bits(whole, np.concatenate([backend.ops.linear(x, backend.weight(part)) for part in parts], axis=1))


@pytest.mark.parametrize(("isa", "dtype"), DEVICES)
@pytest.mark.parametrize("threads", [1, 3])
def test_denormal_sums_are_zeros_on_any_thread(isa: str, dtype: str, threads: int) -> None:
    backend, x = device(isa, dtype, threads), act(np.full((96, 64), 1e-30, np.float32), dtype)
    weight = backend.weight(Dense(act(np.full((512, 64), 1e-10, np.float32), dtype)))
    for _ in range(20):
        assert not np.array(backend.ops.linear(x, weight)).any()
