"""Which weights are computed in integers, for every choice of flags and every kind of checkpoint; and that an engine built so
says so and answers."""

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams, build
from octavo.config import ConfigError, EngineConfig


@pytest.mark.parametrize(
    ("quantization", "dtype", "kind", "expected"),
    [
        ("stored", "auto", "gguf", "stored"),
        ("none", "auto", "gguf", "plain"),
        ("none", "float32", "safetensors", "plain"),
        ("int8", "auto", "safetensors", "int8"),
        ("int4", "float32", "gguf", "int4"),
    ],
)
def test_the_format_follows_from_flags_and_checkpoint(quantization: str, dtype: str, kind: str, expected: str) -> None:
    config = EngineConfig(model="m", quantization=quantization, dtype=dtype)  # type: ignore[arg-type]
    assert build.resolve_weight_format(config, kind) == expected


def test_only_a_gguf_file_has_integers_of_its_own() -> None:
    with pytest.raises(ConfigError, match="GGUF"):
        build.resolve_weight_format(EngineConfig(model="m", quantization="stored"), "safetensors")


def test_an_engine_says_its_format(smollm2_path: Path) -> None:
    model = str(smollm2_path)
    loaded = build.load(
        EngineConfig(model=model, quantization="stored", max_model_len=64, max_num_seqs=2, num_gpu_blocks_override=8)
    )
    loaded.engine.shutdown()
    assert loaded.facts["weight_format"] == "stored"


@pytest.mark.parametrize("quantization", ["stored", "int8", "int4"])
def test_text_comes_out(quantization: str) -> None:
    llm = LLM(model="smollm2", quantization=quantization, max_model_len=128)
    [output] = llm.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=8), use_tqdm=False)
    llm.shutdown()
    assert "Paris" in output.outputs[0].text
