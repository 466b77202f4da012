"""Rotary tables at the sizes of real models against the frequencies of ``transformers``."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.config import ModelConfig, RopeScaling
from octavo.layers.rotary import _ROWS, rotary_frequencies, rotary_table

LLAMA31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def yarn(factor: float, original: int, **more: Any) -> dict[str, Any]:
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **more}


SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", **LLAMA31},
    "yarn": yarn(4.0, 32_768),
    "yarn_small_factor": yarn(0.5, 32_768),
    "yarn_given_factor": yarn(4.0, 32_768, attention_factor=0.7),
    "yarn_smooth": yarn(40.0, 4_096, truncate=False),
    "yarn_narrow": yarn(4.0, 64, beta_fast=1.0, beta_slow=1.0),
    "yarn_mscale": yarn(40.0, 4_096, mscale=1.0, mscale_all_dim=0.8, beta_fast=16.0, beta_slow=2.0),
}


def config(scaling: dict[str, Any] | None, *, positions: int = 131_072) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=512,
        intermediate_size=10,
        num_layers=1,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        max_position_embeddings=positions,
        rope_theta=500_000.0,
        rope_scaling=None if scaling is None else RopeScaling(**scaling),
    )


@pytest.mark.parametrize("name", list(SCALINGS))
def test_frequencies_equal_transformers(name: str) -> None:
    scaling = SCALINGS[name]
    theirs = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131_072,
        rope_parameters={**scaling, "rope_theta": 500_000.0},
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, "cpu")
    frequencies, factor = rotary_frequencies(config(scaling), 131_072)
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=3e-6)
    assert factor == pytest.approx(expected_factor, rel=1e-12)


def test_table_layout() -> None:
    table = rotary_table(config(None), 1000)
    assert table.shape == (1000, 128)
    assert table.dtype == np.float32
    angles = 999 / 500_000.0 ** (np.arange(64) / 64)
    np.testing.assert_array_equal(table[0], np.repeat([1.0, 0.0], 64))
    np.testing.assert_allclose(table[999], np.concatenate([np.cos(angles), np.sin(angles)]), atol=1e-7)


@pytest.mark.parametrize("name", [None, *SCALINGS])
@pytest.mark.parametrize("length", [1, _ROWS, 2 * _ROWS + 5])
def test_a_table_is_the_same_bits_as_one_made_at_once(name: str | None, length: int) -> None:
    model = config(None if name is None else SCALINGS[name])
    frequencies, factor = rotary_frequencies(model, length)
    angles = np.outer(np.arange(length, dtype=np.float64), frequencies)
    expected = np.concatenate([np.cos(angles) * factor, np.sin(angles) * factor], axis=1).astype(np.float32)
    assert rotary_table(model, length).tobytes() == expected.tobytes()


def test_a_table_takes_little_more_memory_than_its_own() -> None:
    tracemalloc.start()
    try:
        table = rotary_table(config(None), 16 * _ROWS)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * table.nbytes
    finally:
        tracemalloc.stop()


def test_the_attention_factor_scales_the_table() -> None:
    plain = rotary_table(config({**SCALINGS["yarn"], "attention_factor": 1.0}), 10)
    scaled = rotary_table(config({**SCALINGS["yarn"], "attention_factor": 2.0}), 10)
    np.testing.assert_allclose(scaled, plain * 2, rtol=1e-6)


@pytest.mark.parametrize("length", [1, 100, 4096])
def test_dynamic_is_plain_within_the_context(length: int) -> None:
    dynamic = rotary_table(config(SCALINGS["dynamic"], positions=4096), length)
    np.testing.assert_array_equal(dynamic, rotary_table(config(None, positions=4096), length))


def test_dynamic_beyond_the_context_is_that_of_the_longest_sequence() -> None:
    scaling = SCALINGS["dynamic"]
    theirs = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_parameters={**scaling, "rope_theta": 500_000.0},
    )
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, "cpu", seq_len=10_000)
    frequencies, _ = rotary_frequencies(config(scaling, positions=4096), 10_000)
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=3e-6)


def test_frequency_divisors_of_a_file() -> None:
    divisors = np.linspace(1, 8, 64).astype(np.float32)
    table = rotary_table(config(None), 50, factors=divisors)
    angles = 49 / 500_000.0 ** (np.arange(64) / 64) / divisors
    np.testing.assert_allclose(table[49, :64], np.cos(angles), atol=1e-7)
