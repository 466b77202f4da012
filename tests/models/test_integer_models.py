"""Models computed with integer weights: close to the same weights as plain numbers, the same on every backend, and no larger
in memory than in the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import pytest
import torch

from octavo.backends.base import Backend
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.build import make_backend
from octavo.config import ConfigError, EngineConfig
from octavo.layers.loader import Loader, WeightFormat
from octavo.models import load_model
from octavo.quant.integer import Bits, quantize, quantize_int4, quantize_int8
from octavo.quant.layouts import Dense, Int4Group, Int8Group, Integer, Layout, Piecewise, Stacked, Unrepresentable
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.source import DummySource
from tests.models.paged import PagedRunner
from tests.models.test_gguf_models import write
from tests.models.variants import SIZES, VARIANTS, randomize

PROMPT = [int(token) for token in np.random.default_rng(8).integers(300, 40_000, 48)]


def logits_of(path: Path, backend: Backend, weight_format: WeightFormat, prompt: list[int]) -> np.ndarray:
    checkpoint = open_checkpoint(path)
    model = load_model(checkpoint.config, checkpoint.source, backend, max_model_len=64, weight_format=weight_format)
    [logits] = PagedRunner(model, backend, checkpoint.config).step([(0, prompt)])
    return logits


class Recorder(CpuBackend):
    """Notes the layout and the size in memory of every weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layouts: list[Layout] = []
        self.num_bytes = 0

    def weight(self, layout: Layout, *, gated: bool = False, vocabulary: bool = False) -> Any:
        packed = super().weight(layout, gated=gated, vocabulary=vocabulary)
        self.layouts.append(layout)
        self.num_bytes += packed.num_bytes
        return packed


@pytest.fixture(scope="module")
def plain(smollm2_path: Path) -> np.ndarray:
    return logits_of(smollm2_path, CpuBackend(compute_dtype="float32"), "plain", PROMPT)


@pytest.mark.parametrize("weight_format", ["stored", "int8", "int4"])
def test_the_demo_model_in_integers_is_close_to_plain_numbers(
    smollm2_path: Path, plain: np.ndarray, weight_format: WeightFormat
) -> None:
    backend = Recorder()
    found = logits_of(smollm2_path, backend, weight_format, PROMPT)
    assert (
        np.sqrt(((found - plain) ** 2).mean()) < 0.15 * plain.std()
    )  # random tokens are hard; unrelated logits would be at 1.4
    expected = Int8Group if weight_format == "int8" else Int4Group
    assert {kind_of(layout) for layout in backend.layouts[1:]} == {expected}
    assert kind_of(backend.layouts[0]) is Int8Group
    if weight_format == "stored":
        assert backend.num_bytes < 1.01 * smollm2_path.stat().st_size


def test_activations_in_16_bits_give_the_logits_of_plain_numbers(smollm2_path: Path, plain: np.ndarray) -> None:
    """Of float32 they are hardly different, and what bfloat16 adds is less than half of what 8 bits add."""

    def error(dtype: str, weight_format: WeightFormat) -> float:
        found = logits_of(smollm2_path, CpuBackend(compute_dtype=dtype, activation_bits=16), weight_format, PROMPT)
        return float(np.sqrt(((found - plain) ** 2).mean()) / plain.std())

    assert error("float32", "stored") < 2e-3
    assert error("bfloat16", "stored") < 0.045


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_what_becomes_of_activations_is_the_configurations_choice(name: Any) -> None:
    weight, x = quantize_int8(np.eye(32, dtype=np.float32)), np.linspace(0.5, 1, 32, dtype=np.float32)[None]
    results = []
    bits: tuple[Literal[8, 16], ...] = (8, 16)
    for chosen in bits:
        backend = make_backend(EngineConfig(model="x", backend=name, activation_bits=chosen), "float32")
        results.append(np.array(backend.ops.linear(x, backend.weight(weight))))
    exact = x @ weight.dequantize().T
    np.testing.assert_allclose(results[1], exact, rtol=4e-5)
    assert np.abs(results[0] - exact).max() > 1e-4


NEAR = [("common", 0.02), ("zen4", 0.04)]
"""How near a native backend is to the reference: a value at the edge of two steps may go either way, and more of them do where
scales of pairs of groups are rounded."""


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("variant", ["llama2", "qwen2"])
def test_a_file_of_each_type_gives_the_same_logits_on_every_backend(kind: str, variant: str, tmp_path: Path) -> None:
    arch = "llama" if variant == "llama2" else "qwen2"
    write(wide(variant), tmp_path / "m.gguf", arch=arch, kind=gguf.GGMLQuantizationType[kind])
    prompt = [token % 128 for token in PROMPT[:20]]
    stored = logits_of(tmp_path / "m.gguf", ReferenceBackend(), "stored", prompt)
    dense = logits_of(tmp_path / "m.gguf", ReferenceBackend(), "plain", prompt)
    lost = np.sqrt(((stored - dense) ** 2).mean())
    assert lost < 0.12 * dense.std()
    for tuning, most in NEAR:
        native = logits_of(tmp_path / "m.gguf", CpuBackend(compute_dtype="float32", tuning=tuning), "stored", prompt)
        assert np.sqrt(((native - stored) ** 2).mean()) < most * dense.std()
        assert np.sqrt(((native - dense) ** 2).mean()) < 1.2 * lost


@pytest.mark.parametrize("bits", [8, 16])
def test_a_file_of_several_types_keeps_them_all(bits: int, tmp_path: Path) -> None:
    types = gguf.GGMLQuantizationType
    write(
        wide("qwen2"), tmp_path / "m.gguf", arch="qwen2", kind=types.Q4_1, kinds={"v_proj": types.Q8_0, "down_proj": types.Q5_0}
    )
    prompt = [token % 128 for token in PROMPT[:20]]
    stored = logits_of(tmp_path / "m.gguf", ReferenceBackend(activation_bits=bits), "stored", prompt)
    for tuning, most in NEAR:
        native = CpuBackend(compute_dtype="float32", activation_bits=bits, tuning=tuning)
        found = logits_of(tmp_path / "m.gguf", native, "stored", prompt)
        assert np.sqrt(((found - stored) ** 2).mean()) < most * stored.std()


def wide(variant: str) -> Any:
    """A tiny model whose matrices are groups of 32 inputs."""
    model_class, config_class, changes = VARIANTS[variant]
    torch.manual_seed(17)
    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, **changes, "num_key_value_heads": 2}
    model = model_class(config_class(**sizes)).eval()
    randomize(model)
    return model


class Mixed(DummySource):
    """Some of its tensors are stored in integers."""

    def __init__(self, stored: dict[str, Callable[[np.ndarray], Integer]]) -> None:
        super().__init__()
        self._stored = stored

    def integer(self, name: str, *, shape: tuple[int, int]) -> Piecewise | None:
        make = self._stored.get(name)
        return Piecewise.of(make(self.dense(name, shape=shape, dtype="float32").array)) if make else None


def layout_of(source: DummySource, weight_format: WeightFormat, *, columns: int = 64, vocabulary: bool = False) -> Layout:
    backend = Recorder()
    Loader(source, backend, weight_format).matrix(["q", "k"], rows=[8, 4], columns=columns, vocabulary=vocabulary)
    return backend.layouts[0]


def kind_of(layout: Layout) -> type[Layout]:
    return layout.kind if isinstance(layout, Piecewise) else type(layout)


def test_matrices_that_are_fused_share_a_layout_or_keep_their_own() -> None:
    exact = layout_of(DummySource(), "plain").dequantize()
    cases: list[tuple[dict[str, Callable[[np.ndarray], Integer]], type[Layout]]] = [
        ({"q": quantize_int4, "k": quantize_int4}, Int4Group),
        ({"q": quantize_int8, "k": quantize_int8}, Int8Group),
        ({"q": quantize_int4, "k": quantize_int8}, Stacked),
        ({"q": quantize_int4}, Dense),
        ({}, Dense),
    ]
    for stored, expected in cases:
        layout = layout_of(Mixed(stored), "stored")
        assert kind_of(layout) is expected
        assert isinstance(layout_of(Mixed(stored), "plain"), Dense)
        np.testing.assert_allclose(layout.dequantize(), exact, atol=0.05)


def test_quantizing_when_loading() -> None:
    assert kind_of(layout_of(DummySource(), "int8")) is Int8Group
    assert kind_of(layout_of(DummySource(), "int4")) is Int4Group
    assert kind_of(layout_of(DummySource(), "int4", vocabulary=True)) is Int8Group
    kept = layout_of(Mixed({"q": quantize_int4, "k": quantize_int4}), "int4")
    again = layout_of(Mixed({"q": quantize_int4, "k": quantize_int4}), "stored")
    np.testing.assert_array_equal(kept.dequantize(), again.dequantize())
    with pytest.raises(ConfigError, match=r"'q' has 48 inputs, not a multiple of 32.*--quantization none"):
        layout_of(DummySource(), "int8", columns=48)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("weight_format", "bits"), [("stored", None), ("int8", 8), ("int4", 4)])
def test_integers_that_turn_out_unrepresentable_are_made_of_plain_numbers(
    weight_format: WeightFormat, bits: Bits | None, gated: bool
) -> None:
    class Unlucky(Mixed):
        def integer(self, name: str, *, shape: tuple[int, int]) -> Piecewise | None:
            def read(first: int, end: int) -> Integer:
                raise Unrepresentable("a scale is beyond float16")

            found = super().integer(name, shape=shape)
            return found and Piecewise(found.kind, found.columns, ((shape[0], read),))

    backend, source = CpuBackend(), Unlucky({"q": quantize_int4, "k": quantize_int8})
    weight = Loader(source, backend, weight_format).matrix(["q", "k"], rows=[64, 64], columns=64, gated=gated)
    plain = np.concatenate([source.dense(name, shape=(64, 64), dtype="bfloat16").array for name in "qk"])
    expected = backend.weight(Dense(plain) if bits is None else quantize(plain, bits), gated=gated)
    assert type(weight) is type(expected)
    x = np.ones((2, 64), np.float32).astype(plain.dtype)
    op = backend.ops.gated_linear if gated else backend.ops.linear
    np.testing.assert_array_equal(np.array(op(x, weight)), np.array(op(x, expected)))


def test_the_loader_quantizes_with_what_it_is_given() -> None:
    asked: list[int] = []

    def spy(matrix: np.ndarray, bits: Bits) -> Integer:
        asked.append(bits)
        return quantize(matrix, bits)

    loader = Loader(DummySource(), CpuBackend(), "int4", spy)
    loader.matrix(["q", "k"], rows=[8, 4], columns=64)
    loader.matrix(["v"], rows=[8], columns=64, vocabulary=True)
    mixed = Mixed({"q": quantize_int4, "k": quantize_int8})
    Loader(mixed, CpuBackend(), "stored", spy).matrix(["q", "k"], rows=[8, 4], columns=64, gated=True)
    assert asked == [4, 4, 8, 8]


def test_a_weight_that_cannot_be_quantized_is_named() -> None:
    class Broken(DummySource):
        def read(self, name: str, out: np.ndarray) -> None:
            super().read(name, out)
            out[0] = np.inf

    with pytest.raises(ConfigError, match=r"'q' cannot be quantized .a weight is infinite.*--quantization none"):
        layout_of(Broken(), "int4")
