"""Reads safetensors files, single or sharded, as views over mapped memory.

Owns the format's rules: every length, offset and shape is checked against the size of the file before anything is
allocated, and the tensors must cover the data exactly once. Knows nothing of models. A file that breaks a rule raises a
``ConfigError`` that names it; nothing else is ever raised. Format: an eight-byte little-endian header length, a JSON
header, the data (https://github.com/huggingface/safetensors).
"""

import contextlib
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from octavo.config import ConfigError
from octavo.weights.json_file import parse_json_object, read_json
from octavo.weights.mapped import map_file, view

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_MAX_HEADER = 100_000_000
_MAX_INDEX = 100_000_000
_MAX_DIMS = 8

_DTYPES: dict[str, Any] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
"""The dtypes that weights may have; tensors of others are carried along and refused when asked for."""

_ITEM_SIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a header. ``begin`` and ``end`` count bytes from the start of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """One mapped file. ``entries`` maps names to what the header says of them, all of it checked; ``metadata`` is as the
    file has it, if it does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        header, self._data_start = _read_header(path, self._map)
        self.metadata = header.get("__metadata__")
        self.entries = {entry.name: entry for entry in _parse_entries(path, header)}
        _check_coverage(path, self.entries.values(), len(self._map) - self._data_start)

    def tensor(self, name: str) -> np.ndarray:
        """A read-only view with the tensor's own dtype (float32, float16 or bfloat16) and shape.

        Raises ``ConfigError`` for a tensor of another dtype; ``KeyError`` for an unknown name.
        """
        entry = self.entries[name]
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise ConfigError(f"{self.path}: tensor {name!r} has dtype {entry.dtype}; weights must be F32, F16 or BF16")
        return self.content(name, dtype).reshape(entry.shape)

    def content(self, name: str, dtype: np.dtype) -> np.ndarray:
        """A read-only view of a tensor, flat, as items of ``dtype``, which are of its own's size; ``KeyError`` for an unknown
        name."""
        entry = self.entries[name]
        count = (entry.end - entry.begin) // dtype.itemsize
        return view(self._map, offset=self._data_start + entry.begin, count=count, dtype=dtype)

    def on_huge_pages(self) -> None:
        """Asks the system to keep the file on huge pages where it has to read it."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a refusal costs speed only
                self._map.madvise(mmap.MADV_HUGEPAGE)

    @property
    def num_bytes(self) -> int:
        return len(self._map)


class SafetensorsCheckpoint:
    """All tensors of a directory: of ``model.safetensors.index.json``'s shards, or of its only ``.safetensors`` file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._home = _locate(directory)

    def __contains__(self, name: object) -> bool:
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def entry(self, name: str) -> TensorEntry:
        return self._home[name].entries[name]

    def tensor(self, name: str) -> np.ndarray:
        """As ``SafetensorsFile.tensor``, but an unknown name is a ``ConfigError`` too."""
        if name not in self._home:
            raise ConfigError(f"{self.directory}: tensor {name!r} is missing from the checkpoint")
        return self._home[name].tensor(name)


def _locate(directory: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> the file that holds it."""
    if (directory / INDEX_NAME).is_file():
        return _open_shards(directory, _read_index(directory / INDEX_NAME))
    single = directory / SINGLE_NAME
    if not single.is_file():
        found = sorted(directory.glob("*.safetensors"))
        if not found:
            raise ConfigError(f"{directory}: no {SINGLE_NAME}, {INDEX_NAME} or .gguf file; give the directory of a checkpoint")
        if len(found) > 1:
            raise ConfigError(f"{directory}: {len(found)} .safetensors files but no {INDEX_NAME} that says what they hold")
        single = found[0]
    file = SafetensorsFile(single)
    return dict.fromkeys(file.entries, file)


def _open_shards(directory: Path, weight_map: dict[str, str]) -> dict[str, SafetensorsFile]:
    files: dict[str, SafetensorsFile] = {}
    for shard in sorted(set(weight_map.values())):
        if not (directory / shard).is_file():
            raise ConfigError(f"{directory / shard}: the shard named in {INDEX_NAME} is missing; download it again")
        files[shard] = SafetensorsFile(directory / shard)
    for name, shard in weight_map.items():
        if name not in files[shard].entries:
            raise ConfigError(f"{directory / shard}: tensor {name!r} is missing although {INDEX_NAME} places it there")
    return {name: files[shard] for name, shard in weight_map.items()}


def _read_index(path: Path) -> dict[str, str]:
    """The weight map: tensor name -> file name. Names with a path in them are refused."""
    index = read_json(path, max_bytes=_MAX_INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{path}: field 'weight_map' must be a non-empty object")
    for shard in set(map(str, weight_map.values())):
        plain = shard not in ("", ".", "..") and not any(character in shard for character in "/\\\0:")
        if not plain or not shard.endswith(".safetensors"):
            raise ConfigError(f"{path}: shard name {shard[:80]!r} must be a plain .safetensors file name")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ConfigError(f"{path}: field 'weight_map' must map names to file names")
    return weight_map


def _read_header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The parsed header and where the data section begins."""
    size = len(data)
    if size < 8:
        raise ConfigError(f"{path}: {size} bytes are too few for a safetensors file; download it again")
    length = int.from_bytes(data[:8], "little")
    if length > _MAX_HEADER:
        raise ConfigError(f"{path}: header of {length} bytes is over the format's limit; not a safetensors file")
    if length > size - 8:
        raise ConfigError(f"{path}: truncated, the header needs {length} bytes and {size - 8} are there; download it again")
    return parse_json_object(data[8 : 8 + length], path), 8 + length


def _parse_entries(path: Path, header: dict[str, Any]) -> Iterator[TensorEntry]:
    for name, value in header.items():
        if name != "__metadata__":
            yield _parse_entry(path, name, value)


def _parse_entry(path: Path, name: str, value: Any) -> TensorEntry:
    if not isinstance(value, dict):
        raise _bad_entry(path, name, "must be an object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str):
        raise _bad_entry(path, name, "field 'dtype' must be a string")
    if not _are_counts(shape) or len(shape) > _MAX_DIMS:
        raise _bad_entry(path, name, f"field 'shape' must be at most {_MAX_DIMS} sizes")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad_entry(path, name, "field 'data_offsets' must be [begin, end] with 0 <= begin <= end")
    entry = TensorEntry(name, dtype, tuple(shape), offsets[0], offsets[1])
    item_size = _ITEM_SIZES.get(dtype)
    if item_size is not None and math.prod(entry.shape) * item_size != entry.end - entry.begin:
        raise _bad_entry(path, name, f"{list(entry.shape)} of {dtype} does not fill its {entry.end - entry.begin} bytes")
    return entry


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    """A list of integers in [0, 2^63); booleans are not integers here."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _bad_entry(path: Path, name: str, reason: str) -> ConfigError:
    return ConfigError(f"{path}: tensor {name[:120]!r}: {reason}; the file is damaged")


def _check_coverage(path: Path, entries: Any, data_size: int) -> None:
    """The tensors lie one after another, without overlap or hole, and end where the file does."""
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != position:
            what = "overlaps another one" if entry.begin < position else "leaves a hole before it"
            raise _bad_entry(path, entry.name, what)
        position = entry.end
    if position > data_size:
        raise ConfigError(f"{path}: truncated, the tensors need {position} bytes and {data_size} are there; download it again")
    if position < data_size:
        raise ConfigError(f"{path}: {data_size - position} bytes belong to no tensor; the file is damaged")
