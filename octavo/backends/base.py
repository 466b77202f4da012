"""The joint between models and devices: ``Backend``, ``Ops``, ``KVCache``, and the row contract that every op obeys.

**The row contract**: row i of any output depends only on row i of the input and, in attention, on its own sequence's
blocks; bit for bit, whatever the other rows hold and however many there are. It follows that a request's output does not
depend on batching, chunking, caching, preemption or speculation.

Shapes: T tokens in the step, R rows, H hidden size, V vocabulary. Residual stream, linear outputs and logits are float32;
``act`` is the compute dtype (bfloat16 or float32), which norms, gated activations and attention emit and ``linear`` takes.
An op's result is its own for as long as it is referenced; only where it says so does an op take over an argument's memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = Any
"""A device tensor: a numpy array on the CPU, a torch tensor on CUDA."""

Weight = Any
"""A weight in the backend's own packed form; made by ``Backend.weight``, read by ``Ops.linear`` and ``Ops.embedding``."""


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The shape of a KV cache: what one token costs and how many make a block."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    """"bfloat16", "float32" or "int8"; in int8 every k and every v of a token and kv head has a float32 scale."""

    @property
    def bytes_per_block(self) -> int:
        itemsize, scale = {"bfloat16": (2, 0), "float32": (4, 0), "int8": (1, 4)}[self.dtype]
        return 2 * self.num_layers * self.num_kv_heads * self.block_size * (self.head_dim * itemsize + scale)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How one fused row of q, k and v is laid out: ``num_heads`` q heads, then ``num_kv_heads`` of k, then of v."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(slots=True)
class Batch:
    """One step as flat arrays, all int32. Sequence i owns the rows ``query_start[i]:query_start[i + 1]``.

    ``slot_mapping[t]`` = block id * block size + offset, where token t's K and V go; -1: nowhere. ``seq_lens[i]`` counts the
    tokens that sequence i's last row sees, itself included. ``logits_rows`` are the rows whose logits are wanted.
    """

    input_ids: Array
    """[T]"""
    positions: Array
    """[T]"""
    slot_mapping: Array
    """[T]"""
    query_start: Array
    """[n + 1]"""
    seq_lens: Array
    """[n]"""
    block_tables: Array
    """[n, width]"""
    logits_rows: Array
    """[R]"""
    allowed: Array | None = None
    """[R, ceil(V / 32)]: what may be drawn from these rows, a bit for each logit as ``Ops.linear_argmax`` takes it"""


@dataclass(frozen=True, slots=True)
class LogitBias:
    """What is added to chosen tokens of R rows of logits."""

    tokens: Array
    """int32[*], of all rows, one after the other"""
    values: Array
    """float32[*], what each of them gains"""
    starts: Array
    """int32[R + 1]: where each row's tokens begin, and where the last one's end"""


@dataclass(frozen=True, slots=True)
class Penalties:
    """What R rows of logits lose for the tokens that stand before them."""

    repetition: Array
    """float32[R]"""
    frequency: Array
    """float32[R]"""
    presence: Array
    """float32[R]"""
    tokens: Array
    """int32[*], of all rows, one after the other"""
    starts: Array
    """int32[R + 1]: where each row's tokens begin, and where the last one's end"""
    outputs: Array
    """int32[R]: where in ``tokens`` each row's output begins"""


Forward = Callable[[Batch], tuple[Array, ...]]
"""What a model makes of a batch."""


@dataclass(frozen=True, slots=True)
class BatchCapacity:
    """The largest batch that a recorded forward can take."""

    tokens: int
    sequences: int
    blocks: int
    """columns of ``block_tables``"""
    logits_rows: int
    vocab_size: int

    def admits(self, batch: Batch) -> bool:
        return (
            len(batch.input_ids) <= self.tokens
            and len(batch.seq_lens) <= self.sequences
            and batch.block_tables.shape[1] <= self.blocks
            and len(batch.logits_rows) <= self.logits_rows
        )


class Graph(Protocol):
    """A recorded forward. On a device one at a time is under way, and other ops wait for it."""

    def start(self, batch: Batch) -> None:
        """Begin to compute; the caller may do something else meanwhile. The batch's arrays may be changed as soon as this
        returns.

        Raises ``ValueError`` for a batch beyond the capacity."""
        ...

    def result(self) -> tuple[Array, ...]:
        """What the forward gives for the batch that was started last, once it is computed. Overwritten when the next starts.

        Raises what its ops raise."""
        ...

    def go_on(self, batch: Batch, gaps: Sequence[int], rows: Sequence[int]) -> list[int]:
        """``result()`` of a forward that gives one token for each row, int32[R], and ``start(batch)``, with nothing between
        them: ``input_ids[gaps[i]]`` is the token of row ``rows[i]``, or 0 if that is negative.

        Raises what ops have raised, or ``ValueError`` for a batch beyond the capacity; then nothing is started."""
        ...


class KVCache(Protocol):
    """Device blocks and host blocks of every layer. The layout is private to the backend."""

    @property
    def spec(self) -> KVCacheSpec: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_host_blocks(self) -> int: ...

    def find_pages(self) -> None:
        """Begin, in the background, to find the memory behind the blocks that are handed out first, where a system gives memory
        only when it is used. Other memory is given more slowly meanwhile, so this is for when all of it is there."""
        ...


class Ops(Protocol):
    """Every computation a model needs. All obey the row contract."""

    def embedding(self, ids: Array, table: Weight) -> Array:
        """int32[T], [V, H] -> float32[T, H]. Of an integer layout: rows of its ``dequantize()``."""
        ...

    def linear(self, x: Array, weight: Weight, *, bias: Array | None = None, residual: Array | None = None) -> Array:
        """act[T, K] times weight[N, K] transposed -> float32[T, N]; plus bias float32[N]; plus residual float32[T, N], whose
        memory the result may take over.

        With a weight in an integer layout, each row of x is quantized in groups of 32 inputs to whole numbers up to L, which is
        32512 where the backend was made with ``activation_bits=16`` and 127 with 8: a = L / (largest magnitude), q = x * a
        rounded to nearest even, scale = (largest magnitude) / L. A group whose largest is below 1e-30 counts as zeros; one that
        is not finite makes the row NaN. An output is the sum over groups, in order, in float32, of (dot(q, values) * weight
        scale) * scale, with minimums then also of minimum * (scale * sum(q)); dots are exact, and rounded to float32 where they
        need more bits than that has. In Int6Group the first product is the sum of those of both halves. In Int4Group with L =
        127 scales and minimums may be rounded to 15 bits of the row's and of the output's largest: a hundredth of what q loses.

        A weight in ``Stacked`` is its parts', side by side. It is for this op alone, without gates."""
        ...

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        """float32[T, H] -> act[T, H]: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""
        ...

    def head_norm(self, qkv: Array, weight: Array, shape: AttentionShape, *, part: str, eps: float) -> None:
        """RMS norm of every q head (``part`` "q") or k head ("k") of qkv float32[T, *], in place; weight float32[head_dim]."""
        ...

    def rotary(self, qkv: Array, positions: Array, cos_sin: Array, shape: AttentionShape) -> None:
        """Rotate the q and k heads of qkv float32[T, *] in place (Su et al. 2021, the half-split form of Llama checkpoints).
        cos_sin: float32[max positions, head_dim], the first half cosines, the second half sines."""
        ...

    def attention(
        self,
        cache: KVCache,
        layer: int,
        qkv: Array,
        batch: Batch,
        shape: AttentionShape,
        *,
        scale: float,
        window: int | None,
        rows: Array | None = None,
    ) -> Array:
        """Store each row's k and v in its slot; then causal attention of every row over its own sequence's blocks, K and V
        always read from the cache, any mix of query lengths, grouped heads, optional sliding window
        -> act[T, num_heads * head_dim]. With ``rows``, int32[R] ascending, of these alone -> act[R, num_heads * head_dim]; what
        is stored is the same.

        A cache in bfloat16 rounds to nearest even; where act is bfloat16 too, q * scale and the weights may be rounded as well.
        One in int8 stores the k, and the v, of a row and head as q = k * (127 / m) rounded to nearest even and the scale
        m / 127, where m is the largest magnitude, and reads q * scale; queries, and the weights of up to 64 positions, may be
        rounded to 16 bits, whole numbers up to 32767 for the largest. With m below 1e-30 all is zero; where k or v has an
        element that is not finite, all is NaN.

        A slot that is written in a step is seen by its own sequence alone in that step, at its own position."""
        ...

    def silu_and_mul(self, gate_up: Array) -> Array:
        """float32[T, 2I] -> act[T, I]: silu(first half) * second half."""
        ...

    def gated_linear(self, x: Array, weight: Weight, *, bias: Array | None = None) -> Array:
        """``silu_and_mul(linear(x, weight, bias=bias))``, bit for bit: act[T, K], weight[2I, K] -> act[T, I]. The weight was
        made with ``gated=True``."""
        ...

    def linear_argmax(self, x: Array, weight: Weight, allowed: Array | None = None) -> Array:
        """``argmax(linear(x, weight))``, of the same bits: act[R, K], weight[V, K] -> int32[R].

        ``allowed``, int32[R, ceil(V / 32)], has a bit for each logit, lowest first: where it is 0 the logit counts as minus
        infinity, but for telling whether the row can be drawn from."""
        ...

    def gather_rows(self, x: Array, rows: Array) -> Array:
        """x[rows], same dtype."""
        ...

    def copy_blocks(self, cache: KVCache, copies: Any) -> None:
        """Carry out a ``step.BlockCopies``: swap-out, swap-in, copy-on-write, in this order."""
        ...

    def argmax(self, logits: Array) -> Array:
        """float32[R, V] -> int32[R]; the lowest index among equals; -1 where a logit is NaN or plus infinity, or all are minus
        infinity: such a row can be drawn from by no rule."""
        ...

    def adjust(
        self, logits: Array, *, allowed: Array | None = None, bias: LogitBias | None = None, penalties: Penalties | None = None
    ) -> Array:
        """float32[R, V] -> the same, new, all in float32. First what ``allowed`` rules out becomes minus infinity, as in
        ``linear_argmax``, but in rows from which nothing can be drawn; then ``bias`` is added; then the logit of each token
        that stands before a row is divided by ``repetition`` if it is above 0, else multiplied, and, of a token that is c > 0
        times in the output, it loses ``frequency`` * c, then ``presence``. Ids outside the vocabulary are ignored."""
        ...

    def sample(
        self,
        logits: Array,
        *,
        temperature: Array,
        top_k: Array,
        top_p: Array,
        min_p: Array,
        seeds: Array,
        positions: Array,
        allowed: Array | None = None,
        bias: LogitBias | None = None,
        penalties: Penalties | None = None,
    ) -> Array:
        """float32[R, V] -> int32[R]. One draw a row from softmax(logits / temperature) after top-k (0: off), then top-p, then
        min-p; ties at a cut are kept by lowest index. Temperature below 1e-5: argmax; -1 where argmax is. The uniform number
        is a counter-based function of (seeds[i] uint64, positions[i] int64) alone. temperature, top_p, min_p: float32[R];
        top_k: int32[R]. ``allowed``, ``bias`` and ``penalties`` are those of ``adjust``, before anything else."""
        ...

    def top_logprobs(self, logits: Array, chosen: Array, num: int) -> tuple[Array, Array, Array, Array]:
        """Log-softmax of float32[R, V] -> (chosen's log-probability float32[R], chosen's rank int32[R] with 1 the likeliest,
        ids int32[R, num] and log-probabilities float32[R, num] of the likeliest, in order; lowest index first among equals)."""
        ...


class Backend(Protocol):
    """One device. Chosen once in ``build`` and passed down as an argument."""

    @property
    def ops(self) -> Ops: ...

    @property
    def compute_dtype(self) -> str:
        """ "bfloat16" or "float32": the dtype called act above."""
        ...

    def progress(self) -> int:
        """A number that changes, several times a second, while something is computed and gets on. On any thread."""
        ...

    def describe(self) -> str:
        """One line for people: the device, its instruction set, its threads."""
        ...

    def weight(self, layout: Any, *, gated: bool = False, vocabulary: bool = False) -> Weight:
        """Pack one canonical layout of ``octavo.quant.layouts`` for ``linear`` and ``linear_argmax``, that of a ``vocabulary``
        for ``embedding`` and a shortlist, too; or, ``gated``, for ``gated_linear`` alone."""
        ...

    def shortlist(self, weight: Weight, inputs: Array | None = None) -> None:
        """Make ready what lets ``linear_argmax`` of this weight be faster, if anything does. Its results are the same.
        ``inputs``, float32[columns]: how large each column of x is beside the others, as far as that is known."""
        ...

    def tensor(self, array: np.ndarray) -> Array:
        """A small float32 tensor (norm weight, bias, rotary table) or an int32 one, on the device."""
        ...

    def to_host(self, array: Array) -> np.ndarray:
        """A numpy copy."""
        ...

    def kv_cache(self, spec: KVCacheSpec, *, num_blocks: int, num_host_blocks: int) -> KVCache: ...

    def available_memory(self) -> int:
        """Bytes that this process may still use on the device: the machine's and any cgroup's limit considered."""
        ...

    def capture(self, forward: Forward, capacity: BatchCapacity) -> Graph:
        """Record what ``forward`` does to a batch, to be replayed for any batch within ``capacity`` with the same bits.

        ``forward`` is called at most once, with arrays that hold nothing yet: what it does must not depend on their contents,
        and may depend on their sizes only through ops. Weights and caches that it uses live as long as the graph.
        """
        ...
