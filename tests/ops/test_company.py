"""Threads beside other programs: one that is put aside while others wait for it is given a core, and no result changes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from octavo.backends.base import Array, Batch
from octavo.backends.cpu.backend import CpuBackend
from octavo.quant.layouts import Dense
from tests.ops.devices import ISAS, normal, same_bits
from tests.ops.test_recorded import CAPACITY, VOCAB, batch_of

BATCH = batch_of([17, 1, 5], [17, 4, 9])
CORES = sorted(os.sched_getaffinity(0))
PATIENCE = 120.0
"""Seconds that something which other programs delay may take."""


@pytest.fixture
def busy() -> Iterator[Callable[[int], None]]:
    """Starts a program that keeps a core busy."""
    programs: list[subprocess.Popen[bytes]] = []

    def start(core: int) -> None:
        text = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
        programs.append(subprocess.Popen([sys.executable, "-c", text]))

    yield start
    for program in programs:
        program.kill()
        program.wait()


def threads() -> set[int]:
    return set(map(int, os.listdir("/proc/self/task")))


class Model:
    """One product, and the threads that its backend began."""

    def __init__(self, num_threads: int) -> None:
        before = threads()
        self._backend = CpuBackend(compute_dtype="float32", isa=ISAS[0], num_threads=num_threads)
        self.workers = threads() - before
        self._table = self._backend.weight(Dense(normal(1, VOCAB, 256)), vocabulary=True)
        self._weight = self._backend.weight(Dense(normal(2, 2048, 256)))
        self._graph = self._backend.capture(self._forward, CAPACITY)

    def _forward(self, batch: Batch) -> tuple[Array, ...]:
        ops = self._backend.ops
        return (ops.linear(ops.embedding(batch.input_ids, self._table), self._weight),)

    def op_by_op(self) -> np.ndarray:
        (result,) = self._forward(BATCH)
        return self._backend.to_host(result)

    def recorded(self) -> np.ndarray:
        self._graph.start(BATCH)
        (result,) = self._graph.result()
        return self._backend.to_host(result)


mask = os.sched_getaffinity


def may_go_anywhere(ids: set[int]) -> bool:
    """In the end: who trades is on one core until its turn comes there."""
    until = time.monotonic() + PATIENCE
    while any(mask(thread) != set(CORES) for thread in ids) and time.monotonic() < until:
        time.sleep(0.01)
    return all(mask(thread) == set(CORES) for thread in ids)


@pytest.mark.skipif(len(CORES) < 2, reason="two cores are needed to trade them")
@pytest.mark.parametrize("compute", [Model.op_by_op, Model.recorded])
@pytest.mark.parametrize("num_threads", [2, 3])
def test_a_thread_whose_core_is_taken_gets_another_one(
    busy: Callable[[int], None], compute: Callable[[Model], np.ndarray], num_threads: int
) -> None:
    taken = CORES[1]
    model = Model(num_threads)
    pinned, *free = sorted(model.workers)
    assert mask(pinned) == set(CORES)
    os.sched_setaffinity(pinned, [taken])
    alone = compute(model).copy()
    busy(taken)
    until = time.monotonic() + PATIENCE
    while mask(pinned) == {taken}:
        assert same_bits(compute(model), alone)
        assert time.monotonic() < until, "it waits for its core, and the others for it"
    assert len(mask(pinned)) == 1  # still pinned
    # Threads that may go anywhere still may.
    for _ in range(500):
        assert same_bits(compute(model), alone)
    assert may_go_anywhere({*free, threading.get_native_id()})


def test_where_all_cores_are_taken_results_are_the_same(busy: Callable[[int], None]) -> None:
    model = Model(3)
    alone = model.recorded().copy()
    for core in CORES:
        busy(core)
    for _ in range(300):
        assert same_bits(model.recorded(), alone)
        assert same_bits(model.op_by_op(), alone)
    assert may_go_anywhere({*model.workers, threading.get_native_id()})
