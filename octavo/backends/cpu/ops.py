"""Every op of ``backends.base.Ops`` as a call into ``octavo._native``.

Knows the order of arguments and nothing else: checks, memory and threads are the native device's.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.base import AttentionShape, Batch, LogitBias, Penalties
from octavo.backends.cpu.stacked import StackedWeight

if TYPE_CHECKING:
    from octavo import _native


class CpuOps:
    """See ``backends.base.Ops`` for what each op means."""

    def __init__(self, device: "_native.Device", head_shape: type["_native.HeadShape"]) -> None:
        self._device = device
        self._head_shape = head_shape
        # These need nothing added: the shortest way from a model to a kernel.
        self.embedding = device.embedding
        self.silu_and_mul = device.silu_and_mul
        self.gather_rows = device.gather_rows
        self.argmax = device.argmax
        self.linear_argmax = device.linear_argmax
        self.top_logprobs = device.top_logprobs

    def linear(
        self, x: np.ndarray, weight: Any, *, bias: np.ndarray | None = None, residual: np.ndarray | None = None
    ) -> np.ndarray:
        if not isinstance(weight, StackedWeight):
            return self._device.linear(x, weight, bias, residual)
        out = self._device.new_result(x, weight.rows)
        column = 0
        for part in weight.parts:
            own = None if bias is None else bias[column : column + part.rows]
            self._device.linear(x, part, own, residual, out, column)
            column += part.rows
        return out

    def gated_linear(self, x: np.ndarray, weight: Any, *, bias: np.ndarray | None = None) -> np.ndarray:
        if weight.gated:
            return self._device.gated_linear(x, weight, bias)
        return self._device.silu_and_mul(self._device.linear(x, weight, bias, None))

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, *, eps: float) -> np.ndarray:
        return self._device.rms_norm(x, weight, eps)

    def head_norm(self, qkv: np.ndarray, weight: np.ndarray, shape: AttentionShape, *, part: str, eps: float) -> None:
        if part not in ("q", "k"):
            raise ValueError(f'part must be "q" or "k", not {part!r}')
        self._device.head_norm(qkv, weight, self._native_shape(shape), part == "k", eps)

    def rotary(self, qkv: np.ndarray, positions: np.ndarray, cos_sin: np.ndarray, shape: AttentionShape) -> None:
        self._device.rotary(qkv, positions, cos_sin, self._native_shape(shape))

    def attention(
        self,
        cache: Any,
        layer: int,
        qkv: np.ndarray,
        batch: Batch,
        shape: AttentionShape,
        *,
        scale: float,
        window: int | None,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        if window is not None and window < 1:
            raise ValueError(f"window must be positive, not {window}")
        return self._device.attention(
            cache.blocks,
            layer,
            qkv,
            batch.slot_mapping,
            batch.query_start,
            batch.seq_lens,
            batch.block_tables,
            self._native_shape(shape),
            scale,
            window or 0,
            rows,
        )

    def copy_blocks(self, cache: Any, copies: Any) -> None:
        self._device.copy_blocks(cache.blocks, _pairs(copies.swap_out), _pairs(copies.swap_in), _pairs(copies.copy))

    def adjust(
        self,
        logits: np.ndarray,
        *,
        allowed: np.ndarray | None = None,
        bias: LogitBias | None = None,
        penalties: Penalties | None = None,
    ) -> np.ndarray:
        return self._device.adjust(logits, allowed, _columns(bias), _columns(penalties))

    def sample(
        self,
        logits: np.ndarray,
        *,
        temperature: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        seeds: np.ndarray,
        positions: np.ndarray,
        allowed: np.ndarray | None = None,
        bias: LogitBias | None = None,
        penalties: Penalties | None = None,
    ) -> np.ndarray:
        wishes = allowed, _columns(bias), _columns(penalties)
        return self._device.sample(logits, temperature, top_k, top_p, min_p, seeds, positions, *wishes)

    def _native_shape(self, shape: AttentionShape) -> "_native.HeadShape":
        return self._head_shape(shape.num_heads, shape.num_kv_heads, shape.head_dim)  # sooner made than found in a dict


def _columns(record: LogitBias | Penalties | None) -> tuple[np.ndarray, ...] | None:
    return None if record is None else tuple(getattr(record, field.name) for field in fields(record))


def _pairs(pairs: Any) -> np.ndarray:
    return np.array(pairs, np.int32).reshape(-1, 2)
