"""The native kernels. Arrays are C-contiguous numpy arrays; a result's memory is its own while it is referenced.

Ops mean what ``octavo.backends.base.Ops`` says. Wrong types raise TypeError; wrong sizes and values out of range, ValueError;
memory that runs out, on any thread, MemoryError; threads that the system refuses, RuntimeError.
"""

from collections.abc import Iterable, Sequence

import numpy as np

def cpu_features() -> dict[str, tuple[bool, str]]:
    """Instruction set -> (usable here, why not), from the least to the most capable."""

def tunings() -> list[str]:
    """The processors that kernels can be tuned for."""

def integer_kernels(isa: str) -> list[str]:
    """Kernels for integer weights that run beside an instruction set here, from the least to the most capable."""

def read_bandwidth(isa: str, num_threads: int, *, cores: Sequence[int], num_bytes: int, seconds: float) -> float:
    """Bytes a second that all threads together read from a memory of ``num_bytes``: the best pass over it in ``seconds``."""

def peak(
    isa: str, num_threads: int, *, cores: Sequence[int], arithmetic: str, seconds: float, integer_kernels: str = "auto"
) -> tuple[str, float]:
    """The instruction that multiplies "fp32", "bf16" or "int8" with an instruction set, and operations a second of all threads
    together; a product and a sum are two."""

def quantize(
    matrix: np.ndarray,
    values: np.ndarray,
    scales: np.ndarray,
    minimums: np.ndarray | None,
    isa: str,
    num_threads: int,
) -> None:
    """float32, or bfloat16 as uint16 -> the arrays of Int4Group where there are minimums, else of Int8Group; values as uint8,
    scales and minimums as uint16. ValueError if sizes disagree or a weight cannot be had."""

def dequantize(type: int, data: np.ndarray, out: np.ndarray, num_threads: int) -> None:
    """Unpack GGUF blocks of ggml type ``type`` into float32, or into bfloat16 seen as uint16."""

def split_blocks(
    type: int, data: np.ndarray, values: np.ndarray, scales: np.ndarray, minimums: np.ndarray | None, num_threads: int
) -> bool:
    """``octavo.quant.gguf.Split`` on several threads; scales and minimums are seen as uint16."""

class Shortlist:
    """What ``Device.shortlist`` makes of a weight."""

    @property
    def num_bytes(self) -> int:
        """Of a matrix of its own; 0: it needs none."""

    @property
    def levels(self) -> int:
        """Bytes of an activation in its product."""

    def takes(self, rows: int) -> bool:
        """Whether it is used for so many rows."""

    @property
    def settled(self) -> int:
        """Products whose largest columns it has found."""

    @property
    def given_up(self) -> int:
        """Products that too many columns of may have been the largest."""

class PackedWeight:
    """A matrix [rows, columns] in the form that ``Device.linear`` and ``Device.embedding`` read."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def gated(self) -> bool:
        """It is for ``Device.gated_linear`` alone."""

    @property
    def num_bytes(self) -> int: ...
    @property
    def shortlists(self) -> list[Shortlist]: ...

class IntegerWeight:
    """The same of an integer layout."""

    @property
    def bits(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def gated(self) -> bool:
        """It is for ``Device.gated_linear`` alone."""

    @property
    def paired(self) -> bool:
        """In pairs of groups: the scales of each output are whole numbers."""

    @property
    def num_bytes(self) -> int: ...
    @property
    def shortlists(self) -> list[Shortlist]: ...

def memory_of(weight: PackedWeight | IntegerWeight) -> np.ndarray:
    """uint8[num_bytes], as it lies in memory, which the array keeps alive. Not to be written to."""

Compact = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]

def compact_of(weight: PackedWeight) -> Compact | None:
    """What its memory needs beside it if that holds compact blocks: uint8, uint32, int64, uint8, float32, float32, each [*]."""

class KVBlocks:
    """Keys and values of every layer, on the device side and on the host side."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        num_host_blocks: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: str,
    ) -> None: ...
    @property
    def num_bytes(self) -> int:
        """Of the blocks on the device side."""

    def find_pages(self) -> None:
        """As of ``backends.base.KVCache``."""

class HeadShape:
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None: ...

class Program:
    """Ops recorded by a device, over inputs and results of its own. One replay at a time."""

    @property
    def num_ops(self) -> int: ...
    @property
    def seconds(self) -> float:
        """That the ops of the last replay took."""

    def input(self, group: int, rows: int, columns: int | None = None) -> np.ndarray:
        """An int32 array of at most so many rows, to be given to ops while recording; arrays of a group have equal numbers of
        rows. Without ``columns`` of one dimension."""

    def trimmed(self, result: np.ndarray) -> np.ndarray:
        """The rows of a result of the recorded ops that the last replay computed."""

class Device:
    """One instruction set's kernels, a pool of threads and the memory of results. One caller at a time; others wait."""

    def __init__(
        self,
        isa: str,
        num_threads: int,
        *,
        cores: Sequence[int],
        act_bfloat16: bool,
        bfloat16: np.dtype[np.generic],
        integer_kernels: str = "auto",
        activation_bits: int = 8,
        tuning: str = "auto",
    ) -> None:
        """``cores``: one for each thread to be pinned to, or empty. ``activation_bits``: 8 or 16, of products with integers.
        ``tuning``: "auto" or one of ``tunings()``."""

    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def progress(self) -> int:
        """Changes while ops get on, also within one. On any thread."""

    def new_program(self) -> Program: ...
    def begin_recording(self, program: Program) -> None:
        """Until ``end_recording()`` ops are appended to the program instead of being run. Once for each program."""

    def end_recording(self) -> None: ...
    def start(self, program: Program, inputs: Sequence[np.ndarray], cuts: Sequence[Sequence[int]] = ()) -> None:
        """Copy the inputs in and begin to run the program's ops, on all threads but the caller's. Other ops and programs wait
        until they are done. ``cuts``: for each of the first groups of inputs, where its rows are cut into lanes, which are
        computed side by side, each by one thread; no lane may need another's rows. Raises ``ValueError`` for cuts that do not
        ascend or are not as many in each group."""

    def finish(self, program: Program) -> None:
        """Take part in the ops of the program that was started until they are done. Its results are then those of the inputs.
        Raises what went wrong in it, once; returns at once if none was started."""

    def go_on(
        self,
        program: Program,
        result: np.ndarray,
        inputs: Sequence[np.ndarray],
        cuts: Sequence[Sequence[int]],
        gaps: Sequence[int],
        rows: Sequence[int],
    ) -> tuple[list[int], float]:
        """``finish()`` and ``start()`` of the same program, with nothing between them: value ``rows[i]`` of its int32[R]
        result, or 0 if it is negative, becomes value ``gaps[i]`` of the first input. Returns that result and the seconds it
        took. Raises what went wrong, and ``ValueError`` for indices out of range; then nothing runs."""

    def wait(self) -> None:
        """Take part in what was started, of whatever program, until it is done. Raises nothing of it."""

    def pack(self, matrices: Sequence[np.ndarray], *, gated: bool = False) -> PackedWeight:
        """One below the other. ``gated``: a multiple of 64 rows, the first half of them gates, for ``gated_linear``."""

    @property
    def packing(self) -> str:
        """What decides how it packs: weights may be restored where this is the same, by the same build."""

    def restore(self, rows: int, columns: int, memory: np.ndarray, compact: Compact | None, *, gated: bool) -> PackedWeight:
        """A weight from what ``memory_of`` and ``compact_of`` gave for one. ``memory`` is not copied; it must begin with a
        cache line and stay as it is. Whatever is in it, ops touch no other; ValueError where it cannot be such a weight's."""

    def restore_integer(
        self, bits: int, rows: int, columns: int, memory: np.ndarray, *, gated: bool, paired: bool
    ) -> IntegerWeight:
        """The same of an integer layout."""

    def pack_integer(
        self,
        bits: int,
        rows: int,
        columns: int,
        pieces: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray | None]],
        *,
        gated: bool = False,
        vocabulary: bool = False,
    ) -> IntegerWeight:
        """Matrices in a layout of ``octavo.quant.layouts``, one below the other, each no longer needed when the next is asked
        for: values, scales and minimums, seen as uint8 and uint16. values [some rows, columns], with 4 bits [.., columns / 2];
        scales and minimums [.., columns / 32], with 6 bits scales [.., columns / 16]. ``vocabulary``: for ``embedding`` and
        ``shortlist``, too."""

    def embedding(self, ids: np.ndarray, table: PackedWeight | IntegerWeight) -> np.ndarray: ...
    def new_result(self, x: np.ndarray, columns: int) -> np.ndarray:
        """Memory for float32[rows of x, columns]; its values are to come."""

    def linear(
        self,
        x: np.ndarray,
        weight: PackedWeight | IntegerWeight,
        bias: np.ndarray | None,
        residual: np.ndarray | None,
        into: np.ndarray | None = None,
        column: int = 0,
    ) -> np.ndarray:
        """``into``: a result whose columns from ``column`` on this one becomes; a residual has its shape."""
    def shortlist(self, weight: PackedWeight | IntegerWeight, *, most_bytes: int, inputs: list[float]) -> None:
        """Makes what lets ``linear_argmax`` of a weight be faster, where it does. What is copied for it has at most so many
        bytes. ``inputs``: how large each is beside the others; empty where nobody knows."""

    def linear_argmax(
        self, x: np.ndarray, weight: PackedWeight | IntegerWeight, allowed: np.ndarray | None = None
    ) -> np.ndarray:
        """An ``allowed`` without columns allows all, as None does."""

    def gated_linear(self, x: np.ndarray, weight: PackedWeight | IntegerWeight, bias: np.ndarray | None) -> np.ndarray: ...
    def rms_norm(self, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray: ...
    def silu_and_mul(self, gate_up: np.ndarray) -> np.ndarray: ...
    def gather_rows(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray: ...
    def head_norm(self, qkv: np.ndarray, weight: np.ndarray, shape: HeadShape, keys: bool, eps: float) -> None: ...
    def rotary(self, qkv: np.ndarray, positions: np.ndarray, cos_sin: np.ndarray, shape: HeadShape) -> None: ...
    def attention(
        self,
        cache: KVBlocks,
        layer: int,
        qkv: np.ndarray,
        slot_mapping: np.ndarray,
        query_start: np.ndarray,
        seq_lens: np.ndarray,
        block_tables: np.ndarray,
        shape: HeadShape,
        scale: float,
        window: int,
        rows: np.ndarray | None,
    ) -> np.ndarray:
        """window 0: none."""

    def copy_blocks(self, cache: KVBlocks, swap_out: np.ndarray, swap_in: np.ndarray, copy: np.ndarray) -> None:
        """Each int32[n, 2] of (source, target)."""

    def argmax(self, logits: np.ndarray) -> np.ndarray: ...
    def adjust(
        self,
        logits: np.ndarray,
        allowed: np.ndarray | None,
        bias: tuple[np.ndarray, ...] | None,
        penalties: tuple[np.ndarray, ...] | None,
    ) -> np.ndarray:
        """The fields of ``backends.base.LogitBias`` and ``backends.base.Penalties``, in order."""

    def sample(
        self,
        logits: np.ndarray,
        temperature: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        seeds: np.ndarray,
        positions: np.ndarray,
        allowed: np.ndarray | None,
        bias: tuple[np.ndarray, ...] | None,
        penalties: tuple[np.ndarray, ...] | None,
    ) -> np.ndarray: ...
    def top_logprobs(
        self, logits: np.ndarray, chosen: np.ndarray, num: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
