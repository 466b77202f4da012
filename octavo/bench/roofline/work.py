"""What a call of an op has to move and to compute at least, and what it is for in the model. Knows ops, not models.

Bytes are of two sorts: *streamed* ones, weights and cached keys and values, which come once a step from wherever the whole
model lies; and *activations*, which the op before has just written and a cache still has.
"""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.backends.base import Ops
from octavo.bench.roofline.timed import Call


@dataclass(frozen=True, slots=True)
class Precision:
    """Of activations: as the backend keeps them, and as they meet integer weights."""

    compute_dtype: str
    activation_bits: int = 8


@dataclass(frozen=True, slots=True)
class Work:
    """``arithmetic``: which numbers are multiplied, "fp32", "bf16" or "int8" (twice where activations have 16 bits)."""

    streamed_bytes: int = 0
    activation_bytes: int = 0
    flops: int = 0
    arithmetic: str = "fp32"


Arguments = Mapping[str, Any]


def work_of(call: Call, precision: Precision) -> Work:
    """The least that this call could do with."""
    arguments = _by_name(call)
    account = _ACCOUNTS.get(call.op)
    if account is None or arguments is None:
        return Work(activation_bytes=_bytes(*call.arguments, *call.keywords.values(), call.result))
    return account(arguments, call.result, precision)


def _by_name(call: Call) -> Arguments | None:
    method = getattr(Ops, call.op, None)
    if method is None:
        return None
    return inspect.signature(method).bind(None, *call.arguments, **call.keywords).arguments


def _bytes(*values: Any) -> int:
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def _linear(a: Arguments, result: Any, precision: Precision) -> Work:
    weight, rows = a["weight"], len(a["x"])
    numbers = weight.rows * weight.columns
    integers = weight.num_bytes < 1.5 * numbers  # less than 12 bits each
    return Work(
        streamed_bytes=weight.num_bytes,
        activation_bytes=_bytes(a["x"], a.get("residual"), result),
        flops=2 * rows * numbers * (precision.activation_bits // 8 if integers else 1),
        arithmetic="int8" if integers else "bf16" if precision.compute_dtype == "bfloat16" else "fp32",
    )


def _argmax(a: Arguments, result: Any, precision: Precision) -> Work:
    shortlist = next((each for each in a["weight"].shortlists if each.takes(len(a["x"]))), None)
    if shortlist is None:
        return _linear(a, result, precision)
    # What is computed once more is little.
    product = _linear(a, result, replace(precision, activation_bits=8 * shortlist.levels))
    return replace(product, streamed_bytes=shortlist.num_bytes or product.streamed_bytes, arithmetic="int8")


def _gated(a: Arguments, result: Any, precision: Precision) -> Work:
    product = _linear(a, result, precision)
    return replace(product, flops=product.flops + 5 * result.size)


def _attention(a: Arguments, result: Any, precision: Precision) -> Work:
    batch, shape, window = a["batch"], a["shape"], a["window"]
    seq_lens = np.asarray(batch.seq_lens, np.int64)
    rows = np.arange(len(a["qkv"]))
    wanted = np.isin(rows, rows if a.get("rows") is None else a["rows"])
    seen = read = 0
    for length, (start, end) in zip(seq_lens.tolist(), itertools.pairwise(np.asarray(batch.query_start).tolist()), strict=True):
        ends = np.arange(length - (end - start) + 1, length + 1)[wanted[start:end]]
        visible = ends if window is None else np.minimum(ends, window)
        seen += int(visible.sum())
        read += int(ends[-1] - (ends[0] - visible[0])) if len(ends) else 0
    spec = a["cache"].spec
    token_bytes = spec.bytes_per_block // (spec.block_size * spec.num_layers)
    return Work(
        streamed_bytes=read * token_bytes,
        activation_bytes=_bytes(a["qkv"], result),
        flops=4 * seen * shape.num_heads * shape.head_dim,
        arithmetic="fp32" if spec.dtype == "float32" else "bf16",  # or int8: pairs of 16 bits, as fast
    )


def _rotary(a: Arguments, result: Any, precision: Precision) -> Work:
    shape, tokens = a["shape"], len(a["positions"])
    numbers = tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    return Work(activation_bytes=2 * 4 * numbers + 4 * tokens * shape.head_dim, flops=3 * numbers)


def _norm(a: Arguments, result: Any, precision: Precision) -> Work:
    return Work(activation_bytes=_bytes(a["x"], a["weight"], result), flops=4 * a["x"].size)


def _head_norm(a: Arguments, result: Any, precision: Precision) -> Work:
    shape = a["shape"]
    heads = shape.num_heads if a["part"] == "q" else shape.num_kv_heads
    numbers = len(a["qkv"]) * heads * shape.head_dim
    return Work(activation_bytes=2 * 4 * numbers, flops=4 * numbers)


def _silu(a: Arguments, result: Any, precision: Precision) -> Work:
    # An exponential counts as one operation here; it is some ten.
    return Work(activation_bytes=_bytes(a["gate_up"], result), flops=5 * result.size)


def _copied_rows(a: Arguments, result: Any, precision: Precision) -> Work:
    return Work(activation_bytes=2 * _bytes(result))


def _logits(a: Arguments, result: Any, precision: Precision) -> Work:
    return Work(activation_bytes=_bytes(a["logits"]), flops=a["logits"].size)


_ACCOUNTS: dict[str, Callable[[Arguments, Any, Precision], Work]] = {
    "linear": _linear,
    "gated_linear": _gated,
    "linear_argmax": _argmax,
    "attention": _attention,
    "rotary": _rotary,
    "rms_norm": _norm,
    "head_norm": _head_norm,
    "silu_and_mul": _silu,
    "embedding": _copied_rows,
    "gather_rows": _copied_rows,
    "argmax": _logits,
    "sample": _logits,
    "top_logprobs": _logits,
}

_KINDS = {
    "rms_norm": "norms",
    "head_norm": "norms",
    "gated_linear": "gate_up",
    "linear_argmax": "lm_head",
    "silu_and_mul": "silu",
    "embedding": "embedding",
    "gather_rows": "embedding",
    "argmax": "sampling",
    "sample": "sampling",
    "top_logprobs": "sampling",
}

_BEFORE = {"attention": "o", "gated_linear": "down", "silu_and_mul": "down"}
"""What a product is for, by the op that made its input."""
_AFTER = {"head_norm": "qkv", "rotary": "qkv", "attention": "qkv", "silu_and_mul": "gate_up"}
"""The same by the op that takes its output."""


def kinds_of(ops: Sequence[str]) -> list[str]:
    """What each op of a step is for. A product of matrices is told by its neighbours in the flow of data: no layer needs to say
    its name."""
    kinds = []
    for i, op in enumerate(ops):
        before = ops[i - 1] if i else ""
        after = ops[i + 1] if i + 1 < len(ops) else ""
        if op == "linear":
            kinds.append(_BEFORE.get(before) or _AFTER.get(after) or "lm_head")
        else:
            kinds.append(_KINDS.get(op, op))
    return kinds
