"""Tiny random checkpoints, one for each thing that a family of models may do differently, made with ``transformers``."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}

VARIANTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama2": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 6}),
    "llama3": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "linear": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "dynamic": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "yarn": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 4.0,
            }
        },
    ),
    "yarn_mscale": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 1.2,
                "mscale_all_dim": 0.7,
                "truncate": False,
            }
        },
    ),
    "llama_biases": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral_window": (MistralForCausalLM, MistralConfig, {"sliding_window": 7, "head_dim": 16}),
    "mistral_no_window": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"rms_norm_eps": 1e-5}),
    "qwen2_window": (Qwen2ForCausalLM, Qwen2Config, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}),
    "smollm": (
        LlamaForCausalLM,
        LlamaConfig,
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    ),
}


def build(variant: str, directory: Path, *, max_shard_size: str = "5GB", dtype: torch.dtype = torch.float32) -> Any:
    """Save the variant's checkpoint in ``directory``; returns the transformers model in float32, on the same weights."""
    model_class, config_class, changes = VARIANTS[variant]
    torch.manual_seed(17)
    model = model_class(config_class(**{**SIZES, **changes})).eval()
    randomize(model)
    model.to(dtype).save_pretrained(directory, max_shard_size=max_shard_size)
    # read back: a model that was cast has rotary frequencies of the lower precision
    return model_class.from_pretrained(directory, dtype=torch.float32).eval()


def randomize(model: Any) -> None:
    """Norm weights and biases that are not 1 and 0, so that forgetting one shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if "norm" in name else 0.0))


def reference_logits(model: Any, tokens: list[int]) -> Any:
    """float32[len(tokens), V] from transformers in one pass."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()
