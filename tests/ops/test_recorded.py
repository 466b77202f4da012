"""Recorded forwards: the bits of the eager path for every number of rows, and refusals instead of memory that is not theirs."""

import copy
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from octavo import _native
from octavo.backends.base import Array, AttentionShape, Backend, Batch, BatchCapacity, Graph
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.quant.integer import quantize_int4, quantize_int8
from octavo.quant.layouts import Dense, Layout, Stacked
from tests.ops.devices import DTYPES, ISAS, device, make_batch, normal, same_bits, some_allowed, spec_of, width_of

SHAPE = AttentionShape(4, 2, 16)
HIDDEN, INNER, VOCAB, BLOCK_SIZE, BLOCKS, LENGTH = 64, 96, 200, 4, 64, 48
CAPACITY = BatchCapacity(tokens=40, sequences=6, blocks=LENGTH // BLOCK_SIZE, logits_rows=6, vocab_size=VOCAB)
KINDS: dict[str, Callable[[np.ndarray], Layout]] = {
    "dense": Dense,
    "int8": quantize_int8,
    "int4": quantize_int4,
    "stacked": quantize_int4,
}


def run_alone(script: str, directory: Path) -> tuple[int, str, str]:
    """How a process that runs it ends, and what it says."""
    package, tests = Path(_native.__file__).parents[1], Path(__file__).parents[2]  # the one that is tested, installed or not
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{tests}"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]  # of forks beside threads
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


class Tiny:
    """Two layers of every op that a forward may record, over one cache."""

    def __init__(self, backend: Backend, kind: str) -> None:
        self.backend = backend
        sizes = [(VOCAB, HIDDEN), (width_of(SHAPE), HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER)]
        matrices = [KINDS[kind](normal(i, *size) / 8) for i, size in enumerate(sizes)]
        self.table, *self.layer = [backend.weight(matrix, vocabulary=i == 0) for i, matrix in enumerate(matrices)]
        if kind == "stacked":
            qkv = normal(1, *sizes[1]) / 8
            self.layer[0] = backend.weight(Stacked((quantize_int4(qkv[:HIDDEN]), quantize_int8(qkv[HIDDEN:]))))
        self.gated = backend.weight(KINDS[kind](normal(3, 2 * INNER, HIDDEN) / 8), gated=True)
        self.norm, self.bias = backend.tensor(normal(20, HIDDEN)), backend.tensor(normal(21, width_of(SHAPE)))
        self.head_norm, self.rotary = backend.tensor(normal(22, SHAPE.head_dim)), backend.tensor(normal(23, LENGTH, 16))
        spec = spec_of(SHAPE, BLOCK_SIZE, backend.compute_dtype, layers=2)
        self.cache = backend.kv_cache(spec, num_blocks=BLOCKS, num_host_blocks=0)

    def forward(self, batch: Batch) -> tuple[Array, ...]:
        ops = self.backend.ops
        qkv_weight, out, gate_up, down = self.layer
        x = ops.embedding(batch.input_ids, self.table)
        for layer in range(2):
            qkv = ops.linear(ops.rms_norm(x, self.norm, eps=1e-5), qkv_weight, bias=self.bias)
            ops.head_norm(qkv, self.head_norm, SHAPE, part="k", eps=1e-5)
            ops.rotary(qkv, batch.positions, self.rotary, SHAPE)
            last = layer == 1
            rows = batch.logits_rows if last else None
            attended = ops.attention(self.cache, layer, qkv, batch, SHAPE, scale=0.25, window=None, rows=rows)
            x = ops.gather_rows(x, rows) if last else x
            x = ops.linear(attended, out, residual=x)
            normed = ops.rms_norm(x, self.norm, eps=1e-5)
            gated = ops.gated_linear(normed, self.gated) if last else ops.silu_and_mul(ops.linear(normed, gate_up))
            x = ops.linear(gated, down, residual=x)
        normed = ops.rms_norm(x, self.norm, eps=1e-5)
        logits = ops.linear(normed, self.table)
        return x, logits, ops.argmax(logits), ops.linear_argmax(normed, self.table, batch.allowed)


def batch_of(query_lens: list[int], seq_lens: list[int], *, width: int | None = None, masked: bool = False) -> Batch:
    ids = np.random.default_rng(3).permutation(BLOCKS).astype(np.int32)
    batch = make_batch(query_lens, seq_lens, BLOCK_SIZE, ids, width=width)
    batch.input_ids = (np.arange(len(batch.positions), dtype=np.int32) * 7 + 3) % VOCAB
    batch.logits_rows = batch.query_start[1:] - np.int32(1)
    if masked:
        batch.allowed = some_allowed(len(query_lens), len(query_lens), VOCAB)
    return batch


BATCHES = [
    batch_of([3], [3]),
    batch_of([1, 1, 1, 1, 1, 1], [4, 9, 1, 33, 48, 17], width=CAPACITY.blocks),
    batch_of([1, 1, 1, 1], [4, 9, 1, 33], masked=True),
    batch_of([1], [4]),
    batch_of([20, 1, 19], [20, 7, 30]),
    batch_of([2], [40]),
]


def results_of(forward: Callable[[Batch], tuple[Array, ...]]) -> list[np.ndarray]:
    """Of all batches, one after the other, on one cache."""
    return [np.array(result) for batch in BATCHES for result in forward(batch)]


def replay(graph: Graph, batch: Batch) -> tuple[Array, ...]:
    graph.start(batch)
    return graph.result()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_replay_gives_the_bits_of_the_eager_path(isa: str, dtype: str, kind: str) -> None:
    eager, recorded = Tiny(device(isa, dtype), kind), Tiny(device(isa, dtype), kind)
    graph = recorded.backend.capture(recorded.forward, CAPACITY)
    expected = results_of(eager.forward)
    for got, want in zip(results_of(partial(replay, graph)), expected, strict=True):
        assert same_bits(got, want)


def test_the_reference_captures_too() -> None:
    model = Tiny(ReferenceBackend(compute_dtype="float32"), "dense")
    graph = model.backend.capture(model.forward, CAPACITY)
    assert all(np.isfinite(result).all() for result in results_of(partial(replay, graph)))
    with pytest.raises(ValueError, match="larger than the graph's capacity"):
        replay(graph, batch_of([41], [41]))


@pytest.fixture
def graph() -> Graph:
    model = Tiny(device("generic", "float32"), "dense")
    return model.backend.capture(model.forward, CAPACITY)


def test_eager_ops_in_between_do_not_disturb_a_recording(graph: Graph) -> None:
    expected = [np.array(result) for result in replay(graph, BATCHES[0])]
    other = Tiny(device("generic", "float32"), "dense")
    kept = [other.forward(batch) for batch in BATCHES]
    for got, want in zip(replay(graph, BATCHES[0]), expected, strict=True):
        assert same_bits(got, want)
    assert len(kept) == len(BATCHES)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_ids", [0, 1, VOCAB], "token id out of range"),
        ("input_ids", [0, 1], "as many rows"),
        ("positions", [0, 1, LENGTH], "position out of range"),
        ("slot_mapping", [0, 1, BLOCKS * BLOCK_SIZE], "slot out of range"),
        ("query_start", [0, 2], "query_start must run from 0"),
        ("query_start", [0, 1, 3], "one value more"),
        ("seq_lens", [5], "too short for its sequence"),
        ("seq_lens", [2], "shorter than its queries"),
        ("block_tables", [[BLOCKS]], "block id out of range"),
        ("block_tables", [list(range(CAPACITY.blocks + 1))], "larger than the program's"),
        ("logits_rows", [3], "row out of range"),
        ("logits_rows", [0] * 7, "larger than the program's"),
        ("allowed", [[0] * (VOCAB // 32 + 2)], "larger than the program's"),
        ("allowed", [[0], [0]], "as many rows"),
        ("allowed", [[0]], "allowed must have a bit for each logit"),
    ],
)
def test_bad_batches_are_refused(graph: Graph, field: str, value: list[int], message: str) -> None:
    batch = batch_of([3], [3])
    setattr(batch, field, np.array(value, np.int32))
    with pytest.raises(ValueError, match=message):
        replay(graph, batch)
    assert all(np.isfinite(result).all() for result in replay(graph, batch_of([3], [3]))), "and the next one is computed"


def test_arrays_of_another_type_are_refused(graph: Graph) -> None:
    batch = batch_of([3], [3])
    batch.positions = batch.positions.astype(np.int64)
    with pytest.raises(TypeError, match="int32"):
        replay(graph, batch)


@pytest.fixture(params=[1, 2, 3])
def model(request: pytest.FixtureRequest) -> Tiny:
    """On so many threads."""
    return Tiny(CpuBackend(compute_dtype="float32", num_threads=request.param), "dense")


def test_what_was_started_is_done_before_anything_else(model: Tiny) -> None:
    """By the caller himself, by other threads of his, and by further programs."""
    graph = model.backend.capture(model.forward, CAPACITY)
    whole = [batch_of([3], [3]), batch_of([20, 1, 17], [20, 1, 17])]  # read nothing that others have left in the cache
    expected = [[np.array(result) for result in replay(graph, batch)] for batch in whole]
    for _ in range(50):
        for batch, want in zip(whole, expected, strict=True):
            graph.start(batch)
            between = threading.Thread(target=model.backend.ops.silu_and_mul, args=(normal(1, 3, 64),))
            between.start()
            model.backend.ops.silu_and_mul(normal(2, 5, 64))
            for got, one in zip(graph.result(), want, strict=True):
                assert same_bits(got, one)
            between.join()
        graph.start(whole[0])  # nobody asks for its results
        assert same_bits(replay(graph, whole[1])[0], expected[1][0])


def greedy(model: Tiny, batch: Batch) -> tuple[Array, ...]:
    return (model.forward(batch)[3],)


def going_on(backend: Backend) -> tuple[Tiny, Graph]:
    model = Tiny(backend, "dense")
    return model, backend.capture(partial(greedy, model), CAPACITY)


FIRST, SECOND = batch_of([20, 1, 17], [20, 1, 17]), batch_of([3, 1], [3, 1])
"""They read nothing that others have left in the cache."""


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_going_on_is_a_result_and_a_start(threads: int) -> None:
    """Of any number of threads, and of the reference."""
    _, graph = going_on(
        CpuBackend(compute_dtype="float32", num_threads=threads) if threads else ReferenceBackend(compute_dtype="float32")
    )
    first, filled = np.array(replay(graph, FIRST)[0]).tolist(), copy.copy(SECOND)
    filled.input_ids = SECOND.input_ids.copy()
    filled.input_ids[[2, 3]] = first[2], first[0]
    second = np.array(replay(graph, filled)[0]).tolist()
    assert len({*first, *second}) > 3
    for _ in range(50 if threads else 1):
        graph.start(FIRST)
        for _ in range(2):
            unfilled = copy.copy(SECOND)
            unfilled.input_ids = SECOND.input_ids.copy()
            assert graph.go_on(unfilled, [2, 3], [2, 0]) == first
            assert graph.go_on(FIRST, [], []) == second
        assert np.array(graph.result()[0]).tolist() == first


def test_a_row_without_a_token_goes_on_with_the_first_token(model: Tiny) -> None:
    broken, graph = going_on(model.backend)
    np.asarray(broken.bias)[:] = np.nan
    graph.start(FIRST)
    assert graph.go_on(SECOND, [2], [1]) == [-1] * 3
    assert np.array(graph.result()[0]).tolist() == [-1] * 2


def test_what_cannot_go_on_does_not_begin(model: Tiny) -> None:
    _, graph = going_on(model.backend)
    expected = np.array(replay(graph, FIRST)[0]).tolist()
    for gaps, rows, message in (
        ([0], [], "one row"),
        ([4], [0], "outside"),
        ([-1], [0], "outside"),
        ([0], [3], "out of range"),
    ):
        graph.start(FIRST)
        with pytest.raises(ValueError, match=message):
            graph.go_on(SECOND, gaps, rows)
    with pytest.raises(ValueError, match="larger than the program's"):
        graph.go_on(batch_of([41], [41]), [], [])
    wrong = batch_of([3], [3])
    wrong.positions = np.array([0, 1, LENGTH], np.int32)
    graph.start(wrong)
    with pytest.raises(ValueError, match="position out of range"):
        graph.go_on(SECOND, [0], [0])
    assert np.array(replay(graph, FIRST)[0]).tolist() == expected


def test_an_error_is_told_by_whoever_asks_for_results(model: Tiny) -> None:
    graph = model.backend.capture(model.forward, CAPACITY)
    batch = batch_of([3], [3])
    batch.positions = np.array([0, 1, LENGTH], np.int32)
    graph.start(batch)
    model.backend.ops.silu_and_mul(normal(1, 2, 64))
    with pytest.raises(ValueError, match="position out of range"):
        graph.result()
    graph.result()  # once
    graph.start(batch)  # nobody hears of this one
    assert all(np.isfinite(result).all() for result in replay(graph, BATCHES[0]))


def test_a_program_that_runs_may_be_forgotten(model: Tiny) -> None:
    for _ in range(20):
        graph = model.backend.capture(model.forward, CAPACITY)
        graph.start(BATCHES[4])
        del graph
        gc.collect(0)


def test_an_interpreter_that_ends_in_the_middle_of_a_program(tmp_path: Path) -> None:
    script = """
from tests.ops.test_recorded import BATCHES, CAPACITY, CpuBackend, Tiny

model = Tiny(CpuBackend(compute_dtype="float32", num_threads=2), "dense")
graph = model.backend.capture(model.forward, CAPACITY)
graph.start(BATCHES[4])
"""
    assert run_alone(script, tmp_path) == (0, "", "")


def test_an_interpreter_that_ends_while_a_daemon_thread_computes(tmp_path: Path) -> None:
    script = """
import threading
from tests.ops.test_recorded import BATCHES, CAPACITY, CpuBackend, Tiny

model = Tiny(CpuBackend(compute_dtype="float32", num_threads=2), "dense")
graph = model.backend.capture(model.forward, CAPACITY)
begun = threading.Event()

def compute() -> None:
    while True:
        graph.start(BATCHES[4])
        graph.result()
        begun.set()

threading.Thread(target=compute, daemon=True).start()
begun.wait()
"""
    for _ in range(3):
        assert run_alone(script, tmp_path) == (0, "", "")


def test_a_process_that_is_forked_in_the_middle_of_a_step_is_told_so_or_finishes_it_and_ends(tmp_path: Path) -> None:
    """It has none of the threads that it would wait for."""
    script = """
import os, signal, sys
from tests.ops.test_recorded import BATCHES, CAPACITY, CpuBackend, Tiny, replay

model = Tiny(CpuBackend(compute_dtype="float32", num_threads=3), "dense")
graph = model.backend.capture(model.forward, CAPACITY)
expected = [result.tobytes() for result in replay(graph, BATCHES[4])]
for i in range(60):
    graph.start(BATCHES[4])
    for _ in range(i * 37 % 2000):
        pass
    child = os.fork()
    if not child:
        signal.alarm(20)
        for use in (graph.result, lambda: replay(graph, BATCHES[4])):
            try:
                if [result.tobytes() for result in use()] != expected:
                    sys.exit(4)
            except RuntimeError as error:
                assert "forked in the middle" in str(error)
        sys.exit(3)
    graph.result()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
    assert run_alone(script, tmp_path) == (0, "", "")


def test_a_process_that_is_forked_while_a_thread_computes_is_told_so(tmp_path: Path) -> None:
    """In the middle for sure: after the first of forty products, on a device that needs a tenth of a second for all."""
    script = """
import os, signal, sys
from octavo.quant.layouts import Dense
from tests.ops.devices import normal
from tests.ops.test_recorded import CAPACITY, CpuBackend, batch_of

backend = CpuBackend(compute_dtype="float32", isa="generic", num_threads=2)
weight = backend.weight(Dense(normal(1, 1024, 1024)))

def forward(batch):
    x = backend.ops.embedding(batch.input_ids, weight)
    for _ in range(40):
        x = backend.ops.linear(x, weight)
    return (x,)

graph = backend.capture(forward, CAPACITY)
before = backend.progress()
graph.start(batch_of([40], [40]))
while backend.progress() == before:
    pass
child = os.fork()
if not child:
    signal.alarm(20)
    try:
        graph.result()
    except RuntimeError as error:
        sys.exit(3 if "forked in the middle" in str(error) else 4)
    sys.exit(5)
graph.result()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
    assert run_alone(script, tmp_path) == (0, "", "")


def test_a_process_that_is_forked_after_a_step_has_its_results(tmp_path: Path) -> None:
    """Though nobody has asked for them before."""
    script = """
import os, signal, sys, time
from tests.ops.test_recorded import BATCHES, CAPACITY, CpuBackend, Tiny, replay

model = Tiny(CpuBackend(compute_dtype="float32", num_threads=2), "dense")
graph = model.backend.capture(model.forward, CAPACITY)
expected = [result.tobytes() for result in replay(graph, BATCHES[0])]
before = model.backend.progress()
graph.start(BATCHES[0])
while (now := model.backend.progress()) == before or now != (time.sleep(0.5), model.backend.progress())[1]:
    pass
child = os.fork()
if not child:
    signal.alarm(20)
    sys.exit(0 if [result.tobytes() for result in graph.result()] == expected else 4)
graph.result()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_alone(script, tmp_path) == (0, "", "")


def test_a_failure_is_told_by_the_graph_that_failed() -> None:
    """Whatever else waits for the device meanwhile, as a graph that is freed does."""
    model = Tiny(CpuBackend(compute_dtype="float32", num_threads=2), "dense")
    freed, graph = (model.backend.capture(model.forward, CAPACITY) for _ in range(2))
    replay(graph, BATCHES[0])
    batch = batch_of([3], [3])
    batch.positions = np.array([0, 1, LENGTH], np.int32)
    graph.start(batch)
    del freed
    gc.collect()
    with pytest.raises(ValueError, match="position out of range"):
        graph.result()
    assert len(replay(graph, BATCHES[0])) > 0


def test_a_graph_keeps_what_it_needs_alive() -> None:
    def capture() -> Graph:
        model = Tiny(CpuBackend(compute_dtype="float32", num_threads=2), "int8")
        return model.backend.capture(model.forward, CAPACITY)

    graph = capture()
    first = [np.array(result) for result in replay(graph, BATCHES[0])]
    junk = [normal(i, 1000) for i in range(50)]
    for got, want in zip(replay(graph, BATCHES[0]), first, strict=True):
        assert same_bits(got, want)
    assert len(junk) == 50


def test_memory_of_a_recording_is_used_again_within_it() -> None:
    backend = CpuBackend(compute_dtype="float32", num_threads=1)
    weight, seen = backend.weight(Dense(normal(1, 64, 64))), set()

    def forward(batch: Batch) -> tuple[Array, ...]:
        x = backend.ops.embedding(batch.input_ids, weight)
        for _ in range(10):
            x = backend.ops.linear(x, weight)
            seen.add(x.__array_interface__["data"][0])
        return (x,)

    backend.capture(forward, CAPACITY)
    assert len(seen) <= 3


def test_what_cannot_be_recorded_is_refused() -> None:
    backend = CpuBackend(compute_dtype="float32", num_threads=1)
    program = backend._device.new_program()
    for size in ((0, 1), (2**31 + 1, 1), (1, 2**31 + 1), (2**16, 2**16), (2**31, 2**30), (2**31, 2**31)):
        with pytest.raises(ValueError, match="size out of range"):
            program.input(0, *size)
    ids = program.input(0, 4)
    weight = backend.weight(Dense(normal(1, 8, 8)))
    backend._device.begin_recording(program)
    try:
        rows = np.asarray(backend.ops.embedding(ids, weight))
        with pytest.raises(ValueError, match="neither an input nor a result"):
            backend.ops.embedding(np.zeros(4, np.int32), weight)
        for view in (rows.reshape(2, 16), rows.reshape(8, 4), rows[:2]):  # replays would compute as many rows as there were
            with pytest.raises(ValueError, match="shape it was made with"):
                backend.ops.rms_norm(view, np.ones(view.shape[1], np.float32), eps=1e-5)
        with pytest.raises(ValueError, match="cannot be recorded"):
            backend.ops.top_logprobs(normal(1, 1, 8), np.zeros(1, np.int32), 0)
        with pytest.raises(ValueError, match="still being recorded"):
            backend._device.start(program, [np.zeros(4, np.int32)])
        with pytest.raises(ValueError, match="recorded already"):
            backend._device.begin_recording(program)
        with pytest.raises(ValueError, match="before the program's first op"):
            program.input(0, 4)
    finally:
        backend._device.end_recording()
    with pytest.raises(ValueError, match="the program has been recorded already"):
        backend._device.begin_recording(program)
    with pytest.raises(ValueError, match="one array for each input"):
        backend._device.start(program, [])
    with pytest.raises(ValueError, match="another device"):
        CpuBackend(compute_dtype="float32", num_threads=1)._device.start(program, [np.zeros(4, np.int32)])
    backend._device.start(program, [np.zeros(2, np.int32)])
    backend._device.finish(program)
    backend._device.finish(program)
    backend._device.wait()
    assert program.num_ops == 1
    assert _native.Program is type(program)
