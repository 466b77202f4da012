"""Files of packed weights: what is written is read, nothing is left of what could not be written, and damage is told."""

import fcntl
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from octavo.config import ConfigError
from octavo.weights import packed_file
from octavo.weights.packed_file import PackedFile, write_packed_file

MADE_FOR = ["kernels", [["m.gguf", 1, 2]]]


def weights() -> dict[str, tuple[dict[str, Any], list[np.ndarray]]]:
    random = np.random.default_rng(0)

    def content(size: int) -> np.ndarray:
        return random.integers(0, 256, size, np.uint8)

    return {
        "a.weight+b.weight": ({"rows": 3, "parts": [{"x": True}]}, [content(128), content(5), np.arange(3, dtype=np.uint32)]),
        "c": ({"rows": 1}, [content(64 * 77)]),
        "d": ({}, [content(64), np.arange(4, dtype=np.int64), np.zeros(0, np.float32), np.ones(7, np.float32)]),
    }


def write(path: Path, told: list[float] | None = None) -> int:
    return write_packed_file(path, weights(), made_for=MADE_FOR, progress=(told if told is not None else []).append)


@pytest.mark.parametrize("chunk", [64, 200, 1 << 20])
def test_what_is_written_is_read(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "_CHUNK", chunk)
    path, told = tmp_path / "new" / "w.safetensors", list[float]()
    size = write(path, told)
    assert size == path.stat().st_size and told == sorted(told) and told[-1] == 1.0
    file = PackedFile(path)
    assert file.made_for == MADE_FOR and file.num_bytes == size
    for key, (form, arrays) in weights().items():
        found_form, found = file.get(key)
        assert found_form == form and len(found) == len(arrays)
        assert found[0].ctypes.data % 64 == 0
        for array, expected in zip(found, arrays, strict=True):
            assert array.dtype == expected.dtype and array.flags.aligned and not (array.size and array.flags.writeable)
            np.testing.assert_array_equal(array, expected)
    assert set(load_file(path)) == {f"{key}#{i}" for key, (_, arrays) in weights().items() for i in range(len(arrays))}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    write(path)
    before, (_, mapped) = path.read_bytes(), PackedFile(path).get("c")

    def fails(fraction: float) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match="cannot be written"):
        write_packed_file(path, weights(), made_for=None, progress=fails)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(ConfigError, match="GiB are free"):
        write(path)
    monkeypatch.undo()
    write_packed_file(path, {}, made_for=None, progress=lambda _: None)
    np.testing.assert_array_equal(mapped[0], weights()["c"][1][0])
    assert PackedFile(path).made_for is None


def test_what_a_writer_that_was_ended_has_left_is_removed(tmp_path: Path) -> None:
    """By the next, whatever it writes; but nothing that somebody still writes."""
    (tmp_path / ".x.safetensors.1.part").write_bytes(b"left behind")
    with (tmp_path / ".y.safetensors.2.part").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write(tmp_path / "w.safetensors")
        assert sorted(entry.name for entry in tmp_path.iterdir()) == [".y.safetensors.2.part", "w.safetensors"]

    def another(fraction: float) -> None:
        (part,) = tmp_path.glob(".v*.part")
        write(tmp_path / "z.safetensors")
        assert part.exists()

    write_packed_file(tmp_path / "v.safetensors", weights(), made_for=None, progress=another)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["v.safetensors", "w.safetensors", "z.safetensors"]


def test_writers_of_one_file_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that share a folder, where processes have the same number."""
    monkeypatch.setattr("os.getpid", lambda: 7)
    path, parts = tmp_path / "w.safetensors", set[Path]()
    for _ in range(2):
        write_packed_file(path, weights(), made_for=None, progress=lambda _: parts.update(tmp_path.glob(".*.part")))
    assert len(parts) == 2

    def another(fraction: float) -> None:
        write(path)

    write_packed_file(path, weights(), made_for="the last to be done", progress=another)
    assert PackedFile(path).made_for == "the last to be done" and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write(tmp_path / "file" / "w.safetensors")


def test_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write(path)
    with pytest.raises(ConfigError, match=r"'e' is missing; delete the file"):
        PackedFile(path).get("e")
    whole = path.read_bytes()
    for content, words in (
        (whole[:-1], "truncated"),
        (b"", "empty"),
        (whole[:100], "truncated"),
        (rewritten(whole, __metadata__=None), "is no file of packed weights"),
        (rewritten(whole, __metadata__={"octavo": 1}), "is no file of packed weights"),
        (rewritten(whole, __metadata__={"octavo": "nonsense"}), "invalid JSON"),
        (rewritten(whole, __metadata__={"octavo": "{}"}), "says nothing of its weights"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            PackedFile(path)
    entry = {"dtype": "F16", "shape": [64], "data_offsets": [0, 128]}
    path.write_bytes(rewritten(whole, **{"a.weight+b.weight#0": entry}))
    with pytest.raises(ConfigError, match="a dtype that no weight has"):
        PackedFile(path).get("a.weight+b.weight")


def rewritten(whole: bytes, **changes: Any) -> bytes:
    """A file with another header."""
    length = int.from_bytes(whole[:8], "little")
    header = json.dumps(json.loads(whole[8 : 8 + length]) | changes).encode()
    return len(header).to_bytes(8, "little") + header + whole[8 + length :]


def test_what_would_not_be_aligned_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not end with a cache line"):
        write_packed_file(tmp_path / "w", {"a": ({}, [np.zeros(65, np.uint8)])}, made_for=None, progress=lambda _: None)
