"""The reference device: numpy arrays, one row at a time.

Owns nothing but its compute dtype. It is the meaning of ``Backend``: other devices are tested against it. Every row of a
matrix product is computed by a product of its own, so that the row contract holds by construction.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import ml_dtypes
import numpy as np

from octavo.backends.base import Array, Batch, BatchCapacity, Forward, KVCacheSpec
from octavo.backends.cpu.memory import available_memory
from octavo.backends.reference.integer import IntegerWeight, StackedWeight
from octavo.backends.reference.ops import ReferenceOps
from octavo.quant.layouts import Dense, Integer, Layout, Piecewise, Stacked

DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


KV_DTYPES: dict[str, Any] = {**DTYPES, "int8": np.float32}
"""In int8 the cache holds what is read from it: whole numbers times their scale."""


@dataclass(slots=True)
class ReferenceKVCache:
    """Keys and values as plain arrays [2, num_layers, blocks, num_kv_heads, block_size, head_dim]; index 0 is keys."""

    spec: KVCacheSpec
    num_blocks: int
    num_host_blocks: int
    device: np.ndarray
    host: np.ndarray

    def find_pages(self) -> None:
        """Nothing: memory is found as it is used."""


class ReferenceBackend:
    """All of ``backends.base.Backend`` in numpy. compute_dtype "bfloat16" rounds activations and weights to bfloat16 and still
    computes in float32. activation_bits: as of ``CpuBackend``."""

    def __init__(self, *, compute_dtype: str = "float32", activation_bits: int = 8) -> None:
        self.compute_dtype = compute_dtype
        self.ops = ReferenceOps(act=DTYPES[compute_dtype], activation_bits=activation_bits)

    def progress(self) -> int:
        """Processor time in tenths of a second: numpy does not tell how far it is."""
        return time.process_time_ns() // 10**8

    def describe(self) -> str:
        return f"reference, numpy {np.__version__}, {self.compute_dtype}"

    @overload
    def weight(
        self, layout: Dense | Integer | Piecewise, *, gated: bool = False, vocabulary: bool = False
    ) -> np.ndarray | IntegerWeight: ...
    @overload
    def weight(self, layout: Stacked, *, gated: bool = False, vocabulary: bool = False) -> np.ndarray | StackedWeight: ...
    def weight(
        self, layout: Layout, *, gated: bool = False, vocabulary: bool = False
    ) -> np.ndarray | IntegerWeight | StackedWeight:
        """A matrix in float32, rounded to the compute dtype; integers as they are. What it is for changes nothing."""
        if isinstance(layout, Stacked):
            return StackedWeight(tuple(IntegerWeight.of(part) for part in layout.parts))
        if not isinstance(layout, Dense):
            return IntegerWeight.of(layout)
        rounded: np.ndarray = layout.dequantize().astype(DTYPES[self.compute_dtype]).astype(np.float32)
        return rounded

    def shortlist(self, weight: Any, inputs: np.ndarray | None = None) -> None:
        """Nothing: all columns are computed."""

    def tensor(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array, np.int32 if array.dtype.kind in "iu" else np.float32)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def kv_cache(self, spec: KVCacheSpec, *, num_blocks: int, num_host_blocks: int) -> ReferenceKVCache:
        def blocks(count: int) -> np.ndarray:
            shape = (2, spec.num_layers, count, spec.num_kv_heads, spec.block_size, spec.head_dim)
            return np.zeros(shape, KV_DTYPES[spec.dtype])

        return ReferenceKVCache(spec, num_blocks, num_host_blocks, blocks(num_blocks), blocks(num_host_blocks))

    def available_memory(self) -> int:
        return available_memory()

    def capture(self, forward: Forward, capacity: BatchCapacity) -> "ReferenceGraph":
        return ReferenceGraph(forward, capacity)


class ReferenceGraph:
    """Calls the forward anew each time."""

    def __init__(self, forward: Forward, capacity: BatchCapacity) -> None:
        self._forward = forward
        self._capacity = capacity
        self._batch: Batch | None = None

    def start(self, batch: Batch) -> None:
        if not self._capacity.admits(batch):
            raise ValueError("the batch is larger than the graph's capacity")
        self._batch = batch

    def result(self) -> tuple[Array, ...]:
        if self._batch is None:
            raise ValueError("nothing was started")
        batch, self._batch = self._batch, None
        return self._forward(batch)

    def go_on(self, batch: Batch, gaps: Sequence[int], rows: Sequence[int]) -> list[int]:
        tokens: list[int] = self.result()[0].tolist()
        batch.input_ids[list(gaps)] = [max(tokens[row], 0) for row in rows]
        self.start(batch)
        return tokens
