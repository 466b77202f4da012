"""One file a model family, one line each in the registry.

``load_model`` is all that a worker sees: facts and a source of weights in, a ``Model`` out.
"""

import re
from collections.abc import Callable
from typing import Protocol

from octavo.backends.base import Array, Backend, Batch, KVCache
from octavo.config import ConfigError, ModelConfig
from octavo.layers.loader import Keep, Loader, WeightFormat, make_now
from octavo.models.llama import LlamaModel
from octavo.quant.integer import Quantize, quantize
from octavo.weights.source import WeightSource

REGISTRY = {
    "LlamaForCausalLM": LlamaModel,
    "MistralForCausalLM": LlamaModel,
    "Qwen2ForCausalLM": LlamaModel,
    "Qwen3ForCausalLM": LlamaModel,
}
"""The architecture that a checkpoint names -> the class that loads it."""


class Model(Protocol):
    """A loaded model. All methods run on the backend it was loaded on and obey the row contract."""

    def forward(self, batch: Batch, cache: KVCache, rows: Array) -> Array:
        """The residual stream after the last layer of ``rows``, int32[R] ascending, -> float32[R, H]; the step's K and V are in
        the cache after. The last layer computes nothing else of other rows."""
        ...

    def logits(self, hidden: Array) -> Array:
        """hidden float32[R, H] -> final norm and head, float32[R, V]."""
        ...

    def likeliest(self, hidden: Array, allowed: Array | None) -> Array:
        """The argmax of ``logits``, int32[R], without the logits; ``allowed`` as in ``Ops.linear_argmax``."""
        ...


def load_model(
    config: ModelConfig,
    source: WeightSource,
    backend: Backend,
    *,
    max_model_len: int,
    weight_format: WeightFormat = "plain",
    quantize: Quantize = quantize,
    progress: Callable[[float], None] | None = None,
    keep: Keep = make_now,
) -> Model:
    """Load a model for sequences of up to ``max_model_len`` tokens. ``quantize`` makes integers of plain
    numbers where the ``weight_format`` asks for that. ``progress`` hears the fraction done, rising to 1. ``keep`` has
    matrices that are packed already, or remembers those that are made.

    Raises ``ConfigError`` for an unknown architecture, for tensors that are missing, of another shape or not part of it, and
    for tensors that cannot be had in the ``weight_format``.
    """
    loader = Loader(source, backend, weight_format, quantize, keep)
    model = _family(config)(config, loader, max_model_len=max_model_len, progress=progress or (lambda _: None))
    for name in source.names():
        if name not in loader.asked and not _may_be_left_out(name, config):
            raise ConfigError(
                f"tensor {name!r} has no place in this {config.architecture}, and without it the output would be another "
                "model's: the configuration does not speak of it, or what it is for is not supported"
            )
    return model


def _may_be_left_out(name: str, config: ModelConfig) -> bool:
    """Rotary frequencies, which follow from the configuration; a head that is the embedding once more; layers beyond
    ``num_layers``, which only guess tokens."""
    layer = re.match(r"(?:model\.layers|blk)\.(\d+)\.", name)
    if layer is not None and int(layer[1]) >= config.num_layers:
        return True
    return name.endswith((".inv_freq", ".attn_rot_embd.weight")) or (name == "lm_head.weight" and config.tie_word_embeddings)


def matrix_sizes(config: ModelConfig) -> tuple[int, int]:
    """How many numbers are in a model's matrices: in those of its layers, and in those of its vocabulary.

    Raises ``ConfigError`` for an unknown architecture.
    """
    return _family(config).matrix_sizes(config)


def _family(config: ModelConfig) -> type[LlamaModel]:
    if config.architecture not in REGISTRY:
        known = ", ".join(sorted(REGISTRY))
        raise ConfigError(f"architecture {config.architecture!r} is not supported; these are: {known}")
    return REGISTRY[config.architecture]
