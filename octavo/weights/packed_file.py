"""A file of packed weights, which a later start maps instead of packing again.

Owns the form of the file: safetensors, with the arrays of each weight under its key, and in the metadata what each weight is
and what the file was made for. Knows neither models nor kernels. A file is whole or not there; what a writer that was ended has
left of one is removed by the next.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from octavo.config import ConfigError
from octavo.weights.json_file import parse_json_object
from octavo.weights.safetensors import SafetensorsFile

Form = dict[str, Any]
"""What a weight is; as JSON has it."""

_LINE = 64
"""Bytes to which a weight's first array is aligned."""
_DTYPES = {name: np.dtype(dtype) for name, dtype in (("U8", "u1"), ("U32", "<u4"), ("I64", "<i8"), ("F32", "<f4"))}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_CHUNK = 32 << 20
"""Bytes, a multiple of a huge page."""


class PackedFile:
    """An open file.

    Raises ``ConfigError`` for one that is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = SafetensorsFile(path)
        self._file.on_huge_pages()  # weights are read faster there
        metadata = self._file.metadata
        text = metadata.get("octavo") if isinstance(metadata, dict) else None
        if not isinstance(text, str):
            raise ConfigError(f"{path}: is no file of packed weights; delete it")
        fields = parse_json_object(text.encode(), path)
        self.made_for = fields.get("made_for")
        forms = fields.get("forms")
        if not isinstance(forms, dict):
            raise ConfigError(f"{path}: says nothing of its weights; delete it")
        self._forms = forms

    @property
    def num_bytes(self) -> int:
        return self._file.num_bytes

    def get(self, key: str) -> tuple[Form, list[np.ndarray]]:
        """What a weight is and its arrays, read-only and mapped, the first at a cache line. Raises ``ConfigError`` for a key
        that is not there."""
        form = self._forms.get(key)
        if not isinstance(form, dict):
            raise ConfigError(f"{self.path}: weight {key!r} is missing; delete the file")
        arrays: list[np.ndarray] = []
        while (name := f"{key}#{len(arrays)}") in self._file.entries:
            dtype = _DTYPES.get(self._file.entries[name].dtype)
            if dtype is None:
                raise ConfigError(f"{self.path}: array {name!r} has a dtype that no weight has; delete the file")
            arrays.append(self._file.content(name, dtype))
        return form, arrays


def write_packed_file(
    path: Path,
    weights: Mapping[str, tuple[Form, list[np.ndarray]]],
    *,
    made_for: Any,
    progress: Callable[[float], None],
) -> int:
    """Writes the file, beside it at first, and puts it in the place of what was there. ``progress`` hears the fraction done.

    Returns its size. Raises ``ConfigError`` where it cannot be written.
    """
    arrays = {f"{key}#{i}": array for key, (_, own) in weights.items() for i, array in enumerate(own)}
    # First what begins with a cache line, then what has large items: so that all of it is aligned without gaps.
    order = sorted(arrays, key=lambda name: (not name.endswith("#0"), -arrays[name].dtype.itemsize))
    header = _header({name: arrays[name] for name in order}, {key: form for key, (form, _) in weights.items()}, made_for)
    total = len(header) + sum(array.nbytes for array in arrays.values())
    # Nobody else's: where containers share the folder, two processes may have the same number.
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_part(part) as file:
            free = shutil.disk_usage(path.parent).free
            if free < total:
                needs = f"packed weights take {total / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free"
                raise ConfigError(f"{path.parent}: {needs}")
            for chunk in _chunks([np.frombuffer(header, np.uint8), *(arrays[name].view(np.uint8) for name in order)]):
                written = 0
                while written < chunk.size:
                    written += file.write(chunk[written:].data)
                progress(file.tell() / total)
            os.fsync(file.fileno())
            part.replace(path)  # while it is locked
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        with contextlib.suppress(OSError):  # it is not there, as it should be
            part.unlink()
    return total


def _open_part(part: Path) -> IO[bytes]:
    """A new file that is locked while it is open. Others beside it that are not have lost their writers, and are removed."""
    folder = os.open(part.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems lock no folders; then two at once may disturb one another
            fcntl.flock(folder, fcntl.LOCK_EX)  # nobody sees a part before it is locked
        for other in part.parent.glob(".*.part"):
            with contextlib.suppress(OSError), other.open("rb") as abandoned:
                fcntl.flock(abandoned, fcntl.LOCK_EX | fcntl.LOCK_NB)
                other.unlink()
        file = part.open("xb", buffering=0)
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        return file
    finally:
        os.close(folder)


def _chunks(contents: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Contents one after the other in pieces of one size, but for the last: written so, what a system keeps of a file in memory
    lies on huge pages, and so do weights when it is mapped. Each is to be done with when the next is asked for."""
    buffer, filled = np.empty(_CHUNK, np.uint8), 0
    for content in contents:
        taken = 0
        while taken < content.size:
            count = min(_CHUNK - filled, content.size - taken)
            buffer[filled : filled + count] = content[taken : taken + count]
            taken, filled = taken + count, filled + count
            if filled == _CHUNK:
                yield buffer
                filled = 0
    yield buffer[:filled]


def _header(arrays: Mapping[str, np.ndarray], forms: Mapping[str, Form], made_for: Any) -> bytes:
    """As the format has it, filled up so that what follows begins with a cache line."""
    fields: dict[str, Any] = {"__metadata__": {"octavo": json.dumps({"made_for": made_for, "forms": forms})}}
    position = 0
    for name, array in arrays.items():
        if name.endswith("#0") and array.nbytes % _LINE:
            raise ValueError(f"array {name} does not end with a cache line")
        fields[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": [array.size],
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(fields).encode()
    text += b" " * (-(8 + len(text)) % _LINE)
    return len(text).to_bytes(8, "little") + text
