"""Argmax, draws and log-probabilities: against the oracle, among ties and NaN, and as functions of row, seed and position."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.base import LogitBias, Penalties
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference import sampling
from tests.ops.devices import ISAS, device, normal, oracle, same_bits, some_allowed

SIZES = st.one_of(st.integers(1, 140), st.sampled_from([511, 512, 513, 1000, 4097]))


def make_logits(data: st.DataObject, rows: int, size: int) -> np.ndarray:
    """Often with ties, sometimes with minus infinity and NaN; every row has a finite largest value."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = (rng.standard_normal((rows, size)) * data.draw(st.sampled_from([0.01, 1, 6, 25]))).astype(np.float32)
    if data.draw(st.booleans()):
        logits = np.round(logits)
    for bad in (-np.inf, np.nan):
        if data.draw(st.booleans()):
            logits[rng.random(logits.shape) < 0.2] = bad
    lost = ~np.isfinite(np.where(np.isnan(logits), -np.inf, logits).max(axis=1))
    logits[lost, rng.integers(0, size)] = 1.0
    return logits


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60)
@given(size=SIZES, data=st.data())
def test_argmax(isa: str, size: int, data: st.DataObject) -> None:
    logits = make_logits(data, 3, size)
    np.testing.assert_array_equal(device(isa, "float32").ops.argmax(logits), oracle("float32").ops.argmax(logits))


def test_argmax_of_the_extreme() -> None:
    inf, nan = np.inf, np.nan
    rows = [
        [nan, nan, nan],
        [-inf, -inf, -inf],
        [nan, -inf, nan],
        [nan, 1, 1],
        [1, inf, inf],
        [-inf, nan, -3e38],
        [-0.0, 0.0, 0.0],
    ]
    for isa in ISAS:
        np.testing.assert_array_equal(
            device(isa, "float32").ops.argmax(np.array(rows, np.float32)), [-1, -1, -1, -1, -1, -1, 0]
        )


def test_argmax_finds_every_place() -> None:
    for isa in ISAS:
        np.testing.assert_array_equal(device(isa, "float32").ops.argmax(np.eye(131, dtype=np.float32)), np.arange(131))


def _columns(rows: int, **values: Any) -> dict[str, Any]:
    """Parameters of ``sample`` for so many rows; a scalar holds for all of them."""
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seeds": 7, "positions": 0}
    dtypes = {"top_k": np.int32, "seeds": np.uint64, "positions": np.int64}
    return {
        name: np.broadcast_to(np.array(values.get(name, default), dtypes.get(name, np.float32)), (rows,)).copy()
        for name, default in defaults.items()
    }


def _acceptable(logits: np.ndarray, column: dict[str, Any]) -> set[int]:
    """The oracle's draw, and those that rounding to float32 at a cut or at the edge of a token's share may make of it."""
    if column["temperature"] < sampling.GREEDY_TEMPERATURE or sampling.argmax(logits) < 0:
        return {sampling.argmax(logits)}
    u = sampling.uniform(int(column["seeds"]), int(column["positions"]))
    found = set()
    for top_p, min_p in product((1 - 1e-5, 1, 1 + 1e-5), repeat=2):
        p = column["top_p"] * top_p if column["top_p"] < 1 else 1.0
        args = (float(column["temperature"]), int(column["top_k"]), min(float(p), 1 - 1e-12) if column["top_p"] < 1 else 1.0)
        cumulative = np.cumsum(sampling.survivors(logits, *args, float(column["min_p"] * min_p)))
        if cumulative[-1] == 0:
            found.add(sampling.argmax(logits))
            continue
        targets = np.clip(np.array([u - 1e-5, u, u + 1e-5]), 0, 1 - 1e-12) * cumulative[-1]
        found |= set(np.searchsorted(cumulative, targets, side="right").tolist())
    return found


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60)
@given(size=SIZES, data=st.data())
def test_sample_is_the_oracles(isa: str, size: int, data: st.DataObject) -> None:
    rows = 4
    logits = make_logits(data, rows, size)
    if data.draw(st.booleans()):
        logits = np.nan_to_num(logits, nan=0.5, neginf=-np.inf)

    def draw(*choices: float) -> list[float]:
        return [data.draw(st.sampled_from(choices)) for _ in range(rows)]

    columns = _columns(
        rows,
        temperature=draw(0.0, 0.3, 1.0, 3.0),
        top_k=draw(0, 0, 1, 5, 50, 1000, 10**6),
        top_p=draw(1.0, 1.0, 0.99, 0.9, 0.5, 0.01, 0.0),
        min_p=draw(0.0, 0.0, 0.05, 0.3, 1.0),
        seeds=[data.draw(st.integers(0, 2**64 - 1)) for _ in range(rows)],
        positions=[data.draw(st.integers(0, 2**40)) for _ in range(rows)],
    )
    if data.draw(st.booleans()):
        allowed = some_allowed(data.draw(st.integers(0, 2**32)), rows, size)
        chosen = device(isa, "float32").ops.sample(logits, **columns, allowed=allowed).tolist()
        logits = sampling.masked(logits, allowed)
    else:
        chosen = device(isa, "float32").ops.sample(logits, **columns).tolist()
    for i, token in enumerate(chosen):
        column = {name: values[i] for name, values in columns.items()}
        assert token in _acceptable(logits[i], column), column


def test_draws_agree_with_the_oracle_almost_always() -> None:
    """The tolerance above is for the edges: of many draws at large, nearly all are the oracle's own."""
    logits = normal(1, 400, 2000) * np.float32(3)
    columns = _columns(400, top_p=np.tile([1.0, 0.9], 200), top_k=np.tile([0, 0, 0, 40], 100), positions=np.arange(400))
    expected = oracle("float32").ops.sample(logits, **columns)
    for isa in ISAS:
        assert (device(isa, "float32").ops.sample(logits, **columns) == expected).sum() >= 398


def test_cuts_of_a_whole_vocabulary_are_the_oracles() -> None:
    """Flat and peaked, with ties and without, however many are left."""
    choices = list(product((0, 40, 1000, 30000), (0.5, 0.95, 0.999, 1.0), (0.3, 1.5)))
    logits = normal(2, len(choices), 49152) * np.float32(3)
    logits[::3] = np.round(logits[::3])
    top_k, top_p, temperature = zip(*choices, strict=True)
    columns = _columns(len(choices), top_k=top_k, top_p=top_p, temperature=temperature, positions=np.arange(len(choices)))
    expected = oracle("float32").ops.sample(logits, **columns)
    for isa in ISAS:
        assert (device(isa, "float32").ops.sample(logits, **columns) == expected).sum() >= len(choices) - 1


def _penalties(rng: np.random.Generator, rows: int, size: int) -> Penalties:
    """Of tokens that come again and again, a few of them of no vocabulary; some rows have none, some no output."""
    counts = rng.integers(0, 40, rows) * (rng.random(rows) < 0.8)
    starts = np.cumsum([0, *counts]).astype(np.int32)
    return Penalties(
        repetition=rng.choice(np.array([1.0, 1.3, 0.7], np.float32), rows),
        frequency=rng.choice(np.array([0.0, 0.5, -1.1], np.float32), rows),
        presence=rng.choice(np.array([0.0, 0.9, -0.3], np.float32), rows),
        tokens=rng.integers(-2, min(size, 30) + 2, counts.sum()).astype(np.int32),
        starts=starts,
        outputs=(starts[:-1] + rng.integers(0, counts + 1)).astype(np.int32),
    )


def _bias(rng: np.random.Generator, rows: int, size: int) -> LogitBias:
    """Some rows have none, some a token twice, some one of no vocabulary."""
    counts = rng.integers(0, 6, rows) * (rng.random(rows) < 0.8)
    total = int(counts.sum())
    return LogitBias(
        tokens=rng.integers(-2, min(size, 30) + 2, total).astype(np.int32),
        values=rng.choice(np.array([-100, -0.3, 0.7, 5], np.float32), total),
        starts=np.cumsum([0, *counts]).astype(np.int32),
    )


def _wishes(seed: int, rows: int, size: int) -> list[dict[str, Any]]:
    """All of them, each alone, and all together."""
    rng = np.random.default_rng(seed)
    allowed = some_allowed(seed, rows, size)
    every = {"allowed": allowed, "bias": _bias(rng, rows, size), "penalties": _penalties(rng, rows, size)}
    return [{}, *({name: wish} for name, wish in every.items()), every]


@settings(max_examples=100)
@given(size=SIZES, data=st.data())
def test_adjusted_logits_are_the_oracles_bit_for_bit(size: int, data: st.DataObject) -> None:
    logits = make_logits(data, 7, size)
    before = logits.copy()
    for wishes in _wishes(size, 7, size):
        changed = device("auto", "float32").ops.adjust(logits, **wishes)
        assert same_bits(changed, oracle("float32").ops.adjust(logits, **wishes))
        assert same_bits(logits, before)


@pytest.mark.parametrize("isa", ISAS)
def test_draws_with_wishes_are_those_of_adjusted_logits(isa: str) -> None:
    logits = normal(4, 40, 300) * np.float32(3)
    logits[5, 7], logits[6, 8], logits[7, 9] = np.nan, np.inf, -np.inf
    ops = device(isa, "float32").ops
    for wishes in _wishes(5, 40, 300):
        changed = ops.adjust(logits, **wishes)
        for values in ({"temperature": 0}, {"top_p": 0.9}, {"top_k": 5}):
            columns = _columns(40, seeds=np.arange(40), **values)
            drawn = ops.sample(logits, **columns, **wishes)
            np.testing.assert_array_equal(drawn, ops.sample(changed, **columns))
            assert drawn[5] == drawn[6] == -1, "nothing is drawn from what no mask could have mended"


def test_biases_of_tokens_that_are_not_there_are_refused() -> None:
    logits, starts = normal(3, 2, 9), np.array([0, 1, 3], np.int32)
    good, ops = LogitBias(np.zeros(3, np.int32), np.ones(3, np.float32), starts), device("auto", "float32").ops
    assert ops.adjust(logits, bias=good).shape == (2, 9)
    wrong_starts = [("starts", starts) for starts in ([0, 4, 3], [1, 1, 3], [-1, 1, 3], [0, 1, 2], [0, 3])]
    for name, bad in [*wrong_starts, ("tokens", [1, 2]), ("values", [1.0])]:
        with pytest.raises(ValueError, match="bias"):
            ops.adjust(logits, bias=replace(good, **{name: np.array(bad, getattr(good, name).dtype)}))


def test_penalties_of_tokens_that_are_not_there_are_refused() -> None:
    logits, twice = normal(3, 2, 9), np.ones(2, np.float32)
    starts, outputs = np.array([0, 1, 3], np.int32), np.array([0, 2], np.int32)
    good, ops = Penalties(twice, twice, twice, np.zeros(3, np.int32), starts, outputs), device("auto", "float32").ops
    assert ops.adjust(logits, penalties=good).shape == (2, 9)
    wrong_starts = [("starts", starts) for starts in ([0, 1, 4], [1, 1, 3], [-1, 1, 3], [0, 1, 2], [0, 3])]
    wrong_outputs = [("outputs", outputs) for outputs in ([0, 0], [0, 4], [2, 2])]
    for name, bad in [*wrong_starts, *wrong_outputs, ("repetition", [1, 1, 1])]:
        with pytest.raises(ValueError, match="penalties"):
            ops.adjust(logits, penalties=replace(good, **{name: np.array(bad, getattr(good, name).dtype)}))


def test_draws_have_the_distribution_of_the_logits() -> None:
    count = 20000
    probabilities = np.array([0.5, 0.25, 0.125, 0.1, 0.02, 0.005])
    logits = np.tile(np.log(probabilities).astype(np.float32), (count, 1))
    for axis in ("positions", "seeds"):
        chosen = device("auto", "float32").ops.sample(logits, **_columns(count, **{axis: np.arange(count)}))
        seen = np.bincount(chosen, minlength=6) / count
        deviation = np.sqrt(probabilities * (1 - probabilities) / count)
        assert (np.abs(seen - probabilities / probabilities.sum()) < 4 * deviation).all()
    hot = device("auto", "float32").ops.sample(logits, **_columns(count, temperature=1e4, positions=np.arange(count)))
    assert np.abs(np.bincount(hot, minlength=6) / count - 1 / 6).max() < 0.02


def test_cuts_keep_what_they_say() -> None:
    count = 3000
    logits = np.tile(np.log(np.array([0.3, 0.1, 0.1, 0.3, 0.15, 0.05], np.float32)), (count, 1))
    cases: list[tuple[dict[str, Any], set[int]]] = [
        ({}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 3}),
        ({"top_k": 4}, {0, 1, 3, 4}),  # 1 and 2 are equal: the lower id stays
        ({"top_p": 0.0}, {0}),
        ({"top_p": 0.29}, {0}),
        ({"top_p": 0.31}, {0, 3}),
        ({"top_p": 0.74}, {0, 3, 4}),
        ({"top_p": 0.8}, {0, 1, 3, 4}),
        ({"min_p": 0.4}, {0, 3, 4}),
        ({"min_p": 1.0}, {0, 3}),
        ({"top_k": 3, "top_p": 0.7}, {0, 3}),  # of what top-k left, 0.6 / 0.75 is enough
        ({"top_p": 0.74, "min_p": 0.6}, {0, 3}),
        ({"top_k": 5, "min_p": 0.3}, {0, 1, 2, 3, 4}),
        ({"temperature": 0.0}, {0}),
        ({"temperature": 1e-6}, {0}),
        ({"temperature": 0.5, "min_p": 0.2}, {0, 3, 4}),  # after temperature: (0.15 / 0.3)^2 stays, (0.1 / 0.3)^2 goes
    ]
    for isa in ISAS:
        for values, kept in cases:
            chosen = device(isa, "float32").ops.sample(logits, **_columns(count, positions=np.arange(count), **values))
            assert set(chosen.tolist()) == kept, values


def test_a_draw_depends_on_its_row_seed_and_position_alone() -> None:
    logits = normal(1, 30, 5000)
    columns = _columns(30, seeds=np.arange(30) % 3, positions=np.arange(30) // 3, top_p=np.tile([1.0, 0.9, 0.5], 10))
    expected = np.array(device("auto", "float32").ops.sample(logits, **columns))
    order = np.random.default_rng(1).permutation(30)
    for threads in (1, 2, 3):
        ops = device("auto", "float32", threads).ops
        permuted = ops.sample(np.ascontiguousarray(logits[order]), **{name: value[order] for name, value in columns.items()})
        np.testing.assert_array_equal(permuted, expected[order])
        for i in (0, 17):
            alone = ops.sample(logits[i : i + 1], **{name: value[i : i + 1] for name, value in columns.items()})
            assert alone[0] == expected[i]
    flat = np.zeros((64, 1000), np.float32)
    for axis in ("seeds", "positions"):
        assert len(set(device("auto", "float32").ops.sample(flat, **_columns(64, **{axis: np.arange(64)})).tolist())) > 50


def test_nothing_is_drawn_from_unsound_rows() -> None:
    inf, nan = np.inf, np.nan
    logits = np.array([[nan, nan, nan], [-inf, -inf, -inf], [0, inf, inf], [nan, 0, -inf]], np.float32)
    for values in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}):
        for isa in ISAS:
            np.testing.assert_array_equal(device(isa, "float32").ops.sample(logits, **_columns(4, **values)), [-1] * 4)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60)
@given(size=SIZES, data=st.data())
def test_top_logprobs_is_the_oracles(isa: str, size: int, data: st.DataObject) -> None:
    logits = make_logits(data, 3, size)
    num = data.draw(st.sampled_from(sorted({min(size, n) for n in (0, 1, 5, 20, 200, 10**6)})))
    chosen = np.array([data.draw(st.integers(0, size - 1)) for _ in range(3)], np.int32)
    actual = device(isa, "float32").ops.top_logprobs(logits, chosen, num)
    expected = oracle("float32").ops.top_logprobs(logits, chosen, num)
    for a, b in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
    for i in (1, 2):
        np.testing.assert_array_equal(actual[i], expected[i])
    for i in (0, 3):
        np.testing.assert_allclose(actual[i], expected[i], rtol=1e-5, atol=1e-5)


def test_the_likeliest_are_of_the_row_where_some_are_infinite() -> None:
    """Their probabilities are no numbers; their places are the row's own all the same, whatever the thread did before."""
    for isa in ISAS:
        ops = device(isa, "float32", threads=1).ops
        ops.top_logprobs(normal(1, 1, 5000), np.zeros(1, np.int32), 5000)
        for logits in ([np.inf, 1, 2, 3], [np.inf] * 4, [3, np.inf, np.nan, np.inf]):
            row = np.array([logits], np.float32)
            for num in (1, 4):
                ids = ops.top_logprobs(row, np.zeros(1, np.int32), num)[2]
                with np.errstate(invalid="ignore"):
                    expected = oracle("float32").ops.top_logprobs(row, np.zeros(1, np.int32), num)[2]
                np.testing.assert_array_equal(ids, expected)


def test_ranks_among_ties_go_by_id() -> None:
    logits = np.array([[1, 2, 2, np.nan, 2, -np.inf, np.nan]], np.float32)
    for isa in ISAS:
        ops = device(isa, "float32").ops
        ranks = [int(ops.top_logprobs(logits, np.array([i], np.int32), 0)[1][0]) for i in range(7)]
        assert ranks == [4, 1, 2, 5, 3, 6, 7]
        assert ops.top_logprobs(logits, np.array([0], np.int32), 7)[2][0].tolist() == [1, 2, 4, 0, 3, 5, 6]


@pytest.mark.parametrize("isa", ISAS)
def test_a_share_that_is_exactly_enough_is_enough(isa: str) -> None:
    """Also where all logits are equal: the lowest ids stay."""
    logits = np.zeros((3000, 8), np.float32)
    drawn = device(isa, "float32").ops.sample(logits, **_columns(3000, positions=np.arange(3000), top_p=0.5))
    assert set(drawn.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("isa", ISAS)
def test_what_was_removed_is_not_drawn_by_the_largest_number_either(isa: str) -> None:
    """Shares summed one by one may come to less than their sum; behind the last of them there are some of nothing."""
    position = 50_466_012
    assert sampling.uniform(7, position) > 1 - 2e-9
    logits, allowed = normal(1, 200, 512), np.packbits(np.arange(512) < 300, bitorder="little").view("<i4")
    ops, columns = device(isa, "float32").ops, _columns(200, positions=position, top_k=np.tile([0, 100], 100))
    assert ops.sample(logits, **columns, allowed=np.tile(allowed, (200, 1))).max() < 300
    drawn = ops.sample(logits, **columns)
    assert (logits[np.arange(200), drawn] >= np.sort(logits, axis=1)[:, -100])[1::2].all()


def test_tokens_of_no_vocabulary_change_nothing_behind_the_logits() -> None:
    ops, one = CpuBackend(compute_dtype="float32", num_threads=1).ops, np.ones(1, np.float32)
    first, behind = [ops.gather_rows(normal(i, 1, 16), np.zeros(1, np.int32)) for i in range(2)]
    expected, place = behind.copy(), first.__array_interface__["data"][0]
    del first
    starts, tokens = np.array([0, 2], np.int32), np.array([16, -1], np.int32)
    penalties = Penalties(2 * one, one, one, tokens, starts, np.zeros(1, np.int32))
    changed = ops.adjust(normal(3, 1, 16), bias=LogitBias(tokens, np.ones(2, np.float32), starts), penalties=penalties)
    assert changed.__array_interface__["data"][0] == place == behind.__array_interface__["data"][0] - 64
    assert same_bits(changed, normal(3, 1, 16))
    assert same_bits(behind, expected)
