"""GGUF metadata gives the facts of the model, or is refused by file and key; tensor names map to those of checkpoints."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo.config import ConfigError, ModelConfig, RopeScaling
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.gguf_config import hf_name, parse_gguf_config
from octavo.weights.gguf_file import GgufFile
from tests.models.test_gguf_models import write
from tests.models.variants import build
from tests.weights import fuzz


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    directory = tmp_path_factory.mktemp("gguf")
    write(build("smollm", directory / "hf"), directory / "m.gguf", arch="llama", kind=gguf.GGMLQuantizationType.F32)
    return GgufFile(directory / "m.gguf")


def parse(file: GgufFile, changes: dict[str, Any]) -> ModelConfig:
    """The configuration with some keys changed; ... removes one."""
    original = file.metadata
    file.metadata = {key: value for key, value in {**original, **changes}.items() if value is not ...}
    try:
        return parse_gguf_config(file)
    finally:
        file.metadata = original


def test_facts(file: GgufFile) -> None:
    expected = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128,
        hidden_size=48,
        intermediate_size=80,
        num_layers=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        rms_norm_eps=float(np.float32(1e-6)),
        rope_theta=100_000.0,
        tie_word_embeddings=True,
        dtype="float32",
    )
    assert parse(file, {}) == expected


def test_optional_facts(file: GgufFile) -> None:
    tokens = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 5}
    config = parse(file, {**tokens, "tokenizer.ggml.eom_token_id": 2})
    assert config.eos_token_ids == (2, 5)
    sampling = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.1}
    assert parse(file, sampling).default_sampling == {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    assert parse(file, {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}).rope_scaling is None
    assert parse(file, {"llama.rope.scaling.type": "none", "llama.rope.scale_linear": 4.0}).rope_scaling is None
    assert parse(file, {"llama.rope.scaling.factor": 4.0}).rope_scaling == RopeScaling(rope_type="linear", factor=4.0)
    assert parse(file, {"llama.rope.scaling.factor": 1.0}).rope_scaling is None
    assert parse(file, {"llama.rope.scale_linear": 4.0}).rope_scaling == RopeScaling(rope_type="linear", factor=4.0)
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.yarn_ext_factor": 1.0}
    plain, damped = parse(file, yarn).rope_scaling, parse(file, {**yarn, "llama.rope.scaling.attn_factor": 0.5}).rope_scaling
    assert plain is not None and plain.attention_factor is None and damped is not None
    assert damped.attention_factor == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))
    assert parse(file, {"llama.logit_scale": 1.0, "llama.attention.scale": 0.0}) == parse(file, {})
    assert parse(file, {"llama.attention.head_count_kv": ...}).num_kv_heads == 6
    assert parse(file, {"llama.rope.freq_base": ...}).rope_theta == 10_000.0


def test_control_tokens_that_end_an_answer_are_known_by_their_text(file: GgufFile) -> None:
    tokens = ["a", "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<EOT>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>"]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.array([1, 3, 3, 3, 1, 3, 3], np.int32)}
    assert parse(file, keys).eos_token_ids == (1, 3, 5)
    assert parse(file, {**keys, "tokenizer.ggml.eos_token_id": 3}).eos_token_ids == (3, 1, 5), "what the file names comes first"
    assert parse(file, {**keys, "tokenizer.ggml.token_type": np.array([1, 4, 3])}).eos_token_ids == ()
    for types in (..., 3, np.zeros(9, np.int32), [np.array([3])]):
        assert parse(file, {**keys, "tokenizer.ggml.token_type": types}).eos_token_ids == ()
    assert parse(file, {**keys, "tokenizer.ggml.tokens": tokens[:2]}).eos_token_ids == (1,)
    for texts in (..., 3, np.array([3] * 7), ["<|im_start|>"]):
        assert parse(file, {**keys, "tokenizer.ggml.tokens": texts}).eos_token_ids == ()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "gpt2"}, "'gpt2' is not supported; these are: llama, qwen2, qwen3"),
    ({"general.architecture": ...}, "is not supported"),
    ({"general.architecture": 3}, r"general\.architecture"),
    ({"split.count": 3}, "merge"),
    ({"llama.expert_count": 8}, "mixture of experts"),
    ({"llama.block_count": ...}, r"'llama\.block_count' is missing"),
    ({"llama.block_count": 1 << 31}, r"llama\.block_count"),
    ({"llama.context_length": 0}, r"llama\.context_length"),
    ({"llama.attention.head_count": np.array([6, 6, 6])}, r"llama\.attention\.head_count"),
    ({"llama.attention.head_count_kv": 4}, "evenly"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon"),
    ({"llama.attention.layer_norm_rms_epsilon": ...}, "is missing"),
    ({"llama.attention.key_length": 7, "llama.attention.value_length": 7}, "odd"),
    ({"llama.attention.value_length": 16}, "value_length"),
    ({"llama.rope.dimension_count": 4}, "dimension_count"),
    ({"llama.attention.scale": 0.5}, r"llama\.attention\.scale' is 0\.5, which is not supported"),
    ({"llama.logit_scale": 8.0}, "logit_scale"),
    ({"llama.logit_scale": np.array([1.0, 1.0])}, "logit_scale"),
    ({"llama.attention.causal": False}, "causal"),
    ({"llama.rope.scale_linear": 4.0, "llama.rope.scaling.attn_factor": 0.5}, "attn_factor"),
    ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0, "llama.rope.scaling.yarn_ext_factor": 0.0}, "ext"),
    ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
    ({"tokenizer.ggml.eos_token_id": -1}, "eos_token_id"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_nonsense_is_refused_by_file_and_key(file: GgufFile, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(file, changes)
    assert str(file.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_an_embedding_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="token_embd"):
        open_checkpoint(tmp_path / "v.gguf")


def test_flipped_bytes_never_get_further_than_a_config_error(file: GgufFile, tmp_path: Path) -> None:
    data = file.path.read_bytes()
    damaged = fuzz.flips(data, count=400, seed=2, within=2_000)
    outcomes = [fuzz.survives(tmp_path / "bad.gguf", bad, open_checkpoint) for bad in damaged]
    assert 20 < sum(outcomes) < 380


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"),
        ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("blk.3.ffn_gate_exps.weight", None),
        ("blk.99999.attn_q.weight", None),
        ("blk.1.attn_q.weight.extra", None),
        ("anything", None),
    ],
)
def test_names(name: str, expected: str | None) -> None:
    assert hf_name(name) == expected
