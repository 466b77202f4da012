"""``GatedMLP``: down(silu(gate(x)) * up(x)) (Shazeer 2020), gate and up fused."""

from octavo.backends.base import Array
from octavo.layers.linear import GatedLinear, Linear
from octavo.layers.loader import Loader


class GatedMLP:
    def __init__(self, loader: Loader, name: str, *, hidden_size: int, intermediate_size: int, bias: bool) -> None:
        self._gate_up = GatedLinear(
            loader,
            f"{name}.gate_proj",
            f"{name}.up_proj",
            in_features=hidden_size,
            out_features=intermediate_size,
            bias=bias,
        )
        self._down = Linear(loader, [f"{name}.down_proj"], in_features=intermediate_size, out_features=[hidden_size], bias=bias)

    def __call__(self, x: Array, *, residual: Array) -> Array:
        """act[T, hidden_size] -> float32[T, hidden_size], the residual added."""
        return self._down(self._gate_up(x), residual=residual)
