"""The demo model itself: its facts, its tokenizer, its tensors."""

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from octavo.weights.checkpoint import Checkpoint, open_checkpoint


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


def test_facts(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    assert (checkpoint.kind, config.architecture) == ("gguf", "LlamaForCausalLM")
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings) == (49_152, 8_192)
    assert (config.rope_theta, config.rope_scaling, config.sliding_window) == (100_000.0, None, None)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert (config.tie_word_embeddings, config.dtype, config.integer_types) == (True, "bfloat16", ("Q4_1", "Q8_0"))
    assert config.eos_token_ids == (2, 0)
    assert open_checkpoint(checkpoint.path, load_format="dummy").config.integer_types == ()


def test_tokenizer_and_template(checkpoint: Checkpoint) -> None:
    assert checkpoint.gguf_metadata is not None
    tokens = checkpoint.gguf_metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == 49_152
    assert list(tokens)[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert checkpoint.chat_template is not None
    assert "<|im_start|>" in checkpoint.chat_template


def test_tensors(smollm2_path: Path, checkpoint: Checkpoint) -> None:
    raw = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_path).tensors}
    for ours, theirs, shape in (
        ("model.embed_tokens.weight", "token_embd.weight", (49_152, 576)),
        ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight", (576, 1536)),
        ("model.layers.7.self_attn.v_proj.weight", "blk.7.attn_v.weight", (192, 576)),
    ):
        expected = gguf.dequantize(raw[theirs].data, raw[theirs].tensor_type)
        found = checkpoint.source.dense(ours, shape=shape, dtype="bfloat16").array
        np.testing.assert_array_equal(found.view(np.uint16), expected.astype(ml_dtypes.bfloat16).view(np.uint16))
    key = raw["blk.3.attn_k.weight"]
    pairs = gguf.dequantize(key.data, key.tensor_type).reshape(3, 32, 2, 576)
    found = checkpoint.source.dense("model.layers.3.self_attn.k_proj.weight", shape=(192, 576), dtype="float32").array
    np.testing.assert_array_equal(found, pairs.swapaxes(1, 2).reshape(192, 576))
