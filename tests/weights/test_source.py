"""Sources give the asked dtype and shape, without copies where they can; dummy weights are the same every time."""

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from octavo.config import ConfigError
from octavo.quant.gguf import IN_NUMPY
from octavo.weights.gguf_file import GgufFile
from octavo.weights.safetensors import SafetensorsCheckpoint
from octavo.weights.source import DTYPES, DummySource, GgufSource, SafetensorsSource, WeightSource

VALUES = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
BF16 = ml_dtypes.bfloat16
STORED: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": BF16}
Q_NAME = "model.layers.0.self_attn.q_proj.weight"


def safetensors_source(directory: Path, dtype: str) -> SafetensorsSource:
    tensors = {"matrix": VALUES.astype(STORED[dtype]), "vector": VALUES[0].astype(STORED[dtype])}
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    return SafetensorsSource(SafetensorsCheckpoint(directory))


def gguf_source(directory: Path, kind: str, heads: dict[str, int] | None = None) -> GgufSource:
    number = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(directory / "m.gguf", "llama")
    writer.add_tensor("output.weight", gguf.quantize(VALUES, number), raw_dtype=number)
    writer.add_tensor("blk.0.attn_q.weight", gguf.quantize(VALUES, number), raw_dtype=number)
    writer.add_tensor("output_norm.weight", VALUES[0])
    writer.add_tensor("unrelated.weight", VALUES[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufSource(GgufFile(directory / "m.gguf"), interleaved_heads=heads or {}, unpack=IN_NUMPY)


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", list(STORED))
def test_safetensors_dtypes(tmp_path: Path, stored: str, asked: str) -> None:
    source = safetensors_source(tmp_path, stored)
    expected = VALUES.astype(STORED[stored]).astype(DTYPES[asked])
    dense = source.dense("matrix", shape=(8, 32), dtype=asked).array
    assert dense.dtype == DTYPES[asked]
    assert dense.tobytes() == expected.tobytes()
    assert dense.flags.writeable == (stored != asked)
    out = np.empty((8, 32), DTYPES[asked])
    source.read("matrix", out)
    assert out.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(source.vector("vector", size=32), VALUES[0].astype(STORED[stored]).astype(np.float32))


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_gguf_dtypes(tmp_path: Path, kind: str, asked: str) -> None:
    source = gguf_source(tmp_path, kind)
    number = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(VALUES, number), number).astype(DTYPES[asked])
    dense = source.dense("lm_head.weight", shape=(8, 32), dtype=asked).array
    assert dense.dtype == DTYPES[asked]
    assert dense.tobytes() == expected.tobytes()
    zero_copy = (kind, asked) in (("F32", "float32"), ("BF16", "bfloat16"))
    assert dense.flags.writeable != zero_copy
    np.testing.assert_array_equal(source.vector("model.norm.weight", size=32), VALUES[0])


@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_heads_that_were_interleaved_are_put_back(tmp_path: Path, kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    written = gguf.dequantize(gguf.quantize(VALUES, number), number)
    found = gguf_source(tmp_path, kind, {"q_proj": 2}).dense(Q_NAME, shape=(8, 32), dtype="float32").array
    np.testing.assert_array_equal(found, written[[0, 2, 1, 3, 4, 6, 5, 7]])
    (tmp_path / "plain").mkdir()
    plain = gguf_source(tmp_path / "plain", kind).dense(Q_NAME, shape=(8, 32), dtype="float32").array
    np.testing.assert_array_equal(plain, written)
    (tmp_path / "odd").mkdir()
    with pytest.raises(ConfigError, match="not 3 heads"):
        gguf_source(tmp_path / "odd", kind, {"q_proj": 3}).dense(Q_NAME, shape=(8, 32), dtype="float32")


@pytest.mark.parametrize("make", [lambda path: safetensors_source(path, "float32"), lambda path: gguf_source(path, "F32")])
def test_missing_names_and_other_shapes_are_refused(tmp_path: Path, make: Any) -> None:
    source: WeightSource = make(tmp_path)
    name = "matrix" if source.has("matrix") else "lm_head.weight"
    with pytest.raises(ConfigError, match="'nothing' is missing"):
        source.dense("nothing", shape=(8, 32), dtype="float32")
    with pytest.raises(ConfigError, match="'nothing' is missing"):
        source.vector("nothing", size=32)
    with pytest.raises(ConfigError, match=r"shape \[8, 32\]; the configuration asks for \[32, 8\]"):
        source.dense(name, shape=(32, 8), dtype="float32")
    with pytest.raises(ConfigError, match="shape"):
        source.read(name, np.empty((8, 31), np.float32))
    with pytest.raises(ConfigError, match="shape"):
        source.vector(name, size=256)
    assert not source.has("nothing")
    assert not source.has("unrelated.weight")


def test_dummy_weights_depend_on_seed_name_and_shape_alone() -> None:
    def weights(seed: int, name: str, shape: tuple[int, int]) -> bytes:
        return DummySource(seed=seed).dense(name, shape=shape, dtype="float32").array.tobytes()

    first = weights(0, "a.weight", (8, 6))
    assert first == weights(0, "a.weight", (8, 6))
    assert len({first, weights(1, "a.weight", (8, 6)), weights(0, "b.weight", (8, 6)), weights(0, "a.weight", (6, 8))}) == 4
    big = DummySource().dense("a.weight", shape=(2048, 1024), dtype="float32").array
    assert abs(float(big.std()) * 32 - 1) < 0.01
    assert abs(float(big.mean())) < 1e-3
    assert len(np.unique(big, axis=0)) == len(big)
    longer = DummySource().dense("a.weight", shape=(1100, 1024), dtype="bfloat16").array
    assert len(np.unique(longer.astype(np.float32), axis=0)) == len(longer)
    rounded = DummySource().dense("a.weight", shape=(64, 32), dtype="bfloat16").array
    exact = DummySource().dense("a.weight", shape=(64, 32), dtype="float32").array
    assert rounded.tobytes() == exact.astype(BF16).tobytes()
    np.testing.assert_array_equal(DummySource().vector("x.norm.weight", size=4), np.ones(4))
    bias = DummySource().vector("x.bias", size=1000)
    assert 0 < float(np.abs(bias).max()) <= 0.02
