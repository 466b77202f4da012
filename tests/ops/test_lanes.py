"""Lanes: which batches have them, when they are chosen, the bits that they give, and cuts that are refused."""

import numpy as np
import pytest

from octavo.backends.base import Array, Batch
from octavo.backends.cpu import lanes
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.lanes import LEAST_ROWS, PERIOD, TRIES, Choice, Lanes, Trial
from octavo.quant.layouts import Dense
from tests.ops.devices import DTYPES, ISAS, device, normal, same_bits
from tests.ops.test_recorded import BATCHES, CAPACITY, KINDS, LENGTH, Tiny, batch_of, replay

DECODING = BATCHES[1], BATCHES[2], batch_of([1] * 5, [2, 30, 7, 7, 11])


def decoding(count: int) -> Batch:
    return batch_of([1] * count, [3] * count)


def test_only_batches_of_a_token_each_are_cut() -> None:
    one, two, four = lanes_at_once(1), lanes_at_once(2), lanes_at_once(4)
    assert one.trial(decoding(33)) == four.trial(decoding(4 * LEAST_ROWS - 1)) == Trial()
    assert two.trial(batch_of([2] + [1] * 16, [2] * 17)) == Trial()
    assert two.trial(decoding(17)).cuts == [[8]] * 3
    assert four.trial(decoding(33)).cuts == [[8, 16, 24]] * 3
    some = decoding(20)
    some.logits_rows = np.array([0, 3, 9, 10, 19], np.int32)
    assert two.trial(some).cuts == [[10], [10], [3]]


def lanes_at_once(num_threads: int) -> Lanes:
    made = Lanes(num_threads)
    for count in (17, 4 * LEAST_ROWS - 1, 33):
        choice = made._choices[count.bit_length()] = Choice()
        choice.lanes = True
    return made


def steps(choice: Choice, seconds: tuple[float, float], count: int) -> list[bool]:
    """What so many steps were, where they take so long as one and in lanes."""
    were = []
    for _ in range(count):
        were.append(choice.lanes)
        choice.took(seconds[choice.lanes], in_lanes=choice.lanes)
    return were


def test_both_ways_are_tried_and_the_faster_one_is_kept() -> None:
    choice, trial = Choice(), [False, True] * TRIES
    assert steps(choice, (1.0, 0.9), 2 * TRIES + PERIOD) == trial + [True] * PERIOD
    # They are apart no longer: what was better is tried first, and given up.
    assert steps(choice, (0.8, 0.9), 2 * TRIES + 2)[-2:] == [False, False]


def test_what_loses_is_tried_less_and_less() -> None:
    choice = Choice()
    assert steps(choice, (1.0, 1.1), 2 * TRIES + 2 * PERIOD)[2 * TRIES :] == [False] * 2 * PERIOD
    assert steps(choice, (1.0, 1.1), 2 * TRIES + 4 * PERIOD)[2 * TRIES :] == [False] * 4 * PERIOD
    # Once is enough where lanes take much longer.
    assert steps(choice, (1.0, 1.4), 2 + 8 * PERIOD) == [False, True] + [False] * 8 * PERIOD


def test_what_is_nearly_the_same_stays_as_it_is() -> None:
    choice = Choice()
    assert not any(steps(choice, (1.0, 0.99), 2 * TRIES + PERIOD)[2 * TRIES :])
    other = Choice()
    steps(other, (1.0, 0.9), 2 * TRIES + PERIOD)
    assert all(steps(other, (0.99, 1.0), 2 * TRIES + PERIOD)[2 * TRIES :])


def test_one_slow_step_decides_nothing() -> None:
    choice = Choice()
    for seconds in (1.0, 0.9, 1.0, 9.0, 1.0, 0.9):
        choice.took(seconds, in_lanes=choice.lanes)
    assert choice.lanes


def test_a_step_that_has_begun_before_counts_as_what_it_was() -> None:
    for seconds, best in (((1.0, 0.9), True), ((1.0, 1.1), False)):
        choice = Choice()
        under_way = choice.lanes
        for _ in range(3 * TRIES + PERIOD // 2):
            following = choice.lanes
            choice.took(seconds[under_way], in_lanes=under_way)
            under_way = following
        assert choice.lanes == best


@pytest.fixture
def in_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be is computed in lanes."""
    monkeypatch.setattr(lanes, "LEAST_ROWS", 1)
    monkeypatch.setattr(Choice, "took", lambda choice, seconds, in_lanes: None)
    monkeypatch.setattr(Choice, "__init__", lambda choice: setattr(choice, "lanes", True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_lanes_give_the_bits_of_the_eager_path(isa: str, dtype: str, kind: str, in_lanes: None) -> None:
    eager, recorded = Tiny(device(isa, dtype), kind), Tiny(device(isa, dtype), kind)
    graph = recorded.backend.capture(recorded.forward, CAPACITY)
    for batch in DECODING:
        for got, want in zip(replay(graph, batch), eager.forward(batch), strict=True):
            assert same_bits(got, want)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
def test_any_number_of_lanes(num_threads: int, in_lanes: None) -> None:
    eager, recorded = (Tiny(CpuBackend(compute_dtype="float32", num_threads=count), "int4") for count in (1, num_threads))
    graph = recorded.backend.capture(recorded.forward, CAPACITY)
    for batch in DECODING * 20:
        for got, want in zip(replay(graph, batch), eager.forward(batch), strict=True):
            assert same_bits(got, want)


def test_an_error_in_a_lane_is_told_and_the_next_batch_computed(in_lanes: None) -> None:
    model = Tiny(CpuBackend(compute_dtype="float32", num_threads=2), "dense")
    graph = model.backend.capture(model.forward, CAPACITY)
    for row in (0, 5):
        batch = batch_of([1] * 6, [3] * 6)
        batch.positions[row] = LENGTH
        with pytest.raises(ValueError, match="position out of range"):
            replay(graph, batch)
        assert all(np.isfinite(result).all() for result in replay(graph, batch_of([1] * 6, [3] * 6)))


def test_memory_of_rows_is_not_used_for_other_rows() -> None:
    """Lanes are not at the same op: what one writes must not be what another still reads."""
    backend = CpuBackend(compute_dtype="float32", num_threads=2)
    wide, narrow = backend.weight(Dense(normal(1, 96, 64))), backend.weight(Dense(normal(2, 64, 96)))
    places: dict[int, set[tuple[int, ...]]] = {}

    def forward(batch: Batch) -> tuple[Array, ...]:
        x = backend.ops.embedding(batch.input_ids, wide)
        for i in range(12):
            x = backend.ops.linear(x, narrow if i % 2 else wide)
            if i == 6:
                x = backend.ops.gather_rows(x, batch.logits_rows)
            places.setdefault(x.__array_interface__["data"][0], set()).add(x.shape)
        return (x,)

    backend.capture(forward, CAPACITY)
    assert len(places) <= 8 and all(len(shapes) == 1 for shapes in places.values())


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([[3], [2], [3]], "query_start must run from 0"),
        ([[3]], "query_start must run from 0"),
        ([[3], [3], [2]], "row out of range"),
        ([[3], [3], [2, 3]], "cut as often"),
        ([[4, 3], [4, 3], [4, 3]], "ascend"),
        ([[7], [7], [7]], "ascend"),
        ([[-1], [-1], [-1]], "ascend"),
        ([[3]] * 5, "no such group"),
    ],
)
def test_cuts_that_no_lanes_could_be_are_refused(cuts: list[list[int]], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tiny(CpuBackend(compute_dtype="float32", num_threads=2), "dense")
    graph = model.backend.capture(model.forward, CAPACITY)
    monkeypatch.setattr(Lanes, "trial", lambda lanes, batch: Trial(cuts))
    with pytest.raises(ValueError, match=message):
        replay(graph, BATCHES[1])
    monkeypatch.setattr(Lanes, "trial", lambda lanes, batch: Trial())
    assert all(np.isfinite(result).all() for result in replay(graph, BATCHES[0]))


def test_a_lane_gathers_no_row_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may not have been computed yet."""
    backend = CpuBackend(compute_dtype="float32", num_threads=2)
    table = backend.weight(Dense(normal(1, 96, 64)))

    def forward(batch: Batch) -> tuple[Array, ...]:
        return (backend.ops.gather_rows(backend.ops.embedding(batch.input_ids, table), batch.logits_rows),)

    graph, batch = backend.capture(forward, CAPACITY), batch_of([1] * 6, [3] * 6)
    monkeypatch.setattr(Lanes, "trial", lambda lanes, batch: Trial([[3], [3], [2]]))
    with pytest.raises(ValueError, match=r"row out of range: values must be in \[3, 6\), found 2"):
        replay(graph, batch)
    monkeypatch.setattr(Lanes, "trial", lambda lanes, batch: Trial([[3], [3], [3]]))
    assert len(replay(graph, batch)[0]) == 6
