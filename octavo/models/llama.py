"""The Llama family: Llama 2 and 3, Mistral, Qwen2, Qwen3, SmolLM. Names and wiring; what differs is in ``ModelConfig``.

Knows nothing of devices, formats, batching or positions in the cache. Constructing a model loads it.
"""

from collections.abc import Callable

from octavo.backends.base import Array, Batch, KVCache
from octavo.config import ModelConfig
from octavo.layers.attention import Attention
from octavo.layers.embedding import Embedding, LMHead
from octavo.layers.loader import Loader
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary


class LlamaLayer:
    """Attention and MLP, each behind a norm, each added to the residual stream."""

    def __init__(self, loader: Loader, name: str, *, config: ModelConfig, layer: int, rotary: Rotary) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self._attention_norm = RMSNorm(loader, f"{name}.input_layernorm", size=hidden, eps=eps)
        self._attention = Attention(loader, f"{name}.self_attn", config=config, layer=layer, rotary=rotary)
        self._mlp_norm = RMSNorm(loader, f"{name}.post_attention_layernorm", size=hidden, eps=eps)
        self._mlp = GatedMLP(
            loader,
            f"{name}.mlp",
            hidden_size=hidden,
            intermediate_size=config.intermediate_size,
            bias=config.mlp_bias,
        )

    def __call__(self, hidden: Array, batch: Batch, cache: KVCache, rows: Array | None) -> Array:
        hidden = self._attention(self._attention_norm(hidden), batch, cache, residual=hidden, rows=rows)
        return self._mlp(self._mlp_norm(hidden), residual=hidden)


class LlamaModel:
    """See ``models.Model``."""

    def __init__(self, config: ModelConfig, loader: Loader, *, max_model_len: int, progress: Callable[[float], None]) -> None:
        parts = config.num_layers + 2
        self._embedding = Embedding(loader, "model.embed_tokens", vocab_size=config.vocab_size, hidden_size=config.hidden_size)
        progress(1 / parts)
        rotary = Rotary(loader, config=config, max_model_len=max_model_len, factors_name="model.rotary_emb.freq_factors")
        self._layers = []
        for layer in range(config.num_layers):
            name = f"model.layers.{layer}"
            self._layers.append(LlamaLayer(loader, name, config=config, layer=layer, rotary=rotary))
            progress((layer + 2) / parts)
        self._norm = RMSNorm(loader, "model.norm", size=config.hidden_size, eps=config.rms_norm_eps)
        self._head = LMHead(
            loader,
            "lm_head",
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            tied=self._embedding if config.tie_word_embeddings else None,
            norm=self._norm,
        )
        progress(1.0)

    @staticmethod
    def matrix_sizes(config: ModelConfig) -> tuple[int, int]:
        """See ``models.matrix_sizes``."""
        heads = 2 * config.num_heads + 2 * config.num_kv_heads
        layer = config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size)
        matrices = 1 if config.tie_word_embeddings else 2
        return config.num_layers * layer, matrices * config.vocab_size * config.hidden_size

    def forward(self, batch: Batch, cache: KVCache, rows: Array) -> Array:
        hidden = self._embedding(batch.input_ids)
        for layer in self._layers:
            hidden = layer(hidden, batch, cache, rows if layer is self._layers[-1] else None)
        return hidden

    def logits(self, hidden: Array) -> Array:
        return self._head(self._norm(hidden))

    def likeliest(self, hidden: Array, allowed: Array | None) -> Array:
        return self._head.likeliest(self._norm(hidden), allowed)
