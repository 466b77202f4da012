"""The native device as such: how long results live, how many threads, what happens when memory or threads run out."""

import gc
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import octavo
from octavo.backends.base import AttentionShape
from octavo.backends.cpu.backend import CpuBackend
from octavo.quant.layouts import Dense
from tests.ops.devices import normal, same_bits
from tests.ops.test_attention import Chunk, Paged


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_results_are_their_own_while_referenced() -> None:
    """Also when they are far more than the device had memory for at first."""
    backend = CpuBackend(num_threads=1)
    x = [normal(i, 300, 1000) for i in range(12)]
    everything = np.arange(300, dtype=np.int32)
    results = [backend.ops.gather_rows(each, everything) for each in x]
    for _ in range(20):
        backend.ops.gather_rows(x[0] + 1, everything)
    assert all(same_bits(result, source) for result, source in zip(results, x, strict=True))


def test_memory_of_forgotten_results_is_used_again() -> None:
    """In any order of forgetting: gaps are joined, so that a larger result fits where smaller ones lay."""
    backend = CpuBackend(num_threads=2)
    x, rows = normal(1, 400, 1000), np.arange(400, dtype=np.int32)
    first = [backend.ops.gather_rows(x, rows) for _ in range(9)]
    seen = {address(result) for result in first}
    assert len(seen) == 9
    kept = first[4]
    for forget in (1, 0, 2, 8, 3, 5, 7, 6):
        first[forget] = kept
    again = [backend.ops.gather_rows(x, rows) for _ in range(8)]
    assert {address(result) for result in again} | {address(kept)} == seen
    assert same_bits(kept, x)
    del again, first, kept
    twice = backend.ops.gather_rows(np.concatenate([x, x]), np.arange(800, dtype=np.int32))
    assert address(twice) in seen


@pytest.mark.parametrize("num_threads", [1, 3])
def test_progress_is_seen_from_beside_in_the_middle_of_an_op(num_threads: int) -> None:
    backend = CpuBackend(num_threads=num_threads, isa="generic")
    weight = backend.weight(Dense(normal(1, 4096, 1024)))
    x = normal(2, 256, 1024).astype(bfloat16)
    idle = backend.progress()
    assert backend.progress() == idle
    seen = set[int]()
    with ThreadPoolExecutor(1) as beside:
        product = beside.submit(backend.ops.linear, x, weight)
        while not product.done():
            seen.add(backend.progress())
    assert product.result().shape == (256, 4096)
    assert len(seen - {idle}) > 3
    idle = backend.progress()
    assert backend.progress() == idle


def test_results_outlive_their_device() -> None:
    backend = CpuBackend(num_threads=2)
    x = normal(1, 300, 1000)
    result = backend.ops.gather_rows(x, np.arange(300, dtype=np.int32))
    del backend
    gc.collect()
    assert same_bits(result, x)


@pytest.mark.parametrize("threads", [0, -1, 1025, 2**31 - 1])
def test_a_senseless_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="the number of threads must be 1 to 1024"):
        CpuBackend(num_threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    backend, one = CpuBackend(num_threads=threads), CpuBackend(num_threads=1)
    assert backend.num_threads == threads
    assert backend.describe() == f"cpu, {backend.isa}, {threads} thread{'s' * (threads > 1)}, bfloat16"
    x, weight = normal(1, 200, 576), Dense(normal(2, 300, 576))
    paged = Paged(AttentionShape(6, 2, 64), 16, "bfloat16", (1200, 40))
    results = []
    for b in (one, backend):
        normed = b.ops.rms_norm(x, np.ones(576, np.float32), eps=1e-6)
        product = b.to_host(b.ops.linear(normed, b.weight(weight)))
        results.append([product, *paged.attend(b, paged.filled_cache(b), Chunk(0, 1199, 1200), Chunk(1, 0, 40))])
    assert all(same_bits(a, b) for a, b in zip(*results, strict=True))


def _threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


def test_devices_come_and_go_with_their_threads() -> None:
    before = _threads_of_this_process()
    x = normal(1, 64, 2048)
    for i in range(40):
        backend = CpuBackend(num_threads=1 + i % 5)
        assert _threads_of_this_process() == before + i % 5
        if i % 3:
            backend.ops.silu_and_mul(x)
        del backend
    assert _threads_of_this_process() == before


def test_two_callers_of_one_device_wait_for_each_other() -> None:
    """While a long op of one runs, ops of the other want more and more scratch memory."""
    long = Paged(AttentionShape(2, 2, 16), 3, "float32", (900,))
    greedy = [Paged(AttentionShape(12, 2, head_dim), 3, "float32", (40,)) for head_dim in range(24, 257, 8)]
    for _ in range(8):
        backend = CpuBackend(compute_dtype="float32", num_threads=2)
        caches = {paged: paged.filled_cache(backend) for paged in (long, *greedy)}

        def attend(paged: Paged, backend: CpuBackend = backend, caches: dict[Paged, Any] = caches) -> np.ndarray:
            return paged.attend(backend, caches[paged], Chunk(0, 0, paged.lengths[0]))[0]

        expected = attend(long)
        with ThreadPoolExecutor(2) as pool:
            others = pool.submit(list, map(attend, greedy))
            results = [attend(long)]
            while not others.done():
                results.append(attend(long))
        assert all(same_bits(result, expected) for result in results)
        assert all(same_bits(result, attend(paged)) for result, paged in zip(others.result(), greedy, strict=True))


def run_apart(script: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which may limit its memory or break."""
    head = """
        import os, resource, sys
        import numpy as np
        from octavo.backends.cpu.backend import CpuBackend

        def limit(megabytes):
            "Address space beyond what is mapped already; None: no limit."
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            soft = resource.RLIM_INFINITY if megabytes is None else used + (megabytes << 20)
            resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))

        def columns(rows):
            floats = {"temperature": np.ones(rows, np.float32), "top_p": np.full(rows, 0.9, np.float32)}
            floats["min_p"] = np.zeros(rows, np.float32)
            top_k, seeds = np.zeros(rows, np.int32), np.zeros(rows, np.uint64)
            return {**floats, "top_k": top_k, "seeds": seeds, "positions": np.arange(rows, dtype=np.int64)}
    """
    code = textwrap.dedent(head) + textwrap.dedent(script)
    root = Path(octavo.__file__).parents[1]  # where the package under test was imported from
    environment = {**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, cwd=root, check=False
    )


def test_memory_that_runs_out_in_a_thread_of_the_pool_is_a_memory_error() -> None:
    done = run_apart("""
        for threads in (1, 3):
            backend = CpuBackend(num_threads=threads)
            logits = np.zeros((4, 4_000_000), np.float32)
            small = np.zeros((4, 500), np.float32)
            before = backend.to_host(backend.ops.sample(small, **columns(4)))
            limit(8)
            try:
                backend.ops.sample(logits, **columns(4))
            except MemoryError:
                print("MemoryError")
            limit(None)
            assert (backend.ops.sample(small, **columns(4)) == before).all()
            assert len(set(backend.ops.sample(logits, **columns(4)).tolist())) > 1
    """)
    assert (done.returncode, done.stdout) == (0, "MemoryError\n" * 2), done.stderr


def test_results_that_do_not_fit_are_a_memory_error() -> None:
    done = run_apart("""
        backend = CpuBackend(num_threads=2)
        rows = np.zeros(2_000_000, np.int32)
        x = np.ones((2, 64), np.float32)
        limit(64)
        try:
            backend.ops.gather_rows(x, rows)
        except MemoryError:
            print("MemoryError")
        assert (backend.ops.gather_rows(x, rows[:3]) == 1).all()
    """)
    assert (done.returncode, done.stdout) == (0, "MemoryError\n"), done.stderr


def test_threads_that_the_system_refuses_are_an_error() -> None:
    done = run_apart("""
        limit(100)
        try:
            CpuBackend(num_threads=1000)
        except RuntimeError as error:
            print(type(error).__name__)
        limit(None)
        assert len(os.listdir("/proc/self/task")) == 1
        assert CpuBackend(num_threads=4).ops.argmax(np.eye(9, dtype=np.float32)).tolist() == list(range(9))
    """)
    assert (done.returncode, done.stdout) == (0, "RuntimeError\n"), done.stderr


def test_a_forked_child_computes_alone() -> None:
    """The child has none of the pool's threads; the op does not wait for them."""
    done = run_apart("""
        backend = CpuBackend(num_threads=4)
        x = np.random.default_rng(1).standard_normal((200, 4096), np.float32)
        expected = backend.to_host(backend.ops.silu_and_mul(x))
        child = os.fork()
        if child == 0:
            os._exit(0 if backend.ops.silu_and_mul(x).tobytes() == expected.tobytes() else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert done.returncode == 0, done.stderr


def test_results_begin_with_a_cache_line() -> None:
    backend, rows = CpuBackend(compute_dtype="float32", num_threads=2), np.arange(3, dtype=np.int32)
    results = [backend.ops.gather_rows(normal(1, 3, columns), rows) for columns in (1, 5, 17, 33)]
    assert [address(result) % 64 for result in results] == [0] * 4
