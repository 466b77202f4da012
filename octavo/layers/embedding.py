"""``Embedding`` and the head that turns hidden states into logits; they share one matrix where the checkpoint says so."""

from octavo.backends.base import Array, Weight
from octavo.layers.loader import Loader
from octavo.layers.norm import RMSNorm


class Embedding:
    """Token ids -> the residual stream."""

    def __init__(self, loader: Loader, name: str, *, vocab_size: int, hidden_size: int) -> None:
        self._ops = loader.backend.ops
        self.weight: Weight = loader.matrix([f"{name}.weight"], rows=[vocab_size], columns=hidden_size, vocabulary=True)

    def __call__(self, ids: Array) -> Array:
        """int32[T] -> float32[T, hidden_size]"""
        return self._ops.embedding(ids, self.weight)


class LMHead:
    """Hidden states, as ``norm`` leaves them, -> logits. ``tied`` is the embedding whose matrix is used again; None: the head
    has its own."""

    def __init__(
        self, loader: Loader, name: str, *, vocab_size: int, hidden_size: int, tied: Embedding | None, norm: RMSNorm
    ) -> None:
        self._ops = loader.backend.ops
        if tied is not None:
            self._weight = tied.weight
        else:
            self._weight = loader.matrix([f"{name}.weight"], rows=[vocab_size], columns=hidden_size, vocabulary=True)
        loader.backend.shortlist(self._weight, norm.weight)

    def __call__(self, x: Array) -> Array:
        """act[R, hidden_size] -> float32[R, vocab_size]"""
        return self._ops.linear(x, self._weight)

    def likeliest(self, x: Array, allowed: Array | None) -> Array:
        """act[R, hidden_size] -> int32[R], the argmax of the logits that ``Ops.linear_argmax`` calls ``allowed``."""
        return self._ops.linear_argmax(x, self._weight, allowed)
