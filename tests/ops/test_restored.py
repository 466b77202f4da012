"""Packed weights taken apart and put together again: the same bits from memory that ends where a page does, with nothing after
it; and arrays that are no weight's are refused."""

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.stacked import StackedWeight
from octavo.quant.layouts import Dense, Layout, Stacked
from tests.ops.devices import BF16, DTYPES, FIXED, ISAS, act, normal, same_bits
from tests.ops.test_compact import COMPACT
from tests.ops.test_integer import KINDS, random_weight

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def before_a_wall(array: np.ndarray) -> np.ndarray:
    """A copy after which no memory may be touched, and which cannot be written to."""
    room = -(-array.nbytes // _PAGE) * _PAGE
    memory = mmap.mmap(-1, room + _PAGE)
    begin = room - array.nbytes
    memory[begin:room] = array.tobytes()
    whole = np.frombuffer(memory, np.uint8)
    address = ctypes.c_void_p(whole.ctypes.data)
    assert _libc.mprotect(address, ctypes.c_size_t(room), mmap.PROT_READ) == 0
    assert _libc.mprotect(ctypes.c_void_p(whole.ctypes.data + room), ctypes.c_size_t(_PAGE), 0) == 0
    copy: np.ndarray = whole[begin:room].view(array.dtype)
    return copy


def restored(backend: CpuBackend, weight: Any) -> Any:
    form, arrays = backend.take_apart(weight)
    return backend.put_together(form, [array if array.nbytes % 64 else before_a_wall(array) for array in arrays])


def assert_same(backend: CpuBackend, weight: Any, again: Any, columns: int) -> None:
    ops = backend.ops
    assert (again.rows, again.columns, again.gated, again.num_bytes) == (
        weight.rows,
        weight.columns,
        weight.gated,
        weight.num_bytes,
    )
    for rows in (1, 2, 5, 12, 17, 70):
        x = act(normal(rows, rows, columns), backend.compute_dtype)
        if weight.gated:
            assert same_bits(np.array(ops.gated_linear(x, again)), np.array(ops.gated_linear(x, weight)))
            continue
        assert same_bits(np.array(ops.linear(x, again)), np.array(ops.linear(x, weight)))
        if isinstance(weight, StackedWeight):
            continue
        assert same_bits(np.array(ops.linear_argmax(x, again)), np.array(ops.linear_argmax(x, weight)))
    if not weight.gated and not getattr(weight, "paired", isinstance(weight, StackedWeight)):
        ids = np.arange(weight.rows, dtype=np.int32)[::-1].copy()
        assert same_bits(np.array(ops.embedding(ids, again)), np.array(ops.embedding(ids, weight)))


def backend_of(isa: str, dtype: str = "bfloat16", bits: int = 8, tuning: str = "zen4") -> CpuBackend:
    return CpuBackend(compute_dtype=dtype, isa=isa, num_threads=2, activation_bits=bits, tuning=tuning)


def dense(rows: int, columns: int, *, spread: bool = False) -> Dense:
    """Of ``spread`` numbers some are exceptions of compact blocks."""
    matrix = normal(rows, rows, columns)
    if spread:
        matrix[::7, ::31] *= 1e-20
        matrix[-1, -1] = 3e20
    return Dense(matrix.astype(BF16))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
def test_plain_numbers(isa: str, dtype: str, gated: bool) -> None:
    backend = backend_of(isa, dtype)
    for rows, columns, spread in ((128, 96, False), (192, 40, False), (1024, 128, True), (64, 33, True)):
        weight = backend.weight(dense(rows, columns, spread=spread), gated=gated)
        assert_same(backend, weight, restored(backend, weight), columns)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("gated", [False, True])
def test_integers(isa: str, kind: str, bits: int, gated: bool) -> None:
    backend = backend_of(isa, bits=bits)
    for rows, groups in ((64, 1), (128, 4), (320, 3)):
        layout = random_weight(rows, kind, rows + (0 if gated else 5), groups)
        weight = backend.weight(layout, gated=gated)
        assert_same(backend, weight, restored(backend, weight), 32 * groups)


def test_several_that_are_one() -> None:
    backend = backend_of("auto")
    parts: tuple[Layout, ...] = (random_weight(1, "int4", 40, 2), random_weight(2, "int8", 24, 2), dense(64, 64))
    weight = backend.weight(Stacked(parts))  # type: ignore[arg-type]  # any layouts
    assert_same(backend, weight, restored(backend, weight), 64)


@pytest.mark.parametrize("isa", ISAS)
def test_a_list_of_few_columns_is_made_of_both(isa: str) -> None:
    """What a head has beside it is made anew, and finds the same."""
    backend = backend_of(isa)
    for layout in (dense(2048, 64), random_weight(3, "int8", 2048, 2)):
        weight = backend.weight(layout, vocabulary=True)
        again = restored(backend, weight)
        for one in (weight, again):
            backend.shortlist(one, np.linspace(0.5, 2, 64, dtype=np.float32))
        assert len(again.shortlists) == len(weight.shortlists)
        x = act(normal(5, 3, 64), "bfloat16")
        assert same_bits(np.array(backend.ops.linear_argmax(x, again)), np.array(backend.ops.linear_argmax(x, weight)))


def test_memory_lives_as_long_as_a_weight_of_it() -> None:
    backend = backend_of("auto")
    weight = backend.weight(random_weight(1, "int8", 64, 2))
    x = act(normal(1, 4, 64), "bfloat16")
    expected = np.array(backend.ops.linear(x, weight))
    form, arrays = backend.take_apart(weight)
    del weight
    again = backend.put_together(form, arrays)
    del arrays
    _ = [backend.weight(random_weight(seed, "int8", 64, 2)) for seed in range(20)]
    assert same_bits(np.array(backend.ops.linear(x, again)), expected)


def aligned(array: np.ndarray, *, by: int = 0) -> np.ndarray:
    """A copy that begins so many bytes after a cache line."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    begin = -room.ctypes.data % 64 + by
    room[begin : begin + array.nbytes] = array.view(np.uint8)
    copy: np.ndarray = room[begin : begin + array.nbytes].view(array.dtype)
    return copy


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 7}, "bits must be"),
        ({"bits": 5}, "as large as the weight"),
        ({"rows": 65}, "as large as the weight"),
        ({"rows": -1}, "size out of range"),
        ({"columns": 2**40}, "out of range"),
        ({"columns": 65}, "groups of 32"),
        ({"columns": 0}, "size out of range"),
        ({"gated": True, "rows": 60}, "multiple of 64"),
    ],
)
def test_integers_that_are_none(changes: dict[str, Any], words: str) -> None:
    backend = backend_of("auto")
    form, arrays = backend.take_apart(backend.weight(random_weight(1, "int8", 64, 2)))
    with pytest.raises(ValueError, match=words):
        backend.put_together({**form, **changes}, arrays)


def test_memory_that_is_none() -> None:
    backend = backend_of("auto")
    for layout in (random_weight(1, "int8", 64, 2), dense(64, 64)):
        form, (memory, *rest) = backend.take_apart(backend.weight(layout))
        for wrong, words in (
            (memory[:-64], "as large as"),
            (memory[:0], "as large as"),
            (aligned(memory, by=4), "begin with a cache line"),
        ):
            with pytest.raises(ValueError, match=words):
                backend.put_together(form, [wrong, *rest])
        for never in (memory.view(np.int32), memory[::2], memory.reshape(2, -1)):
            with pytest.raises(TypeError):
                backend.put_together(form, [never, *rest])
        with pytest.raises(ValueError, match="fewer arrays"):
            backend.put_together(form, [])
        with pytest.raises(ValueError, match="more arrays"):
            backend.put_together(form, [memory, *rest, memory])
        with pytest.raises(KeyError):
            backend.put_together({}, [memory])
        with pytest.raises(TypeError):
            backend.put_together({**form, "rows": "64"}, [memory, *rest])


@pytest.mark.parametrize("isa", [*COMPACT, *(isa for isa in FIXED if isa in ISAS)])
def test_exceptions_that_are_none(isa: str) -> None:
    backend = backend_of(isa)
    matrix = normal(1, 1024, 128).astype(BF16)
    matrix[::40, ::31] *= BF16.type(1e-9)
    form, arrays = backend.take_apart(backend.weight(Dense(matrix)))
    assert form["compact"]
    memory, highs, exceptions, first, *rest = arrays
    end, places = np.uint32(2**32 - 1), 128 * 32
    with_some = next(int(i) for i in first if (exceptions[i : i + 2] != end).all())  # two at least

    def refused(words: str, *, h: np.ndarray = highs, e: np.ndarray = exceptions, f: np.ndarray = first) -> None:
        with pytest.raises(ValueError, match=words):
            backend.put_together(form, [memory, h, e, f, *rest])

    def changed(array: np.ndarray, at: int, value: int) -> np.ndarray:
        copy = array.copy()
        copy[at] = value
        return copy

    refused("compact blocks have codes", h=highs[:0])
    refused("as much beside them", h=highs[:-1])
    refused("each block", f=first[:-1])
    refused("follow one another", f=changed(first, 1, 2**40))
    refused("follow one another", f=changed(first, 1, -1))
    refused("follow one another", f=changed(first, 0, 1))
    refused("must be of blocks", e=np.append(exceptions, end).astype(np.uint32))
    refused("exceptions must", e=exceptions[:-1])
    refused("exceptions must", e=exceptions[:0])
    refused("place in its block", e=changed(exceptions, with_some, places << 8))
    refused("place in its block", e=changed(exceptions, with_some + 1, int(exceptions[with_some])))
    for i, array in enumerate(rest):
        more = np.append(array, np.zeros(1, array.dtype))
        with pytest.raises(ValueError, match="as much beside them"):
            backend.put_together(form, [memory, highs, exceptions, first, *rest[:i], more, *rest[i + 1 :]])


def test_pairs_of_another_device_are_refused() -> None:
    paired = backend_of("generic")
    form, arrays = paired.take_apart(paired.weight(random_weight(1, "int4", 64, 2)))
    assert form["paired"]
    with pytest.raises(ValueError, match="no such pairs"):
        backend_of("generic", bits=16).put_together(form, arrays)


def test_packing_tells_apart_what_packs_otherwise() -> None:
    names = {backend_of(isa, dtype).packing for isa in ISAS for dtype in DTYPES}
    assert len(names) == len(ISAS) * len(DTYPES)
    assert backend_of("auto").packing == backend_of("auto").packing
    assert backend_of("auto").build == backend_of("generic").build


@pytest.mark.parametrize("isa", [*COMPACT, *(isa for isa in FIXED if isa in ISAS)])
def test_the_last_exception_of_a_block(isa: str) -> None:
    """It has a place in the block, too, and an end behind it."""
    backend, matrix = backend_of(isa), normal(1, 1024, 128).astype(BF16)
    matrix[::40, ::31] *= BF16.type(1e-9)
    form, (memory, highs, exceptions, first, *rest) = backend.take_apart(backend.weight(Dense(matrix)))
    is_end = exceptions == np.uint32(2**32 - 1)
    last = int(np.flatnonzero(~is_end[:-1] & is_end[1:])[0])
    beyond = exceptions.copy()
    beyond[last] = 128 * 32 << 8
    for words, wrong in (("place in its block", beyond), ("exceptions must end", exceptions[: last + 1])):
        with pytest.raises(ValueError, match=words):
            backend.put_together(form, [memory, highs, wrong, first, *rest])


def test_an_odd_number_of_groups_has_no_pairs() -> None:
    backend = backend_of("generic")
    form, _ = backend.take_apart(backend.weight(random_weight(1, "int4", 64, 2)))
    with pytest.raises(ValueError, match="no such pairs"):
        backend.put_together({**form, "columns": 96}, [aligned(np.zeros(2 * (3 * 640 + 128), np.uint8))])
