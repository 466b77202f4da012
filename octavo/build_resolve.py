"""What the engine is to be: the user's choices against the model's facts, settled once before anything is built.

Decides by the two configurations alone; what depends on memory is in ``build_memory``. What cannot work is refused.
"""

from octavo.backends.base import KVCacheSpec
from octavo.config import ConfigError, ContextTooLongError, EngineConfig, ModelConfig
from octavo.layers.loader import WeightFormat


def resolve_dtype(config: EngineConfig, model: ModelConfig) -> str:
    """The dtype of weights and activations: "bfloat16" or "float32".

    Raises:
        ConfigError: float16 was asked for.
    """
    if config.dtype in ("half", "float16"):
        raise ConfigError("float16 is not computed on this backend: use --dtype bfloat16 (same size) or --dtype float32")
    if config.dtype == "auto":
        return "float32" if model.dtype == "float32" else "bfloat16"
    return "float32" if config.dtype == "float" else config.dtype


def resolve_weight_format(config: EngineConfig, kind: str, model: ModelConfig, *, dtype: str, isa: str) -> WeightFormat:
    """How the weights of a checkpoint of this kind are computed.

    Raises:
        ConfigError: only a GGUF file has integers of its own.
    """
    if config.quantization == "auto":
        # With AMX plain numbers were faster from 32 sequences on; who asks for float32 asks for the most exact there is.
        return "stored" if model.integer_types and dtype != "float32" and isa != "amx" else "plain"
    if config.quantization == "stored" and kind != "gguf":
        raise ConfigError("--quantization stored computes a GGUF file's own integers; for other checkpoints use int8 or int4")
    return "plain" if config.quantization == "none" else config.quantization


def resolve_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """The longest sequence in tokens.

    Raises:
        ContextTooLongError: more than the model's positions were asked for.
    """
    limit = _most_positions(model)
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ContextTooLongError(
            f"--max-model-len {config.max_model_len} is more than the {limit} positions that the model was made for"
        )
    return config.max_model_len or model.max_position_embeddings


def _most_positions(model: ModelConfig) -> int:
    """What may be asked for: those that the configuration names, or the more to which its scaling stretches them."""
    known, scaling = model.max_position_embeddings, model.rope_scaling
    if scaling is None or scaling.rope_type not in ("linear", "dynamic", "yarn"):
        return known
    stretched = known if scaling.rope_type != "yarn" else scaling.original_max_position_embeddings or known
    return max(known, round(stretched * scaling.factor))


def check_budgets(config: EngineConfig, max_model_len: int) -> None:
    """Raises ``ConfigError`` where a step's token budget is too small for what it must hold."""
    if config.pin_prefix and not config.enable_prefix_caching:
        raise ConfigError("--pin-prefix needs prefix caching: leave out --no-enable-prefix-caching")
    if config.pin_prefix and config.kv_allocation != "paged":
        raise ConfigError(f"--kv-allocation {config.kv_allocation} has no prefix caching: leave out --pin-prefix")
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} must be at least --max-num-seqs {config.max_num_seqs}: "
            f"add --max-num-batched-tokens {config.max_num_seqs} or more"
        )
    if config.kv_allocation != "paged" and config.preemption_mode == "swap":
        raise ConfigError(
            f"--kv-allocation {config.kv_allocation} reserves all memory in advance and never preempts: leave out "
            "--preemption-mode swap"
        )
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        raise ConfigError(
            f"without chunked prefill --max-num-batched-tokens ({config.max_num_batched_tokens}) must be at least "
            f"--max-model-len ({max_model_len})"
        )


def check_heads(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ``ConfigError`` for heads that the backend has no kernels for."""
    if config.backend == "cpu" and (model.head_dim % 8 or model.head_dim > 256):
        raise ConfigError(
            f"the model's heads have {model.head_dim} elements; the cpu backend computes multiples of 8 up to 256. "
            "`--backend reference` computes any, slowly"
        )


def kv_cache_spec(config: EngineConfig, model: ModelConfig, dtype: str) -> KVCacheSpec:
    return KVCacheSpec(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=config.block_size,
        dtype=dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
    )
