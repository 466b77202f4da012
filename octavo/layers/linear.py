"""``Linear``: one or several projections of the same input, fused into one matrix product. ``GatedLinear``: two, one of them
the other's gate.

Knows names and shapes; not what the outputs mean.
"""

from collections.abc import Sequence

from octavo.backends.base import Array
from octavo.layers.loader import Loader


class Linear:
    """y = x W^T (+ bias) (+ residual). The outputs of ``names`` (without ".weight") lie side by side, in order."""

    def __init__(
        self, loader: Loader, names: Sequence[str], *, in_features: int, out_features: Sequence[int], bias: bool
    ) -> None:
        self._ops = loader.backend.ops
        self._weight = loader.matrix([f"{name}.weight" for name in names], rows=out_features, columns=in_features)
        self._bias = loader.vector([f"{name}.bias" for name in names], sizes=out_features) if bias else None

    def __call__(self, x: Array, *, residual: Array | None = None) -> Array:
        """act[T, in_features] -> float32[T, sum(out_features)]; the result may take over the residual's memory."""
        return self._ops.linear(x, self._weight, bias=self._bias, residual=residual)


class GatedLinear:
    """y = silu(x G^T (+ bias)) * (x U^T (+ bias)); ``gate`` and ``up`` name the projections, without ".weight"."""

    def __init__(self, loader: Loader, gate: str, up: str, *, in_features: int, out_features: int, bias: bool) -> None:
        self._ops = loader.backend.ops
        sizes = [out_features, out_features]
        self._weight = loader.matrix([f"{gate}.weight", f"{up}.weight"], rows=sizes, columns=in_features, gated=True)
        self._bias = loader.vector([f"{gate}.bias", f"{up}.bias"], sizes=sizes) if bias else None

    def __call__(self, x: Array) -> Array:
        """act[T, in_features] -> act[T, out_features]"""
        return self._ops.gated_linear(x, self._weight, bias=self._bias)
