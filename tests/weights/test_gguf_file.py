"""The GGUF reader: what it reads equals what was written; what is damaged is refused in one line."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo.config import ConfigError
from octavo.quant.gguf import GgmlType
from octavo.weights.gguf_file import GgufFile, StringArray
from tests.weights import fuzz


def write(path: Path, *, alignment: int = 32) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -2_000_000_000)
    writer.add_uint64("a.u64", 1 << 60)
    writer.add_int64("a.i64", -(1 << 60))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_string("a.text", "grüße 🙂")
    writer.add_array("a.words", ["", "a", "日本", "\0"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 0.25])
    writer.add_array("a.bools", [True, False])
    rng = np.random.default_rng(1)
    writer.add_tensor("matrix", rng.standard_normal((4, 32)).astype(np.float32))
    writer.add_tensor("half", rng.standard_normal((3, 5)).astype(np.float16))
    q8 = gguf.quantize(rng.standard_normal((2, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def open_and_read(path: Path) -> GgufFile:
    file = GgufFile(path)
    for value in file.metadata.values():
        if isinstance(value, StringArray):
            list(value)
    for tensor in file.tensors.values():
        int(tensor.data.sum())
    return file


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_round_trip(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "m.gguf"
    write(path, alignment=alignment)
    file, expected = GgufFile(path), gguf.GGUFReader(path)
    for key, field in expected.fields.items():
        if not key.startswith("GGUF."):
            found = file.metadata[key]
            assert (list(found) if isinstance(found, np.ndarray | StringArray) else found) == field.contents(), key
    assert [len(file.metadata["a.words"]), file.metadata["a.words"][2]] == [4, "日本"]
    assert set(file.tensors) == {"matrix", "half", "packed"}
    for tensor in expected.tensors:
        ours = file.tensors[tensor.name]
        assert ours.kind == GgmlType[tensor.tensor_type.name]
        assert list(reversed(ours.shape)) == tensor.shape.tolist()
        assert ours.data.tobytes() == tensor.data.tobytes()
        assert not ours.data.flags.writeable


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    data = path.read_bytes()
    end = max(tensor.data_offset + tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
    for cut in fuzz.truncations(data[:end]):
        assert not fuzz.survives(tmp_path / "cut.gguf", cut, open_and_read)


def test_flipped_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    data = path.read_bytes()
    damaged = fuzz.flips(data, count=1500, seed=0, within=len(data) - 1200)
    outcomes = [fuzz.survives(tmp_path / "bad.gguf", bad, open_and_read) for bad in damaged]
    assert 100 < sum(outcomes) < 1400


class Raw:
    """A GGUF file written byte by byte."""

    def __init__(self, *, version: int = 3, tensors: int = 0, pairs: int = 0) -> None:
        self.data = b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)

    def string(self, text: bytes) -> "Raw":
        self.data += struct.pack("<Q", len(text)) + text
        return self

    def pack(self, layout: str, *values: Any) -> "Raw":
        self.data += struct.pack("<" + layout, *values)
        return self

    def tensor(self, name: bytes, dims: list[int], kind: int, offset: int) -> "Raw":
        return self.string(name).pack(f"I{len(dims)}QIQ", len(dims), *dims, kind, offset)

    def body(self, size: int, alignment: int = 32) -> "Raw":
        self.data += b"\0" * (-len(self.data) % alignment + size)
        return self


HOSTILE: dict[str, tuple[Callable[[], Raw], str]] = {
    "version 1": (lambda: Raw(version=1).pack("8x"), "version 1"),
    "big-endian": (lambda: Raw(version=3 << 24).pack("8x"), "big-endian"),
    "tensor count": (lambda: Raw(tensors=1 << 62).pack("64x"), "do not fit"),
    "pair count": (lambda: Raw(pairs=1 << 62).pack("64x"), "do not fit"),
    "key length": (lambda: Raw(pairs=1).pack("Q20x", 1 << 63), "longer than"),
    "string length": (lambda: Raw(pairs=1).string(b"k").pack("IQ20x", 8, 1 << 50), "truncated"),
    "array length": (lambda: Raw(pairs=1).string(b"k").pack("IIQ20x", 9, 6, 1 << 61), "truncated"),
    "string array length": (lambda: Raw(pairs=1).string(b"k").pack("IIQ20x", 9, 8, 1 << 61), "strings"),
    "string in array": (lambda: Raw(pairs=1).string(b"k").pack("IIQQ", 9, 8, 1, 1 << 63), "truncated"),
    "nested arrays": (lambda: Raw(pairs=1).string(b"k").pack("I" + "IQ" * 9, 9, *[9, 1] * 9), "nests"),
    "array of arrays": (lambda: Raw(pairs=1).string(b"k").pack("IIQ20x", 9, 9, 1 << 60), "arrays"),
    "unknown type": (lambda: Raw(pairs=1).string(b"k").pack("I20x", 77), "unknown type"),
    "unknown item type": (lambda: Raw(pairs=1).string(b"k").pack("IIQ20x", 9, 13, 1), "unknown type"),
    "twice the same key": (lambda: Raw(pairs=2).string(b"k").pack("II", 4, 1).string(b"k").pack("II", 4, 1), "twice"),
    "bad UTF-8": (lambda: Raw(pairs=1).string(b"\xff\xfe").pack("II", 4, 1), "UTF-8"),
    "alignment 0": (lambda: Raw(pairs=1).string(b"general.alignment").pack("II", 4, 0), "alignment"),
    "alignment 4": (lambda: Raw(pairs=1).string(b"general.alignment").pack("II", 4, 4), "power of two from 8 to 65536"),
    "alignment 12": (lambda: Raw(pairs=1).string(b"general.alignment").pack("II", 4, 12), "alignment"),
    "alignment text": (lambda: Raw(pairs=1).string(b"general.alignment").pack("I", 8).string(b"32"), "alignment"),
    "no dimensions": (lambda: Raw(tensors=1).tensor(b"t", [], 0, 0).body(64), "0 dimensions"),
    "five dimensions": (lambda: Raw(tensors=1).tensor(b"t", [1] * 5, 0, 0).body(64), "5 dimensions"),
    "dimension 0": (lambda: Raw(tensors=1).tensor(b"t", [0], 0, 0).body(64), "rows of 0"),
    "huge dimensions": (lambda: Raw(tensors=1).tensor(b"t", [1 << 63, 1 << 63], 0, 0).body(64), "truncated"),
    "partial block": (lambda: Raw(tensors=1).tensor(b"t", [33], 8, 0).body(64), "multiple of 32"),
    "unsupported type": (lambda: Raw(tensors=1).tensor(b"t", [256], 23, 0).body(512), "IQ4_XS"),
    "unaligned": (lambda: Raw(tensors=1).tensor(b"t", [1], 0, 4).body(64), "aligned"),
    "beyond the end": (lambda: Raw(tensors=1).tensor(b"t", [1], 0, 1 << 40).body(64), "truncated"),
    "overlap": (lambda: Raw(tensors=2).tensor(b"t", [16], 0, 0).tensor(b"u", [16], 0, 32).body(256), "overlaps"),
    "twice the same tensor": (lambda: Raw(tensors=2).tensor(b"t", [8], 0, 0).tensor(b"t", [8], 0, 32).body(256), "twice"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_files_are_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    build, message = HOSTILE[case]
    path.write_bytes(build().data)
    with pytest.raises(ConfigError, match=message):
        open_and_read(path)


def test_not_gguf_and_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("hello, this is text and no model at all")
    for name, message in (("empty.gguf", "empty"), ("text.gguf", "not a GGUF file"), ("none.gguf", "cannot be read")):
        with pytest.raises(ConfigError, match=message):
            GgufFile(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read"):
        GgufFile(tmp_path)


def test_strings_that_are_not_text_are_refused_when_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(Raw(pairs=1).string(b"k").pack("IIQ", 9, 8, 1).string(b"\xff").data)
    array = GgufFile(path).metadata["k"]
    with pytest.raises(ConfigError, match="UTF-8"):
        list(array)


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(Raw(version=2, pairs=1).string(b"k").pack("If", 6, 0.5).data)
    assert GgufFile(path).metadata == {"k": 0.5}
