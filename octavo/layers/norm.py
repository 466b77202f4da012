"""``RMSNorm``: root mean square normalization (Zhang and Sennrich 2019) with a learned scale."""

from octavo.backends.base import Array, AttentionShape
from octavo.layers.loader import Loader


class RMSNorm:
    """Of the residual stream."""

    def __init__(self, loader: Loader, name: str, *, size: int, eps: float) -> None:
        self._ops = loader.backend.ops
        self.weight = loader.vector([f"{name}.weight"], sizes=[size])
        self._eps = eps

    def __call__(self, x: Array) -> Array:
        """float32[T, size] -> act[T, size]"""
        return self._ops.rms_norm(x, self.weight, eps=self._eps)


class HeadNorm:
    """Of every q head or every k head (``part``) inside a fused row of q, k and v."""

    def __init__(self, loader: Loader, name: str, *, part: str, shape: AttentionShape, eps: float) -> None:
        self._ops = loader.backend.ops
        self._weight = loader.vector([f"{name}.weight"], sizes=[shape.head_dim])
        self._part = part
        self._shape = shape
        self._eps = eps

    def __call__(self, qkv: Array) -> None:
        """float32[T, *], in place."""
        self._ops.head_norm(qkv, self._weight, self._shape, part=self._part, eps=self._eps)
