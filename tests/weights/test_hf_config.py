"""config.json in both styles gives the facts that transformers takes from it; nonsense is refused by field name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from octavo.config import ConfigError, ModelConfig, RopeScaling
from octavo.models import REGISTRY
from octavo.weights.gguf_config import ARCHITECTURES
from octavo.weights.hf_config import FAMILIES, parse_hf_config

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
HERE = Path("some/model")


def parse(generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    config = {name: value for name, value in {**BASE, **changes}.items() if value is not ...}
    return parse_hf_config(config, generation, directory=HERE)


def arch(name: str) -> dict[str, Any]:
    return {"architectures": [name]}


def test_the_registry_and_the_readers_know_the_same_architectures() -> None:
    assert set(FAMILIES) == set(REGISTRY)
    assert set(ARCHITECTURES.values()) <= set(REGISTRY)


@pytest.mark.parametrize(
    ("name", "config_class"),
    [
        *[("LlamaForCausalLM", LlamaConfig), ("MistralForCausalLM", MistralConfig)],
        *[("Qwen2ForCausalLM", Qwen2Config), ("Qwen3ForCausalLM", Qwen3Config)],
    ],
)
@pytest.mark.parametrize("missing", [(), ("num_key_value_heads",), ("rms_norm_eps", "rope_theta", "tie_word_embeddings")])
def test_what_is_left_out_is_what_transformers_takes(name: str, config_class: Any, missing: tuple[str, ...]) -> None:
    sizes = {key: value for key, value in BASE.items() if key not in ("architectures", *missing)}
    absent: dict[str, Any] = dict.fromkeys(missing, ...)
    larger: dict[str, Any] = {"num_attention_heads": 32, "hidden_size": 256}
    theirs = config_class(**{**sizes, **larger})
    ours = parse(**arch(name), **larger, **absent)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_window == theirs.__dict__.get("sliding_window")
    assert ours.rope_scaling is None


def test_biases_and_norms_follow_the_architecture() -> None:
    def facts(name: str, **changes: Any) -> tuple[bool, bool, bool, bool]:
        config = parse(**arch(name), **changes)
        return config.attention_bias, config.attention_output_bias, config.mlp_bias, config.qk_norm

    assert facts("LlamaForCausalLM") == (False, False, False, False)
    assert facts("LlamaForCausalLM", attention_bias=True) == (True, True, False, False)
    assert facts("LlamaForCausalLM", mlp_bias=True) == (False, False, True, False)
    assert facts("MistralForCausalLM", attention_bias=True) == (False, False, False, False)
    assert facts("Qwen2ForCausalLM") == (True, False, False, False)
    assert facts("Qwen3ForCausalLM") == (False, False, False, True)


def test_sliding_windows() -> None:
    def windows(name: str, **changes: Any) -> list[int | None]:
        config = parse(**arch(name), **changes)
        return [config.window_of(layer) for layer in range(4)]

    qwen = {"use_sliding_window": True, "sliding_window": 32}
    assert windows("LlamaForCausalLM", sliding_window=8) == [None] * 4
    assert windows("MistralForCausalLM", sliding_window=8) == [8] * 4
    assert windows("MistralForCausalLM", sliding_window=None) == [None] * 4
    assert windows("MistralForCausalLM") == [4096] * 4
    assert windows("Qwen2ForCausalLM", sliding_window=32, use_sliding_window=False) == [None] * 4
    assert windows("Qwen2ForCausalLM", **qwen, max_window_layers=3) == [None, None, None, 32]
    assert windows("Qwen3ForCausalLM", **qwen) == [None] * 4
    types = ["sliding_attention", "full_attention"] * 2
    assert windows("Qwen3ForCausalLM", **qwen, layer_types=types) == [32, None, 32, None]


@pytest.mark.parametrize("kind_key", ["type", "rope_type"])
def test_old_and_new_rotary_styles_agree(kind_key: str) -> None:
    old = parse(rope_theta=5e5, rope_scaling={kind_key: "llama3", **LLAMA3})
    new = parse(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    assert old == new
    assert new.rope_theta == 5e5
    assert new.rope_scaling == RopeScaling(rope_type="llama3", **LLAMA3)  # type: ignore[arg-type]


def test_rotary_defaults() -> None:
    assert parse(rope_scaling=None, rope_theta=1e6).rope_scaling is None
    assert parse(rope_parameters={"rope_type": "default", "rope_theta": 1e6}).rope_theta == 1e6
    assert parse(rope_scaling={"type": "linear", "factor": 2}).rope_scaling == RopeScaling(rope_type="linear", factor=2.0)
    assert parse(rope_scaling={"type": "dynamic", "factor": 2}).rope_scaling == RopeScaling(rope_type="dynamic", factor=2.0)
    yarn = parse(rope_scaling={"type": "yarn", "factor": 4, "attention_factor": 1.5}).rope_scaling
    assert yarn == RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=512, attention_factor=1.5)
    by_ratio = parse(rope_scaling={"type": "yarn", "original_max_position_embeddings": 128}).rope_scaling
    assert by_ratio is not None
    assert by_ratio.factor == 4.0


def test_tokens_and_sampling_defaults() -> None:
    generation = {"eos_token_id": [7, 8, 7], "temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True}
    config = parse(generation, eos_token_id=3)
    assert config.eos_token_ids == (7, 8)
    assert config.default_sampling == {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert parse(eos_token_id=3).eos_token_ids == (3,)
    assert parse().eos_token_ids == ()
    assert parse({"repetition_penalty": 1.1, "min_p": 0.0}).default_sampling == {"repetition_penalty": 1.1, "min_p": 0.0}


@pytest.mark.parametrize(("key", "value"), [("dtype", "float16"), ("torch_dtype", "float16"), ("torch_dtype", "torch.float16")])
def test_dtypes(key: str, value: str) -> None:
    changes: dict[str, Any] = {key: value}
    assert parse(**changes).dtype == "float16"
    assert parse().dtype == "bfloat16"


def test_remote_code_and_unknown_fields_are_ignored() -> None:
    assert parse(auto_map={"AutoModelForCausalLM": "evil.Evil"}, whatever=[1, {"a": 2}]) == parse()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported.*LlamaForCausalLM"),
    ({"architectures": ...}, "architectures"),
    ({"architectures": []}, "architectures"),
    ({"architectures": [3]}, "architectures"),
    *[({name: ...}, f"'{name}' is missing") for name in BASE if name not in ("architectures", "num_key_value_heads")],
    *[({name: 0}, f"'{name}' must be an integer") for name in BASE if name != "architectures"],
    *[({name: 1 << 40}, f"'{name}' must be an integer") for name in BASE if name != "architectures"],
    ({"vocab_size": True}, "vocab_size"),
    ({"vocab_size": "1000"}, "vocab_size"),
    ({"vocab_size": 10.5}, "vocab_size"),
    ({"vocab_size": 1e400}, "vocab_size"),
    ({"num_key_value_heads": 3}, "evenly"),
    ({"num_attention_heads": 7, "num_key_value_heads": 7}, "hidden_size"),
    ({"head_dim": 9}, "odd"),
    ({"head_dim": 100_000}, "head_dim"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
    ({"rope_theta": 0}, "rope_theta"),
    ({"rope_theta": float("inf")}, "rope_theta"),
    ({"rope_scaling": {"type": "longrope"}}, "'rope_scaling.rope_type' is 'longrope'.*yarn"),
    ({"rope_scaling": {"type": "linear"}}, "'rope_scaling.factor' is missing"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
    ({"rope_scaling": [1]}, "rope_scaling"),
    ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ({"rope_scaling": {"type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ({"dtype": 3}, "dtype"),
    ({"eos_token_id": -1}, "eos_token_id"),
    ({"eos_token_id": "</s>"}, "eos_token_id"),
    ({"eos_token_id": 1 << 40}, "eos_token_id"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ({**arch("MistralForCausalLM"), "sliding_window": 0}, "sliding_window"),
    ({**arch("Qwen2ForCausalLM"), "use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types"),
    ({**arch("Qwen2ForCausalLM"), "use_sliding_window": True, "layer_types": ["x"] * 4}, "layer_types"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_nonsense_is_refused_by_file_and_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(**changes)
    assert str(caught.value).startswith(str(HERE / "config.json"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("generation", [{"temperature": -1}, {"top_p": 2}, {"top_k": "all"}, {"repetition_penalty": 0}])
def test_bad_sampling_defaults_name_their_file(generation: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json.*" + next(iter(generation))):
        parse(generation)


def test_random_fields_never_raise_anything_else() -> None:
    random = np.random.default_rng(0)
    values = [None, 0, -1, 3, 1e9, 1 << 70, float("nan"), "x", [], [1], {}, {"type": "yarn"}, {"factor": "x"}, True]
    fields = [
        *BASE,
        "head_dim",
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "sliding_window",
        "layer_types",
        "eos_token_id",
    ]
    refused = 0
    for _ in range(2000):
        changes: dict[str, Any] = {str(random.choice(fields)): values[random.integers(len(values))] for _ in range(2)}
        try:
            parse(**changes)
        except ConfigError:
            refused += 1
    assert 1000 < refused < 2000
