"""Reads GGUF files (versions 2 and 3, little-endian): metadata as a dict, tensors as views over mapped memory.

Owns the format's rules: every count, length and offset is checked against the size of the file before anything is
allocated. Knows nothing of models. Large arrays stay in the map until somebody reads them, so opening a file takes
milliseconds. A file that breaks a rule raises a ``ConfigError`` that names it; nothing else is ever raised.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import mmap
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from octavo.config import ConfigError
from octavo.quant.gguf import FORMATS, OTHER_TYPES, GgmlType
from octavo.weights.mapped import map_file, view

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_KINDS = frozenset(GgmlType)
_MAX_KEY = 65_535
_MAX_NAME = 1_024
_MAX_DIMS = 4
_MAX_NESTING = 4
_MIN_ALIGNMENT, _MAX_ALIGNMENT = 8, 1 << 16
_MIN_PAIR = 8 + 4 + 1
_MIN_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: ``shape`` in numpy's order (rows first), ``data`` its bytes, uint8, read-only."""

    name: str
    kind: GgmlType
    shape: tuple[int, ...]
    data: np.ndarray


class StringArray(Sequence[str]):
    """An array of strings, each decoded when it is asked for, all of them once when they are. ``begins`` are the bytes at which
    they begin, with their lengths. Raises ``ConfigError`` for what is not UTF-8."""

    def __init__(self, path: Path, data: mmap.mmap, begins: "array[int]") -> None:
        self._path = path
        self._map = data
        self._begins = begins
        self._values: list[str] | None = None

    def __len__(self) -> int:
        return len(self._begins)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if self._values is None and isinstance(index, int):
            return self._decoded([self._begins[index]], first=index)[0]
        return self._all()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def _all(self) -> list[str]:
        if self._values is None:
            self._values = self._decoded(self._begins, first=0)
        return self._values

    def _decoded(self, begins: Iterable[int], *, first: int) -> list[str]:
        data, read, values = self._map, _U64.unpack_from, []
        try:
            for begin in begins:
                values.append(data[begin + 8 : begin + 8 + read(data, begin)[0]].decode())
        except UnicodeDecodeError:
            number = first + len(values)
            raise ConfigError(f"{self._path}: string {number} of an array is not UTF-8; the file is damaged") from None
        return values


class GgufFile:
    """One mapped file. ``metadata`` maps keys to numbers, strings, arrays (numpy, or ``StringArray``) or lists of arrays;
    ``tensors`` maps names to ``GgufTensor``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        cursor = _Cursor(path, map_file(path))
        num_tensors, num_pairs = _read_counts(cursor)
        self.metadata = _read_metadata(cursor, num_pairs)
        alignment = _alignment(path, self.metadata)
        self.tensors = _read_tensors(cursor, num_tensors, alignment)


class _Cursor:
    """A position in the map that refuses to pass its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0

    def need(self, count: int, what: str) -> int:
        """Step over ``count`` bytes; returns where they begin."""
        begin = self.position
        if count > self.size - begin:
            raise ConfigError(f"{self.path}: truncated in {what} at byte {begin} of {self.size}; download it again")
        self.position = begin + count
        return begin

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.need(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.need(8, what))[0]
        return value

    def string(self, what: str, *, limit: int | None = None) -> str:
        length = self.u64(what)
        if limit is not None and length > limit:
            raise self.damaged(f"{what} of {length} bytes is longer than {limit}")
        begin = self.need(length, what)
        try:
            return self.data[begin : self.position].decode()
        except UnicodeDecodeError:
            raise self.damaged(f"{what} at byte {begin} is not UTF-8") from None

    def damaged(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.path}: {reason}; the file is damaged")


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """The numbers of tensors and of metadata pairs, both possible for the size of the file."""
    begin = cursor.need(4, "the magic number")
    if cursor.data[begin : begin + 4] != b"GGUF":
        raise ConfigError(f"{cursor.path}: not a GGUF file (it does not begin with 'GGUF')")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise ConfigError(f"{cursor.path}: a big-endian GGUF file; convert it to little-endian")
    if version not in (2, 3):
        raise ConfigError(f"{cursor.path}: GGUF version {version} is not supported; versions 2 and 3 are")
    num_tensors, num_pairs = cursor.u64("the header"), cursor.u64("the header")
    rest = cursor.size - cursor.position
    if num_pairs * _MIN_PAIR > rest or num_tensors * _MIN_TENSOR > rest:
        raise cursor.damaged(f"{num_tensors} tensors and {num_pairs} metadata pairs do not fit in {cursor.size} bytes")
    return num_tensors, num_pairs


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string("a metadata key", limit=_MAX_KEY)
        if key in metadata:
            raise cursor.damaged(f"metadata key {key[:120]!r} appears twice")
        metadata[key] = _read_value(cursor, cursor.u32("a metadata type"), f"metadata {key[:120]!r}", depth=0)
    return metadata


def _read_value(cursor: _Cursor, kind: int, what: str, *, depth: int) -> Any:
    if kind == _STRING:
        return cursor.string(what)
    if kind == _ARRAY:
        return _read_array(cursor, what, depth=depth + 1)
    dtype = np.dtype(_scalar_dtype(cursor, kind, what))
    begin = cursor.need(dtype.itemsize, what)
    value = np.frombuffer(cursor.data[begin : cursor.position], dtype)[0].item()
    return bool(value) if kind == _BOOL else value


def _read_array(cursor: _Cursor, what: str, *, depth: int) -> Any:
    if depth > _MAX_NESTING:
        raise cursor.damaged(f"{what} nests arrays deeper than {_MAX_NESTING}")
    kind, count = cursor.u32(what), cursor.u64(what)
    if kind == _STRING:
        return _skip_strings(cursor, count, what)
    if kind == _ARRAY:
        if count * 12 > cursor.size - cursor.position:
            raise cursor.damaged(f"{what} claims {count} arrays")
        return [_read_array(cursor, what, depth=depth + 1) for _ in range(count)]
    dtype = np.dtype(_scalar_dtype(cursor, kind, what))
    begin = cursor.need(count * dtype.itemsize, what)
    array = view(cursor.data, offset=begin, count=count, dtype=dtype)
    return array != 0 if kind == _BOOL else array


def _scalar_dtype(cursor: _Cursor, kind: int, what: str) -> str:
    if kind not in _SCALARS:
        raise cursor.damaged(f"{what} has unknown type {kind}")
    return _SCALARS[kind]


def _skip_strings(cursor: _Cursor, count: int, what: str) -> StringArray:
    """Walk over the strings without decoding them. A length beyond the file's end fails at the next read or at the end."""
    start = position = cursor.position
    if count * 8 > cursor.size - start:
        raise cursor.damaged(f"{what} claims {count} strings")
    data, last, read = cursor.data, cursor.size - 8, _U64.unpack_from
    begins = array("Q")
    for _ in range(count):
        if position > last:
            raise cursor.damaged(f"{what} has a string beyond the end of the file")
        begins.append(position)
        position += 8 + read(data, position)[0]
    cursor.need(position - start, what)
    return StringArray(cursor.path, data, begins)


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not _MIN_ALIGNMENT <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        allowed = f"a power of two from {_MIN_ALIGNMENT} to {_MAX_ALIGNMENT}"
        raise ConfigError(f"{path}: general.alignment must be {allowed}; the file is damaged")
    return alignment


@dataclass(frozen=True, slots=True)
class _Info:
    """What the header says of a tensor. ``offset`` and ``size`` are bytes in the data section."""

    name: str
    kind: GgmlType
    shape: tuple[int, ...]
    offset: int
    size: int


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    infos = [_read_info(cursor) for _ in range(count)]
    start = -(-cursor.position // alignment) * alignment
    _check_layout(cursor, infos, data_size=cursor.size - start, alignment=alignment)
    tensors: dict[str, GgufTensor] = {}
    for info in infos:
        if info.name in tensors:
            raise cursor.damaged(f"tensor {info.name!r} appears twice")
        data = view(cursor.data, offset=start + info.offset, count=info.size, dtype=np.uint8)
        tensors[info.name] = GgufTensor(info.name, info.kind, info.shape, data)
    return tensors


def _read_info(cursor: _Cursor) -> _Info:
    name = cursor.string("a tensor name", limit=_MAX_NAME)
    what = f"tensor {name[:120]!r}"
    num_dims = cursor.u32(what)
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.damaged(f"{what} has {num_dims} dimensions")
    dims = [cursor.u64(what) for _ in range(num_dims)]
    number, offset = cursor.u32(what), cursor.u64(what)
    if number not in _KINDS:
        readable = ", ".join(kind.name for kind in GgmlType)
        kind_name = OTHER_TYPES.get(number, f"number {number}")
        raise ConfigError(f"{cursor.path}: {what} has type {kind_name}, which is not supported; these are: {readable}")
    kind = GgmlType(number)
    block = FORMATS[kind]
    if min(dims) < 1 or dims[0] % block.elements:
        raise cursor.damaged(f"{what} of {kind.name} has rows of {dims[0]}, not a multiple of {block.elements}")
    size = math.prod(dims) // block.elements * block.bytes
    return _Info(name, kind, tuple(reversed(dims)), offset, size)


def _check_layout(cursor: _Cursor, infos: list[_Info], *, data_size: int, alignment: int) -> None:
    """Each tensor is aligned and inside the data section, and no two share a byte."""
    position = 0
    for info in sorted(infos, key=lambda info: info.offset):
        if info.offset % alignment:
            raise cursor.damaged(f"tensor {info.name!r} is not aligned to {alignment} bytes")
        if info.offset < position:
            raise cursor.damaged(f"tensor {info.name!r} overlaps another one")
        position = info.offset + info.size
    available = max(0, data_size)
    if position > available:
        raise ConfigError(
            f"{cursor.path}: truncated, the tensors need {position} bytes and {available} are there; download it again"
        )
