"""``open_checkpoint``: a path -> the model's facts, its weights, and where its tokenizer and chat template are.

Owns the recognition of formats. Opens files and checks them; reads no tensor, unless a head may be the embedding once more. A
missing tokenizer is not an error here: both of its places are None then.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from octavo.config import ConfigError, ModelConfig
from octavo.quant.gguf import IN_NUMPY, Unpack
from octavo.weights.gguf_config import is_gguf, parse_gguf_config
from octavo.weights.gguf_file import GgufFile
from octavo.weights.hf_config import StoredDtype, parse_hf_config
from octavo.weights.json_file import read_json
from octavo.weights.safetensors import SafetensorsCheckpoint
from octavo.weights.source import DummySource, GgufSource, SafetensorsSource, WeightSource

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]

_MAX_TEMPLATE = 1_000_000
_STORED: dict[str, StoredDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model."""

    path: Path
    """The .gguf file or the directory."""
    kind: Literal["safetensors", "gguf", "dummy"]
    """Where the weights come from."""
    config: ModelConfig
    source: WeightSource
    tokenizer_dir: Path | None
    """A directory with tokenizer.json."""
    gguf_metadata: Mapping[str, Any] | None
    """The metadata of the GGUF file, if it has a tokenizer in it (``tokenizer.ggml.tokens``)."""
    chat_template: str | None
    """The text of the model's own Jinja template."""
    stamps: list[list[str | int]]
    """``stamps_of`` its path, from before anything of it was read."""


def stamps_of(path: Path) -> list[list[str | int]]:
    """What tells one state of a model's files from another: of each its name, size and times."""
    stamps: list[list[str | int]] = []
    for file in [path] if path.is_file() else sorted([*path.glob("*.safetensors"), *path.glob("*.json")]):
        with contextlib.suppress(OSError):  # a link to nothing
            stat = file.stat()
            # Times of content may have been set by whoever made an image; that of the file's last change cannot be.
            stamps.append([file.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])
    return stamps


def open_checkpoint(path: Path, *, load_format: LoadFormat = "auto", seed: int = 0, unpack: Unpack = IN_NUMPY) -> Checkpoint:
    """Open a directory in Hugging Face layout or a GGUF file. ``seed`` is of dummy weights; ``unpack`` is for GGUF blocks.

    Raises ``ConfigError``, one line, for anything that is missing, damaged or not supported.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such file or directory")
    gguf = _gguf_in(path, load_format)
    if gguf is not None:
        return _open_gguf(gguf, dummy=load_format == "dummy", seed=seed, unpack=unpack)
    if not path.is_dir():
        raise ConfigError(f"{path}: must be a .gguf file or a directory with config.json and .safetensors files")
    return _open_directory(path, dummy=load_format == "dummy", seed=seed)


def _gguf_in(path: Path, load_format: LoadFormat) -> Path | None:
    """The GGUF file that the path means; None if it means a Hugging Face directory."""
    if path.is_file() and (is_gguf(path) or load_format == "gguf"):
        if load_format == "safetensors":
            raise ConfigError(f"{path}: is a GGUF file, not safetensors; leave out --load-format")
        return path
    if not path.is_dir() or load_format == "safetensors" or ((path / "config.json").exists() and load_format != "gguf"):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise ConfigError(f"{path}: holds {len(found)} .gguf files; give the one to load, such as {found[0]}")
    if not found and load_format == "gguf":
        raise ConfigError(f"{path}: holds no .gguf file")
    return found[0] if found else None


def _open_gguf(path: Path, *, dummy: bool, seed: int, unpack: Unpack) -> Checkpoint:
    stamps = stamps_of(path)
    file = GgufFile(path)
    config = parse_gguf_config(file)
    if dummy:
        config = msgspec.structs.replace(config, integer_types=())
    interleaved = file.metadata["general.architecture"] == "llama"
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if interleaved else {}
    template = file.metadata.get("tokenizer.chat_template")
    return Checkpoint(
        path=path,
        kind="dummy" if dummy else "gguf",
        config=config,
        source=DummySource(seed=seed) if dummy else GgufSource(file, interleaved_heads=heads, unpack=unpack),
        tokenizer_dir=None,
        gguf_metadata=file.metadata if "tokenizer.ggml.tokens" in file.metadata else None,
        chat_template=template if isinstance(template, str) else None,
        stamps=stamps,
    )


def _open_directory(path: Path, *, dummy: bool, seed: int) -> Checkpoint:
    stamps = stamps_of(path)
    config = _json_in(path, "config.json")
    if config is None:
        raise ConfigError(f"{path}: no config.json; give the directory of a checkpoint or a .gguf file")
    generation = _json_in(path, "generation_config.json")
    weights = None if dummy else SafetensorsCheckpoint(path)
    stored = "bfloat16" if weights is None else _stored_dtype(weights)
    model = parse_hf_config(config, generation, directory=path, stored_dtype=stored)
    if model.tie_word_embeddings and weights is not None and _has_own_head(weights):
        model = msgspec.structs.replace(model, tie_word_embeddings=False)
    return Checkpoint(
        path=path,
        kind="safetensors" if weights else "dummy",
        config=model,
        source=SafetensorsSource(weights) if weights else DummySource(seed=seed),
        tokenizer_dir=path if (path / "tokenizer.json").is_file() else None,
        gguf_metadata=None,
        chat_template=_chat_template(path),
        stamps=stamps,
    )


def _stored_dtype(weights: SafetensorsCheckpoint) -> StoredDtype:
    """The dtype of the first tensor that has one of ours."""
    for name in weights:
        if (stored := _STORED.get(weights.entry(name).dtype)) is not None:
            return stored
    return "bfloat16"


def _has_own_head(weights: SafetensorsCheckpoint) -> bool:
    """Whether there is a head that differs from the embedding: then the two are not tied, whatever the configuration says."""
    if "lm_head.weight" not in weights or "model.embed_tokens.weight" not in weights:
        return False
    head, embedding = weights.tensor("lm_head.weight"), weights.tensor("model.embed_tokens.weight")
    if (head.shape, head.dtype) != (embedding.shape, embedding.dtype):
        return True
    some = 4096  # rows at a time
    return any(head[i : i + some].tobytes() != embedding[i : i + some].tobytes() for i in range(0, len(head), some))


def _json_in(directory: Path, name: str) -> dict[str, Any] | None:
    return read_json(directory / name) if (directory / name).exists() else None


def _chat_template(directory: Path) -> str | None:
    """chat_template.jinja, else the field of tokenizer_config.json: a template, or a list of named ones with a default."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    template = (_json_in(directory, "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_TEMPLATE + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text ({type(error).__name__})") from None
    if len(data) > _MAX_TEMPLATE:
        raise ConfigError(f"{path}: larger than {_MAX_TEMPLATE} bytes; this is not a chat template")
    return text
