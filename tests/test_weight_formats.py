"""Which weights are computed in integers, for every choice of flags and every kind of checkpoint; and that an engine built so
says so and answers."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo import LLM, SamplingParams, build, build_resolve
from octavo.config import ConfigError, EngineConfig
from octavo.layers.loader import WeightFormat
from tests.test_build import MODEL


@pytest.mark.parametrize(
    ("quantization", "dtype", "isa", "kind", "types", "expected"),
    [
        ("auto", "bfloat16", "avx2", "gguf", ("Q4_1",), "stored"),
        ("auto", "bfloat16", "amx", "gguf", ("Q4_1",), "plain"),
        ("auto", "float32", "avx2", "gguf", ("Q4_1",), "plain"),
        ("auto", "bfloat16", "avx2", "gguf", (), "plain"),
        ("auto", "bfloat16", "avx2", "safetensors", (), "plain"),
        ("auto", "bfloat16", "avx2", "dummy", (), "plain"),
        ("stored", "bfloat16", "amx", "gguf", ("Q4_1",), "stored"),
        ("stored", "float32", "avx2", "gguf", ("Q4_1",), "stored"),
        ("none", "bfloat16", "avx2", "gguf", ("Q4_1",), "plain"),
        ("int8", "bfloat16", "avx2", "safetensors", (), "int8"),
        ("int4", "float32", "amx", "gguf", ("Q4_1",), "int4"),
    ],
)
def test_the_format_follows_from_flags_checkpoint_and_machine(
    quantization: Any, dtype: str, isa: str, kind: str, types: tuple[str, ...], expected: str
) -> None:
    assert resolve(quantization, dtype=dtype, isa=isa, kind=kind, types=types) == expected


def test_only_a_gguf_file_has_integers_of_its_own() -> None:
    with pytest.raises(ConfigError, match="GGUF"):
        resolve("stored", kind="safetensors")


def resolve(
    quantization: Any, *, kind: str, dtype: str = "bfloat16", isa: str = "avx2", types: tuple[str, ...] = ()
) -> WeightFormat:
    config, model = EngineConfig(model="m", quantization=quantization), msgspec.structs.replace(MODEL, integer_types=types)
    return build_resolve.resolve_weight_format(config, kind, model, dtype=dtype, isa=isa)


def test_an_engine_says_its_format(smollm2_path: Path) -> None:
    model = str(smollm2_path)
    loaded = build.load(EngineConfig(model=model, isa="generic", max_model_len=64, max_num_seqs=2, num_gpu_blocks_override=8))
    loaded.engine.shutdown()
    assert (loaded.facts["weight_format"], loaded.facts["activation_bits"]) == ("stored", 16)


@pytest.mark.parametrize("quantization", ["none", "stored", "int8", "int4"])
def test_text_comes_out(quantization: Any) -> None:
    llm = LLM(model="smollm2", quantization=quantization, max_model_len=128)
    [output] = llm.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=8), use_tqdm=False)
    llm.shutdown()
    assert "Paris" in output.outputs[0].text
