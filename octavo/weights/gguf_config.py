"""The metadata of a GGUF file -> ``ModelConfig``, and its tensor names -> those of Hugging Face checkpoints. Pure functions.

Owns the vocabulary of GGUF: ``llama.block_count``, ``blk.0.attn_q.weight`` and so on, for the architectures llama (Llama,
Mistral, SmolLM), qwen2 and qwen3. Sizes that the tensors themselves tell are taken from them. Every number is bounded.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from octavo.config import ConfigError, ModelConfig, RopeScaling
from octavo.quant.gguf import GgmlType
from octavo.weights.fields import Fields
from octavo.weights.gguf_file import GgufFile, GgufTensor
from octavo.weights.hf_config import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_ROPE_FACTOR,
    MAX_ROPE_THETA,
    MAX_WIDTH,
    StoredDtype,
    check_heads,
    sampling_defaults,
)

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""GGUF's name -> Hugging Face's."""

ROPE_FACTORS = "model.rotary_emb.freq_factors"
"""Our name for ``rope_freqs.weight``: divisors of the rotary frequencies, by which llama.cpp stores "llama3" scaling."""

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": ROPE_FACTORS,
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_NAME = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
_UNSUPPORTED = {
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale"), (0.0, 1.0)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv"), (0.0,)),
    **dict.fromkeys(("attention.scale", "attention.max_alibi_bias"), (0.0,)),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
}
"""Keys that other architectures have, and the values that say nothing."""
_CONTROL = 3
"""The ``token_type`` of tokens that are marks and no text."""
_END_TEXTS = {
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"),
    *("<EOT>", "_<EOT>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
}
"""Marks by which models of these architectures end a text, a turn or a message."""
_SAMPLING = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}


def hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for one that no supported model has."""
    if name in _TOP:
        return _TOP[name]
    match = _BLOCK_NAME.fullmatch(name)
    if match is None or match[2] not in _BLOCK:
        return None
    return f"model.layers.{int(match[1])}.{_BLOCK[match[2]]}.{match[3]}"


def parse_gguf_config(file: GgufFile) -> ModelConfig:
    """The facts of a GGUF model. Raises ``ConfigError`` naming the key for whatever is missing or not supported."""
    general = Fields(file.path, file.metadata)
    arch = _architecture(general)
    fields = Fields(file.path, file.metadata, prefix=f"{arch}.")
    embedding = _matrix(file, "token_embd.weight")
    matrix_types = _matrix_types(file.tensors)
    num_heads = fields.integer("attention.head_count", high=MAX_HEADS)
    _refuse_unsupported(fields)
    max_positions = fields.integer("context_length", high=MAX_POSITIONS)
    head_dim = _head_dim(fields, embedding.shape[1], num_heads)
    model = ModelConfig(
        architecture=ARCHITECTURES[arch],
        vocab_size=embedding.shape[0],
        hidden_size=embedding.shape[1],
        intermediate_size=fields.integer("feed_forward_length", high=MAX_WIDTH),
        num_layers=fields.integer("block_count", high=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.maybe_integer("attention.head_count_kv", high=MAX_HEADS) or num_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", low=0, high=1),
        rope_theta=fields.maybe_number("rope.freq_base", low=1, high=MAX_ROPE_THETA, above=True) or 10_000.0,
        rope_scaling=_rope_scaling(fields, max_positions),
        # llama.cpp knows windows of Llama-shaped models only where the key is set, and none for Qwen
        sliding_window=fields.maybe_integer("attention.sliding_window", low=0, high=MAX_POSITIONS) or None
        if arch == "llama"
        else None,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        tie_word_embeddings="output.weight" not in file.tensors,
        dtype=_dtype(matrix_types),
        integer_types=_integer_types(matrix_types),
        eos_token_ids=_end_tokens(general),
        default_sampling=sampling_defaults(Fields(file.path, file.metadata, prefix="general.sampling."), _SAMPLING),
    )
    check_heads(file.path, model)
    return model


def _architecture(general: Fields) -> str:
    arch = general.text("general.architecture", default="")
    if arch not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ConfigError(f"{general.path}: architecture {arch[:80]!r} is not supported; these are: {known}")
    if (general.maybe_integer("split.count", low=0, high=1 << 16) or 0) > 1:
        raise general.refuse("split.count", "says that the model has several files; merge them with llama-gguf-split --merge")
    if general.maybe_integer(f"{arch}.expert_count", low=0, high=1 << 16):
        raise general.refuse(f"{arch}.expert_count", "asks for a mixture of experts, which is not supported")
    return arch


def _refuse_unsupported(fields: Fields) -> None:
    """Settings under which the numbers would silently be wrong."""
    for name, usual in _UNSUPPORTED.items():
        value = fields.get(name)
        if value is not None and (not isinstance(value, int | float) or value not in usual):
            raise fields.refuse(name, f"is {str(value)[:40]}, which is not supported")


def _matrix(file: GgufFile, name: str) -> GgufTensor:
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise ConfigError(f"{file.path}: matrix {name!r} is missing; not a language model, or only a part of one")
    return tensor


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    head_dim = fields.maybe_integer("attention.key_length", high=MAX_HEAD_DIM)
    if head_dim is None:
        if hidden_size % num_heads:
            raise fields.refuse("attention.key_length", f"is missing and {hidden_size} is not a multiple of {num_heads} heads")
        head_dim = hidden_size // num_heads
    for name in ("attention.value_length", "rope.dimension_count"):
        if (fields.maybe_integer(name, high=MAX_HEAD_DIM) or head_dim) != head_dim:
            raise fields.refuse(name, f"differs from the head size {head_dim}, which is not supported")
    return head_dim


def _rope_scaling(fields: Fields, max_positions: int) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", default="")
    factor = fields.maybe_number("rope.scaling.factor", low=0, high=MAX_ROPE_FACTOR)
    if not kind:
        # older converters wrote a factor alone for linear scaling
        factor = factor or fields.maybe_number("rope.scale_linear", low=0, high=MAX_ROPE_FACTOR)
        kind = "linear" if factor and factor != 1 else "none"
    if kind == "none" or not factor:
        return None
    amplitude = fields.maybe_number("rope.scaling.attn_factor", low=0, high=MAX_ROPE_FACTOR) or 1.0
    amplitude *= fields.maybe_number("rope.scaling.yarn_attn_factor", low=0, high=MAX_ROPE_FACTOR) or 1.0
    for name, usual in (("yarn_ext_factor", (-1.0, 1.0)), ("yarn_log_multiplier", (0.0,))):
        if (value := fields.maybe_number(f"rope.scaling.{name}", low=-1, high=MAX_ROPE_FACTOR)) not in (None, *usual):
            raise fields.refuse(f"rope.scaling.{name}", f"is {value:g}, which is not supported")
    if kind == "linear":
        if amplitude != 1:
            raise fields.refuse("rope.scaling.attn_factor", "must be 1 with linear scaling")
        return RopeScaling(rope_type="linear", factor=factor)
    if kind != "yarn":
        raise fields.refuse("rope.scaling.type", f"is {kind[:40]!r}; 'linear' and 'yarn' are supported")
    return RopeScaling(
        rope_type="yarn",
        factor=factor,
        original_max_position_embeddings=fields.maybe_integer("rope.scaling.original_context_length", high=MAX_POSITIONS)
        or max_positions,
        attention_factor=None if amplitude == 1 else amplitude * (1 + 0.1 * math.log(max(factor, 1.0))),
        beta_fast=fields.maybe_number("rope.scaling.yarn_beta_fast", low=0, high=MAX_ROPE_FACTOR) or 32.0,
        beta_slow=fields.maybe_number("rope.scaling.yarn_beta_slow", low=0, high=MAX_ROPE_FACTOR) or 1.0,
    )


def _end_tokens(general: Fields) -> tuple[int, ...]:
    """End of text, of turn and of message: each ends an answer. Files seldom have a key for every one of them, so the others
    are known by their text, as in llama.cpp; a token of such a text that is not a control token is left to be text."""
    found: list[int] = []
    for name in ("eos_token_id", "eot_token_id", "eom_token_id"):
        found += general.token_ids(f"tokenizer.ggml.{name}")
    tokens, types = general.get("tokenizer.ggml.tokens"), general.get("tokenizer.ggml.token_type")
    if isinstance(tokens, Sequence) and isinstance(types, np.ndarray):
        control = np.flatnonzero(types[: len(tokens)] == _CONTROL).tolist()
        found += [token_id for token_id in control if tokens[token_id] in _END_TEXTS]
    return tuple(dict.fromkeys(found))


def _matrix_types(tensors: Mapping[str, GgufTensor]) -> set[GgmlType]:
    return {tensor.kind for tensor in tensors.values() if len(tensor.shape) == 2}


def _dtype(types: set[GgmlType]) -> StoredDtype:
    """float32 or float16 if every matrix is stored so, else bfloat16."""
    if types == {GgmlType.F32}:
        return "float32"
    return "float16" if types == {GgmlType.F16} else "bfloat16"


def _integer_types(types: set[GgmlType]) -> tuple[str, ...]:
    return tuple(kind.name for kind in sorted(types - {GgmlType.F32, GgmlType.F16, GgmlType.BF16}))


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf"
