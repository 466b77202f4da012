"""The safetensors reader: what it reads equals what was written; what is damaged is refused in one line."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import ConfigError
from octavo.weights.safetensors import INDEX_NAME, SafetensorsCheckpoint, SafetensorsFile
from tests.weights import fuzz

TENSORS: dict[str, np.ndarray] = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.arange(5, dtype=np.float16),
    "c": np.arange(8, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 2, 2),
    "empty": np.empty((0, 3), np.float32),
    "scalar": np.array(2.5, np.float32),
}


def raw(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def open_and_read(path: Path) -> None:
    file = SafetensorsFile(path)
    for name in file.entries:
        file.tensor(name).tobytes()


def test_round_trip_without_copies(tmp_path: Path) -> None:
    safetensors.numpy.save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "np"})
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert set(checkpoint) == set(TENSORS)
    for name, expected in TENSORS.items():
        found = checkpoint.tensor(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
        assert expected.size == 0 or not found.flags.writeable


def test_unaligned_data_is_copied_to_an_aligned_place(tmp_path: Path) -> None:
    values = np.arange(4, dtype=np.float32)
    header = json.dumps({"a": entry([4], 0, 16)}).encode()
    padded = header + b" " * ((9 - len(header)) % 8)
    assert (8 + len(padded)) % 4 == 1
    (tmp_path / "model.safetensors").write_bytes(raw(padded, values.tobytes()))
    found = SafetensorsCheckpoint(tmp_path).tensor("a")
    assert found.flags.aligned
    np.testing.assert_array_equal(found, values)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    safetensors.numpy.save_file(TENSORS, tmp_path / "whole")
    for cut in fuzz.truncations((tmp_path / "whole").read_bytes()):
        assert not fuzz.survives(tmp_path / "cut", cut, open_and_read)


def test_flipped_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    safetensors.numpy.save_file(TENSORS, tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    outcomes = [fuzz.survives(tmp_path / "bad", bad, open_and_read) for bad in fuzz.flips(data, count=1500, seed=1)]
    assert 50 < sum(outcomes) < 1450


KEYS = st.sampled_from(["dtype", "shape", "data_offsets", "a"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@given(header=st.dictionaries(st.text(max_size=4) | st.just("__metadata__"), JSON | st.fixed_dictionaries({}), max_size=4))
def test_any_json_header_is_opened_or_refused(header: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    fuzz.survives(path, raw(json.dumps(header).encode("utf-8", "surrogatepass"), b"\0" * 16), open_and_read)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "too short": (b"\1\0\0", "too few"),
    "header over the limit": (raw({}, length=1 << 60), "over the format's limit"),
    "header beyond the end": (raw({}, length=99), "truncated"),
    "not JSON": (raw(b"{'a': 1}"), "invalid JSON"),
    "not UTF-8": (raw(b"\xff\xfe\xfd{}"), "invalid JSON"),
    "not an object": (raw(b"[1]"), "JSON object"),
    "deep": (raw(b"[" * 100_000), "nested too deeply"),
    "long number": (raw(b'{"a": ' + b"9" * 10_000 + b"}"), "invalid JSON"),
    "duplicate names": (raw(b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "a": 1}', b"\0" * 4), "duplicate"),
    "entry is no object": (raw({"a": 3}), "must be an object"),
    "no dtype": (raw({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4), "dtype"),
    "negative size": (raw({"a": entry([-1], 0, 4)}, b"\0" * 4), "shape"),
    "size is a bool": (raw({"a": entry([True], 0, 4)}, b"\0" * 4), "shape"),
    "size is a float": (raw({"a": {**entry([], 0, 4), "shape": [1.0]}}, b"\0" * 4), "shape"),
    "nine dimensions": (raw({"a": entry([1] * 9, 0, 4)}, b"\0" * 4), "shape"),
    "huge size": (raw({"a": entry([1 << 62, 1 << 62], 0, 4)}, b"\0" * 4), "does not fill"),
    "size beyond 64 bits": (raw({"a": entry([1 << 70], 0, 4)}, b"\0" * 4), "shape"),
    "negative offset": (raw({"a": entry([1], -4, 0)}, b"\0" * 4), "data_offsets"),
    "offsets reversed": (raw({"a": entry([1], 4, 0)}, b"\0" * 4), "data_offsets"),
    "three offsets": (raw({"a": {**entry([1], 0, 4), "data_offsets": [0, 4, 8]}}, b"\0" * 8), "data_offsets"),
    "beyond the end": (raw({"a": entry([2], 0, 8)}, b"\0" * 4), "truncated"),
    "far beyond the end": (raw({"a": entry([1 << 60], 0, 1 << 62)}, b"\0" * 4), "truncated"),
    "overlap": (raw({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"\0" * 12), "overlaps"),
    "same place twice": (raw({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, b"\0" * 4), "overlaps"),
    "hole": (raw({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"\0" * 12), "hole"),
    "hole in front": (raw({"a": entry([1], 4, 8)}, b"\0" * 8), "hole"),
    "bytes left over": (raw({"a": entry([1], 0, 4)}, b"\0" * 9), "belong to no tensor"),
    "integers": (raw({"a": entry([1], 0, 4, "I32")}, b"\0" * 4), "dtype I32"),
    "unknown dtype": (raw({"a": entry([1], 0, 4, "F4")}, b"\0" * 4), "dtype F4"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_files_are_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    data, message = HOSTILE[case]
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        open_and_read(tmp_path / "bad")


def shards(directory: Path, weight_map: Any) -> None:
    for index, (name, array) in enumerate(TENSORS.items()):
        safetensors.numpy.save_file({name: array}, directory / f"part-{index}.safetensors")
    (directory / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards(tmp_path: Path) -> None:
    shards(tmp_path, {name: f"part-{index}.safetensors" for index, name in enumerate(TENSORS)})
    checkpoint = SafetensorsCheckpoint(tmp_path)
    for name, expected in TENSORS.items():
        assert checkpoint.tensor(name).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../part-0.safetensors"}, "plain"),
        ({"a": "/etc/passwd"}, "plain"),
        ({"a": "sub\\part-0.safetensors"}, "plain"),
        ({"a": ".."}, "plain"),
        ({"a": "config.json"}, "plain"),
        ({"a": 3}, "plain"),
        ({"a": "part-0.safetensors\0"}, "plain"),
        ({}, "non-empty"),
        ([], "non-empty"),
        ({"a": "part-9.safetensors"}, "missing"),
        ({"a": "part-1.safetensors"}, "although"),
    ],
)
def test_bad_indexes_are_refused(tmp_path: Path, weight_map: Any, message: str) -> None:
    shards(tmp_path, weight_map)
    with pytest.raises(ConfigError, match=message):
        SafetensorsCheckpoint(tmp_path)


def test_directories_without_weights_or_with_too_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model"):
        SafetensorsCheckpoint(tmp_path)
    safetensors.numpy.save_file(TENSORS, tmp_path / "weights.safetensors")
    assert "a" in SafetensorsCheckpoint(tmp_path)
    safetensors.numpy.save_file(TENSORS, tmp_path / "others.safetensors")
    with pytest.raises(ConfigError, match=r"2 \.safetensors files"):
        SafetensorsCheckpoint(tmp_path)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    safetensors.numpy.save_file(TENSORS, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"'lm_head\.weight' is missing"):
        SafetensorsCheckpoint(tmp_path).tensor("lm_head.weight")
