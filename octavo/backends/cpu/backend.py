"""The CPU as a device: packed weights, a paged KV cache and ops that run on a pool of threads of ``octavo._native``.

Owns the native device, and with it the threads and the memory of results. Results are the same bits for any number of
threads; they differ between instruction sets.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import ml_dtypes
import numpy as np

from octavo.backends.base import BatchCapacity, Forward, KVCacheSpec
from octavo.backends.cpu.apart import put_together, take_apart
from octavo.backends.cpu.memory import available_memory
from octavo.backends.cpu.ops import CpuOps
from octavo.backends.cpu.recorded import RecordedForward
from octavo.backends.cpu.stacked import StackedWeight
from octavo.backends.cpu.topology import cores_to_pin, default_threads
from octavo.quant.layouts import Dense, Int4Group, Integer, Layout, Piecewise, Stacked

if TYPE_CHECKING:
    from octavo import _native

_DTYPES = ("bfloat16", "float32")
_COLUMN_BLOCK = 32
"""Outputs that a packed matrix stores together."""
_VALUES_AT_ONCE = 1 << 21
"""Values of an integer matrix that each thread packs before more are made: they stay in the second-level cache."""
_SPARE_TIMES = 16
"""A copy is made only if 16 times its size is still free."""
_KV_DTYPES = (*_DTYPES, "int8")


@dataclass(frozen=True, slots=True)
class CpuKVCache:
    """Device blocks and host blocks; both are this machine's memory."""

    spec: KVCacheSpec
    num_blocks: int
    num_host_blocks: int
    blocks: "_native.KVBlocks"

    def find_pages(self) -> None:
        self.blocks.find_pages()


class CpuBackend:
    """All of ``backends.base.Backend``.

    Args:
        compute_dtype: "bfloat16" or "float32": of weights and of activations. Sums are float32 in either case.
        isa: "auto" for the most capable usable instruction set, or one of ``_native.cpu_features()``; "amx_emulated" computes
            as "amx" would, slowly, on any machine.
        integer_kernels: "auto", or one of ``_native.integer_kernels(isa)``; all of an instruction set give the same bits.
        activation_bits: of activations in products with integer weights, 8 or 16.
        tuning: "auto", or one of ``_native.tunings()``: the processor that kernels are to suit. Same bits, but for weights in 4
            bits and activations in 8: scales are whole numbers where that is faster.
        num_threads: None: one for each core that affinity and control group allow.

    Raises:
        ValueError: an unknown dtype or number of bits, an instruction set that this machine cannot run, no
            threads, or an unknown tuning.
    """

    def __init__(
        self,
        *,
        compute_dtype: str = "bfloat16",
        isa: str = "auto",
        num_threads: int | None = None,
        integer_kernels: str = "auto",
        activation_bits: int = 8,
        tuning: str = "auto",
    ) -> None:
        from octavo import _native

        _check_dtype("compute_dtype", compute_dtype, _DTYPES)
        threads = default_threads() if num_threads is None else num_threads
        self._native = _native
        self._device = _native.Device(
            isa,
            threads,
            cores=cores_to_pin(threads),
            act_bfloat16=compute_dtype == "bfloat16",
            bfloat16=np.dtype(ml_dtypes.bfloat16),
            integer_kernels=integer_kernels,
            activation_bits=activation_bits,
            tuning=tuning,
        )
        self.compute_dtype = compute_dtype
        self.isa: str = self._device.isa
        self.num_threads: int = self._device.num_threads
        self.ops = CpuOps(self._device, _native.HeadShape)

    def progress(self) -> int:
        return self._device.progress

    def describe(self) -> str:
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"cpu, {self.isa}, {threads}, {self.compute_dtype}"

    @overload
    def weight(
        self, layout: Dense | Integer | Piecewise, *, gated: bool = False, vocabulary: bool = False
    ) -> "_native.PackedWeight | _native.IntegerWeight": ...
    @overload
    def weight(self, layout: Stacked, *, gated: bool = False, vocabulary: bool = False) -> StackedWeight: ...
    def weight(
        self, layout: Layout, *, gated: bool = False, vocabulary: bool = False
    ) -> "_native.PackedWeight | _native.IntegerWeight | StackedWeight":
        """Packed as ``backends.base.Backend`` has it; a dense one is rounded to the compute dtype. The
        layout is not kept."""
        if isinstance(layout, Stacked):
            return StackedWeight(tuple(self._packed(part, gated=False, vocabulary=vocabulary) for part in layout.parts))
        return self._packed(layout, gated=gated, vocabulary=vocabulary)

    def _packed(
        self, layout: Dense | Integer | Piecewise, *, gated: bool, vocabulary: bool
    ) -> "_native.PackedWeight | _native.IntegerWeight":
        # Other sizes are multiplied first and pass their gates in an op of its own.
        fused = gated and layout.shape[0] % (2 * _COLUMN_BLOCK) == 0
        if isinstance(layout, Dense):
            return self._device.pack([np.ascontiguousarray(array) for array in layout.arrays], gated=fused)
        integers = layout if isinstance(layout, Piecewise) else Piecewise.of(layout)
        rows, columns = integers.shape
        most = max(1, _VALUES_AT_ONCE * self.num_threads // max(1, columns) // _COLUMN_BLOCK) * _COLUMN_BLOCK
        pieces = map(_arrays, integers.pieces(most))
        return self._device.pack_integer(integers.kind.bits, rows, columns, pieces, gated=fused, vocabulary=vocabulary)

    @property
    def packing(self) -> str:
        """What decides how weights are packed: those of one backend are those of another of the same ``build`` where this is
        the same."""
        return self._device.packing

    @property
    def build(self) -> str:
        """Tells builds of the kernels apart."""
        file = os.stat(self._native.__file__)
        return f"{file.st_size} {file.st_mtime_ns}"

    def take_apart(
        self, weight: "_native.PackedWeight | _native.IntegerWeight | StackedWeight"
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """What a packed weight is, as JSON has it, and the arrays that it lies in."""
        return take_apart(self._native, weight)

    def put_together(
        self, form: dict[str, Any], arrays: list[np.ndarray]
    ) -> "_native.PackedWeight | _native.IntegerWeight | StackedWeight":
        """The weight that was taken apart, of this backend's ``packing``, where the arrays lie; the first begins with a cache
        line.

        Raises ``ValueError``, ``TypeError`` or ``KeyError`` for what cannot be one."""
        return put_together(self._device, form, arrays)

    def shortlist(self, weight: "_native.PackedWeight | _native.IntegerWeight", inputs: np.ndarray | None = None) -> None:
        """Keeps a matrix in fewer bits too, where that is worth it and memory is not short."""
        sizes = [] if inputs is None else np.abs(inputs).tolist()
        self._device.shortlist(weight, most_bytes=self.available_memory() // _SPARE_TIMES, inputs=sizes)

    def tensor(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array, np.int32 if array.dtype.kind in "iu" else np.float32)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def kv_cache(self, spec: KVCacheSpec, *, num_blocks: int, num_host_blocks: int) -> CpuKVCache:
        _check_dtype("KV cache dtype", spec.dtype, _KV_DTYPES)
        blocks = self._native.KVBlocks(
            num_layers=spec.num_layers,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=spec.block_size,
            dtype=spec.dtype,
        )
        return CpuKVCache(spec, num_blocks, num_host_blocks, blocks)

    def capture(self, forward: Forward, capacity: BatchCapacity) -> RecordedForward:
        return RecordedForward(self._device, forward, capacity)

    def available_memory(self) -> int:
        return available_memory()


def _arrays(piece: Integer) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """As the native module takes them."""
    values = np.ascontiguousarray(piece.packed if isinstance(piece, Int4Group) else piece.values).view(np.uint8)
    scales = np.ascontiguousarray(piece.scales).view(np.uint16)
    return values, scales, None if piece.minimums is None else np.ascontiguousarray(piece.minimums).view(np.uint16)


def _check_dtype(name: str, dtype: str, known: tuple[str, ...]) -> None:
    if dtype not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {dtype!r}")
