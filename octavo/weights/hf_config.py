"""config.json and generation_config.json of a Hugging Face checkpoint -> ``ModelConfig``. Pure functions of dicts.

Owns the reading of both styles (transformers 4: ``rope_theta`` and ``rope_scaling``; transformers 5: ``rope_parameters``) and
what each architecture leaves unsaid. Every number is bounded; ``auto_map`` and unknown fields are ignored. Where a field is
missing, the value is the one that transformers would take.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from octavo.config import ConfigError, ModelConfig, RopeScaling
from octavo.weights.fields import Fields

StoredDtype = Literal["float32", "bfloat16", "float16"]

MAX_VOCAB = 1 << 24
MAX_WIDTH = 1 << 20
MAX_LAYERS = 1_024
MAX_HEADS = 4_096
MAX_HEAD_DIM = 1_024
MAX_POSITIONS = 1 << 27
MAX_ROPE_THETA = 1e15
MAX_ROPE_FACTOR = 1e6

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture's config.json means where it says nothing. None: the file's field decides."""

    head_dim: int | None = None
    """When missing; None: hidden size / heads."""
    num_kv_heads: int | None = None
    """When missing; None: as many as heads."""
    windows: Literal["none", "every layer", "by layer"] = "none"
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool | None = False
    qk_norm: bool = False


FAMILIES = {
    "LlamaForCausalLM": Family(mlp_bias=None),
    "MistralForCausalLM": Family(num_kv_heads=8, windows="every layer", qkv_bias=False, output_bias=False),
    "Qwen2ForCausalLM": Family(num_kv_heads=32, windows="by layer", qkv_bias=True, output_bias=False),
    "Qwen3ForCausalLM": Family(head_dim=128, num_kv_heads=32, windows="by layer", qk_norm=True),
}


def parse_hf_config(
    config: dict[str, Any], generation: dict[str, Any] | None, *, directory: Path, stored_dtype: StoredDtype = "bfloat16"
) -> ModelConfig:
    """The facts of a checkpoint. ``directory`` is for messages; ``stored_dtype`` is taken where the config names no dtype.

    Raises ``ConfigError`` naming file and field for whatever is missing, out of bounds or not supported.
    """
    fields = Fields(directory / "config.json", config)
    generating = Fields(directory / "generation_config.json", generation or {})
    architecture = _architecture(fields)
    family = FAMILIES[architecture]
    _refuse_unsupported(fields)
    num_heads = fields.integer("num_attention_heads", high=MAX_HEADS)
    num_layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    hidden_size = fields.integer("hidden_size", high=MAX_WIDTH)
    max_positions = fields.integer("max_position_embeddings", high=MAX_POSITIONS)
    theta, scaling = _rope(fields, max_positions)
    window, sliding_layers = _windows(fields, family, num_layers)
    attention_bias = fields.boolean("attention_bias", default=False)
    eos = generating.token_ids("eos_token_id") or fields.token_ids("eos_token_id")
    model = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", high=MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", high=MAX_WIDTH),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, family, num_heads),
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        max_position_embeddings=max_positions,
        rms_norm_eps=_or(fields.maybe_number("rms_norm_eps", low=0, high=1), 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        sliding_window=window,
        sliding_layers=sliding_layers,
        attention_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        attention_output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=fields.boolean("mlp_bias", default=False) if family.mlp_bias is None else family.mlp_bias,
        qk_norm=family.qk_norm,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        dtype=_dtype(fields, stored_dtype),
        eos_token_ids=eos,
        default_sampling=sampling_defaults(generating),
    )
    check_heads(fields.path, model)
    return model


def check_heads(path: Path, model: ModelConfig) -> None:
    """The relations between sizes that attention relies on, whatever file they came from."""
    if model.num_heads % model.num_kv_heads:
        raise ConfigError(f"{path}: {model.num_heads} attention heads cannot share {model.num_kv_heads} key-value heads evenly")
    if model.head_dim % 2:
        raise ConfigError(f"{path}: a head size of {model.head_dim} is odd; rotary positions need pairs")


def sampling_defaults(fields: Fields, names: dict[str, str] | None = None) -> dict[str, Any]:
    """The sampling defaults that the file sets, under the names of ``SamplingParams``; ``names`` maps those to the file's."""
    defaults: dict[str, Any] = {}
    names = names or {}
    for name, high, above in (("temperature", 100, False), ("top_p", 1, True), ("min_p", 1, False)):
        value = fields.maybe_number(names.get(name, name), low=0, high=high, above=above)
        if value is not None:
            defaults[name] = value
    top_k = fields.maybe_integer(names.get("top_k", "top_k"), low=-1, high=MAX_VOCAB)
    if top_k is not None:
        defaults["top_k"] = top_k
    penalty = fields.maybe_number(names.get("repetition_penalty", "repetition_penalty"), low=0, high=100, above=True)
    if penalty is not None:
        defaults["repetition_penalty"] = penalty
    return defaults


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise fields.refuse("architectures", "is missing or not a list of names; this is not a language model's config.json")
    for name in names:
        if name in FAMILIES:
            return str(name)
    raise ConfigError(
        f"{fields.path}: architecture {names[0][:80]!r} is not supported; these are: {', '.join(sorted(FAMILIES))}"
    )


def _refuse_unsupported(fields: Fields) -> None:
    """Settings under which the numbers would silently be wrong."""
    activation = fields.text("hidden_act", default="silu")
    if activation not in ("silu", "swish"):
        raise fields.refuse("hidden_act", f"is {activation[:40]!r}; only 'silu' is supported")
    quantization = fields.inner("quantization_config")
    if quantization is not None:
        method = quantization.text("quant_method", default="an unknown method")
        raise fields.refuse("quantization_config", f"asks for {method[:40]!r}; use the unquantized checkpoint or a .gguf file")


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    head_dim = fields.maybe_integer("head_dim", high=MAX_HEAD_DIM) or family.head_dim
    if head_dim is None:
        if hidden_size % num_heads:
            raise fields.refuse(
                "hidden_size", f"is {hidden_size}, not a multiple of {num_heads} heads, and 'head_dim' is missing"
            )
        head_dim = hidden_size // num_heads
    return head_dim


def _num_kv_heads(fields: Fields, family: Family, num_heads: int) -> int:
    count = fields.maybe_integer("num_key_value_heads", high=MAX_HEADS)
    if count is None and "num_key_value_heads" not in fields.names():
        count = family.num_kv_heads
    return count or num_heads


def _dtype(fields: Fields, stored: StoredDtype) -> StoredDtype:
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    name = fields.text(key, default=stored).removeprefix("torch.")
    if name not in ("float32", "bfloat16", "float16"):
        raise fields.refuse(key, f"is {name[:40]!r}; float32, bfloat16 and float16 are supported")
    return cast(StoredDtype, name)


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, tuple[bool, ...] | None]:
    """(the sliding window, which layers have it; None: all of them)."""
    if family.windows == "none":
        return None, None
    window = fields.maybe_integer("sliding_window", high=MAX_POSITIONS)
    if family.windows == "every layer":
        # a Mistral file that does not mention the field means the first release's window
        return (window if "sliding_window" in fields.names() else 4_096), None
    if not fields.boolean("use_sliding_window", default=False):
        return None, None
    window = window if "sliding_window" in fields.names() else 4_096
    if window is None:
        return None, None
    first = fields.maybe_integer("max_window_layers", low=0, high=MAX_LAYERS)
    sliding = _layer_types(fields, num_layers)
    return window, sliding or tuple(layer >= (28 if first is None else first) for layer in range(num_layers))


def _layer_types(fields: Fields, num_layers: int) -> tuple[bool, ...] | None:
    types = fields.get("layer_types")
    if types is None:
        return None
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in known for kind in types):
        raise fields.refuse("layer_types", f"must be {num_layers} of 'full_attention' and 'sliding_attention'")
    return tuple(kind == "sliding_attention" for kind in types)


def _rope(fields: Fields, max_positions: int) -> tuple[float, RopeScaling | None]:
    """(base, scaling) from either style. ``rope_scaling`` goes first where a file has both, as in transformers."""
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    parameters = fields.inner(name) or Fields(fields.path, {}, within="rope_parameters.")
    for key in parameters.names():
        if isinstance(parameters.get(key), dict):
            raise parameters.refuse(key, "sets rotary parameters for some layers only, which is not supported")
    for place in (parameters, fields):
        if _or(place.maybe_number("partial_rotary_factor", low=0, high=1), 1.0) != 1.0:
            raise place.refuse("partial_rotary_factor", "must be 1: rotating a part of each head is not supported")
    theta = parameters.maybe_number("rope_theta", low=1, high=MAX_ROPE_THETA, above=True)
    if theta is None:
        theta = _or(fields.maybe_number("rope_theta", low=1, high=MAX_ROPE_THETA, above=True), 10_000.0)
    kind = parameters.text("rope_type", default=parameters.text("type", default="default"))
    if kind not in ROPE_TYPES:
        raise parameters.refuse("rope_type", f"is {kind[:40]!r}; these are supported: {', '.join(ROPE_TYPES)}")
    if kind == "default":
        return theta, None
    original = _original_positions(fields, parameters, kind, max_positions)
    return theta, _scaling(parameters, kind, original, max_positions)


def _original_positions(fields: Fields, parameters: Fields, kind: str, max_positions: int) -> int | None:
    """The context that the model was first trained for; None for the types that do not ask."""
    if kind not in ("llama3", "yarn"):
        return None
    for place in (fields, parameters):
        original = place.maybe_integer("original_max_position_embeddings", high=MAX_POSITIONS)
        if original is not None:
            return original
    return max_positions


def _scaling(parameters: Fields, kind: str, original: int | None, max_positions: int) -> RopeScaling:
    factor = parameters.maybe_number("factor", low=0, high=MAX_ROPE_FACTOR, above=True)
    if factor is None:
        if kind != "yarn" or original is None:
            raise parameters.refuse("factor", "is missing")
        factor = max_positions / original
    llama3 = kind == "llama3"
    low, high = (
        (parameters.number(f"{side}_freq_factor", low=0, high=MAX_ROPE_FACTOR, above=True) if llama3 else default)
        for side, default in (("low", 1.0), ("high", 4.0))
    )
    if high <= low:
        raise parameters.refuse("high_freq_factor", f"must be above low_freq_factor, got {high:g} and {low:g}")
    beta_fast, beta_slow = (
        parameters.maybe_number(f"beta_{side}", low=0, high=MAX_ROPE_FACTOR) or default
        for side, default in (("fast", 32.0), ("slow", 1.0))
    )
    return RopeScaling(
        rope_type=cast(Any, kind),
        factor=factor,
        original_max_position_embeddings=original,
        low_freq_factor=low,
        high_freq_factor=high,
        attention_factor=parameters.maybe_number("attention_factor", low=0, high=MAX_ROPE_FACTOR),
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        mscale=parameters.maybe_number("mscale", low=0, high=MAX_ROPE_FACTOR),
        mscale_all_dim=parameters.maybe_number("mscale_all_dim", low=0, high=MAX_ROPE_FACTOR),
        truncate=parameters.boolean("truncate", default=True),
    )
