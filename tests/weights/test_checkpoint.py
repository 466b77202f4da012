"""``open_checkpoint`` finds the format, the facts, the tokenizer and the template, or says in one line what is wrong."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo.backends.reference.backend import ReferenceBackend
from octavo.config import ConfigError
from octavo.models import Model, load_model
from octavo.weights.checkpoint import open_checkpoint
from tests.models.paged import PagedRunner
from tests.models.test_gguf_models import write as write_gguf
from tests.models.variants import build

F32 = gguf.GGMLQuantizationType.F32


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    model = build("smollm", directory / "hf")
    (directory / "hf" / "tokenizer.json").write_text("{}")
    write_gguf(model, directory / "model.gguf", arch="llama", kind=F32)
    return directory


@pytest.fixture
def hf(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved / "hf", tmp_path / "hf"))


def test_a_directory(hf: Path) -> None:
    checkpoint = open_checkpoint(hf)
    assert (checkpoint.kind, checkpoint.path, checkpoint.tokenizer_dir) == ("safetensors", hf, hf)
    assert (checkpoint.gguf_metadata, checkpoint.chat_template) == (None, None)
    assert checkpoint.config.tie_word_embeddings
    assert checkpoint.config.dtype == "float32"


def test_a_gguf_file_and_a_directory_with_one(saved: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(saved / "model.gguf")
    assert (checkpoint.kind, checkpoint.path) == ("gguf", saved / "model.gguf")
    assert checkpoint.tokenizer_dir is None
    assert checkpoint.gguf_metadata is None, "this file has no tokenizer in it"
    shutil.copy(saved / "model.gguf", tmp_path / "only.gguf")
    assert open_checkpoint(tmp_path).config == checkpoint.config
    shutil.copy(saved / "model.gguf", tmp_path / "another.gguf")
    with pytest.raises(ConfigError, match=r"2 \.gguf files.*another\.gguf"):
        open_checkpoint(tmp_path)


def test_dummy_needs_only_the_configuration(hf: Path) -> None:
    (hf / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no model"):
        open_checkpoint(hf)
    checkpoint = open_checkpoint(hf, load_format="dummy", seed=3)
    assert checkpoint.kind == "dummy"
    backend = ReferenceBackend()
    heard: list[float] = []
    model = load_model(checkpoint.config, checkpoint.source, backend, max_model_len=32, progress=heard.append)
    [logits] = PagedRunner(model, backend, checkpoint.config, max_len=32).step([(0, [1, 2, 3])])
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


def test_chat_templates(hf: Path) -> None:
    config = hf / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "plain"}))
    assert open_checkpoint(hf).chat_template == "plain"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert open_checkpoint(hf).chat_template == "named"
    config.write_text(json.dumps({"chat_template": 7}))
    assert open_checkpoint(hf).chat_template is None
    (hf / "chat_template.jinja").write_text("file")
    assert open_checkpoint(hf).chat_template == "file"
    (hf / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja"):
        open_checkpoint(hf)


def test_a_missing_tokenizer_shows(hf: Path) -> None:
    (hf / "tokenizer.json").unlink()
    assert open_checkpoint(hf).tokenizer_dir is None


def test_what_cannot_be_opened(hf: Path, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"must be a \.gguf file or a directory"):
        open_checkpoint(hf / "config.json")
    with pytest.raises(ConfigError, match="is a GGUF file"):
        open_checkpoint(saved / "model.gguf", load_format="safetensors")
    with pytest.raises(ConfigError, match=r"no \.gguf file"):
        open_checkpoint(hf, load_format="gguf")
    (hf / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: invalid JSON"):
        open_checkpoint(hf)
    (hf / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        open_checkpoint(hf)


def rewrite(directory: Path, changes: dict[str, np.ndarray]) -> None:
    """The checkpoint with some tensors more, or others."""
    path = directory / "model.safetensors"
    save_file({**load_file(path), **changes}, path)


def load(directory: Path) -> tuple[Model, PagedRunner]:
    checkpoint, backend = open_checkpoint(directory), ReferenceBackend()
    model = load_model(checkpoint.config, checkpoint.source, backend, max_model_len=32)
    return model, PagedRunner(model, backend, checkpoint.config, max_len=32)


def test_a_head_that_is_not_the_embedding_is_not_tied_to_it(hf: Path) -> None:
    embedding = load_file(hf / "model.safetensors")["model.embed_tokens.weight"]
    [expected] = load(hf)[1].step([(0, [1, 2, 3])])
    rewrite(hf, {"lm_head.weight": embedding})
    assert open_checkpoint(hf).config.tie_word_embeddings
    [same] = load(hf)[1].step([(0, [1, 2, 3])])
    np.testing.assert_array_equal(same, expected)
    rewrite(hf, {"lm_head.weight": -embedding})
    assert not open_checkpoint(hf).config.tie_word_embeddings
    [negated] = load(hf)[1].step([(0, [1, 2, 3])])
    np.testing.assert_allclose(negated, -expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["layers.1.self_attn.q_proj.bias", "layers.0.self_attn.q_norm.weight", "layers.2.self_attn.sinks", "extra_norm.weight"],
)
def test_a_tensor_that_has_no_place_in_the_model_is_refused(hf: Path, name: str) -> None:
    rewrite(hf, {f"model.{name}": np.ones(8, np.float32)})
    with pytest.raises(ConfigError, match=f"tensor 'model.{name}' has no place in this LlamaForCausalLM"):
        load(hf)


def test_tensors_that_say_nothing_new_are_left_out(hf: Path) -> None:
    one = np.ones(8, np.float32)
    rewrite(hf, {"model.layers.0.self_attn.rotary_emb.inv_freq": one, "model.layers.3.mtp.weight": one, "score.weight": one})
    load(hf)


def test_tensors_that_contradict_the_configuration(hf: Path) -> None:
    config = json.loads((hf / "config.json").read_text())
    for changes, message in (
        ({"intermediate_size": 96}, r"gate_proj\.weight' has shape"),
        ({"intermediate_size": 1 << 20, "hidden_size": 1 << 20, "head_dim": 8}, "has shape"),
        ({"num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 1024}, r"q_proj\.weight' has shape"),
        ({"num_hidden_layers": 4}, r"layers\.3\..* is missing"),
        ({"tie_word_embeddings": False}, r"lm_head\.weight' is missing"),
    ):
        (hf / "config.json").write_text(json.dumps({**config, **changes}))
        checkpoint = open_checkpoint(hf)
        with pytest.raises(ConfigError, match=message):
            load_model(checkpoint.config, checkpoint.source, ReferenceBackend(), max_model_len=16)
