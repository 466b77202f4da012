"""GGUF files of tiny models, written with the ``gguf`` package as llama.cpp's converter writes them, give the logits of
``transformers``."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo.backends.reference.backend import ReferenceBackend
from octavo.config import ConfigError
from octavo.models import load_model
from octavo.weights.checkpoint import open_checkpoint
from tests.models.paged import PagedRunner
from tests.models.variants import build, reference_logits

PROMPT = [int(token) for token in np.random.default_rng(6).integers(0, 128, 30)]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    if name in TOP:
        return TOP[name]
    _, _, layer, rest = name.split(".", 3)
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{NAMES[stem]}.{kind}"


def interleave(array: np.ndarray, heads: int) -> np.ndarray:
    """The converter's reordering of q and k rows for architecture llama: halves of a head -> pairs."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def write(
    model: Any,
    path: Path,
    *,
    arch: str,
    kind: gguf.GGMLQuantizationType,
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
    extra: dict[str, Any] | None = None,
) -> None:
    """``kind`` of all matrices, but of those whose names have one of ``kinds`` in them."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for key, value in (extra or {}).items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = parameter.numpy()
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            array = np.ascontiguousarray(interleave(array, heads))
        own = next((other for part, other in (kinds or {}).items() if part in name), kind)
        stored = own if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "name", ["blk.0.attn_sinks.weight", "token_embd_norm.weight", "blk.1.attn_k.bias", "rope_factors_long"]
)
def test_a_tensor_that_has_no_place_in_the_model_is_refused(name: str, tmp_path: Path) -> None:
    more = {name: np.ones(16, np.float32), "blk.3.nextn.weight": np.ones(4, np.float32)}
    write(build("smollm", tmp_path / "hf"), tmp_path / "m.gguf", arch="llama", kind=gguf.GGMLQuantizationType.F32, extra=more)
    with pytest.raises(ConfigError, match="has no place in this LlamaForCausalLM"):
        logits_of(tmp_path / "m.gguf")


def logits_of(path: Path) -> np.ndarray:
    checkpoint = open_checkpoint(path)
    backend = ReferenceBackend()
    model = load_model(checkpoint.config, checkpoint.source, backend, max_model_len=64)
    [logits] = PagedRunner(model, backend, checkpoint.config).step([(0, PROMPT)])
    return logits


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("variant", "arch"),
    [
        *[("llama2", "llama"), ("smollm", "llama"), ("llama_biases", "llama"), ("mistral_no_window", "llama")],
        *[("qwen2", "qwen2"), ("qwen3", "qwen3")],
    ],
)
def test_float32_file(variant: str, arch: str, tmp_path: Path) -> None:
    model = build(variant, tmp_path / "hf")
    write(model, tmp_path / "model.gguf", arch=arch, kind=gguf.GGMLQuantizationType.F32)
    assert open_checkpoint(tmp_path / "model.gguf").config.dtype == "float32"
    close(logits_of(tmp_path / "model.gguf"), reference_logits(model, PROMPT), 2e-5)


@pytest.mark.parametrize(
    ("variant", "extra"),
    [
        ("linear", {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}),
        (
            "yarn",
            {
                "qwen2.rope.scaling.type": "yarn",
                "qwen2.rope.scaling.factor": 4.0,
                "qwen2.rope.scaling.original_context_length": 16,
                "qwen2.rope.scaling.yarn_beta_fast": 4.0,
            },
        ),
        ("mistral_window", {"llama.attention.sliding_window": 7}),
    ],
)
def test_rotary_scaling_and_windows_in_metadata(variant: str, extra: dict[str, Any], tmp_path: Path) -> None:
    model = build(variant, tmp_path / "hf")
    write(model, tmp_path / "m.gguf", arch=next(iter(extra)).split(".")[0], kind=gguf.GGMLQuantizationType.F32, extra=extra)
    close(logits_of(tmp_path / "m.gguf"), reference_logits(model, PROMPT), 2e-5)


def test_llama3_scaling_as_a_tensor(tmp_path: Path) -> None:
    model = build("llama3", tmp_path / "hf")
    plain = 1.0 / 100.0 ** (np.arange(0, 8, 2) / 8)
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    write(
        model,
        tmp_path / "model.gguf",
        arch="llama",
        kind=gguf.GGMLQuantizationType.F32,
        extra={"rope_freqs.weight": factors},
    )
    close(logits_of(tmp_path / "model.gguf"), reference_logits(model, PROMPT), 2e-5)


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0"])
def test_smaller_types_give_the_logits_of_the_weights_they_hold(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    sizes: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "initializer_range": 0.2,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    kind = gguf.GGMLQuantizationType[name]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(
                    torch.from_numpy(gguf.dequantize(gguf.quantize(parameter.numpy(), kind), kind).astype(np.float32))
                )
    write(model, tmp_path / "model.gguf", arch="llama", kind=kind)
    close(logits_of(tmp_path / "model.gguf"), reference_logits(model, PROMPT), 2e-5)
