"""``Attention``: fused projections, optional norms of heads, rotary positions, the paged cache, the output projection.

Knows its own layer; not which sequences are in the batch or how long they are.
"""

from octavo.backends.base import Array, AttentionShape, Batch, KVCache
from octavo.config import ModelConfig
from octavo.layers.linear import Linear
from octavo.layers.loader import Loader
from octavo.layers.norm import HeadNorm
from octavo.layers.rotary import Rotary


class Attention:
    """Causal self-attention of layer number ``layer``, with grouped heads and an optional sliding window."""

    def __init__(self, loader: Loader, name: str, *, config: ModelConfig, layer: int, rotary: Rotary) -> None:
        self._ops = loader.backend.ops
        self._layer = layer
        self._shape = shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim)
        self._scale = config.head_dim**-0.5
        self._window = config.window_of(layer)
        self._rotary = rotary
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self._qkv = Linear(
            loader,
            [f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj"],
            in_features=config.hidden_size,
            out_features=[q_size, kv_size, kv_size],
            bias=config.attention_bias,
        )
        self._head_norms = [
            HeadNorm(loader, f"{name}.{part}_norm", part=part, shape=shape, eps=config.rms_norm_eps)
            for part in ("q", "k")
            if config.qk_norm
        ]
        self._out = Linear(
            loader,
            [f"{name}.o_proj"],
            in_features=q_size,
            out_features=[config.hidden_size],
            bias=config.attention_output_bias,
        )

    def __call__(self, x: Array, batch: Batch, cache: KVCache, *, residual: Array, rows: Array | None) -> Array:
        """act[T, hidden_size] -> float32[T, hidden_size], the residual added; this step's K and V are in the cache after. With
        ``rows``, int32[R], of these alone -> float32[R, hidden_size]."""
        qkv = self._qkv(x)
        for norm in self._head_norms:
            norm(qkv)
        self._rotary(qkv, batch.positions, self._shape)
        if rows is not None:
            residual = self._ops.gather_rows(residual, rows)
        attended = self._ops.attention(
            cache, self._layer, qkv, batch, self._shape, scale=self._scale, window=self._window, rows=rows
        )
        return self._out(attended, residual=residual)
