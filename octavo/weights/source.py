"""``WeightSource``: where a model pulls its tensors from, under Hugging Face names, whatever the file format.

Owns the conversion from stored dtypes to the asked one. Knows nothing of models beyond names; a source never holds a
converted tensor. The invariant: what comes out has exactly the asked shape, or there is a ``ConfigError`` that names file
and tensor.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from octavo.config import ConfigError
from octavo.quant.gguf import GgmlType, Unpack
from octavo.quant.gguf_integer import integer_layout, layout_of
from octavo.quant.layouts import Dense, Integer, Piecewise
from octavo.weights.gguf_config import hf_name
from octavo.weights.gguf_file import GgufFile, GgufTensor
from octavo.weights.safetensors import SafetensorsCheckpoint

DTYPES: dict[str, Any] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class WeightSource(Protocol):
    """Tensors by name. Implementations: safetensors, GGUF, and random numbers."""

    def has(self, name: str) -> bool: ...

    def names(self) -> Iterable[str]:
        """Of the tensors that belong to the model: whoever leaves one out computes another model. Those that no supported model
        has are under the file's own names."""
        ...

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ``ConfigError`` unless there is a tensor of that name and shape."""
        ...

    def read(self, name: str, out: np.ndarray) -> None:
        """Fill ``out``, contiguous float32 or bfloat16, with the tensor of its shape. Raises ``ConfigError`` if there is none
        of that name and shape."""
        ...

    def dense(self, name: str, *, shape: tuple[int, int], dtype: str) -> Dense:
        """A matrix [out_features, in_features] as "float32" or "bfloat16": without a copy where it is stored so."""
        ...

    def integer(self, name: str, *, shape: tuple[int, int]) -> Piecewise | None:
        """A matrix that is stored in an integer format, in the integer layout nearest to it; None: it is stored as plain
        numbers, or in a way that no layout can hold."""
        ...

    def vector(self, name: str, *, size: int) -> np.ndarray:
        """float32[size]"""
        ...


class SafetensorsSource:
    """A directory of safetensors files."""

    def __init__(self, checkpoint: SafetensorsCheckpoint) -> None:
        self._checkpoint = checkpoint

    def has(self, name: str) -> bool:
        return name in self._checkpoint

    def names(self) -> Iterable[str]:
        return (name for name in self._checkpoint if name.startswith(("model.", "lm_head.")))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self._tensor(name, shape)

    def read(self, name: str, out: np.ndarray) -> None:
        out[...] = self._tensor(name, out.shape)

    def dense(self, name: str, *, shape: tuple[int, int], dtype: str) -> Dense:
        return Dense(self._tensor(name, shape).astype(DTYPES[dtype], copy=False))

    def integer(self, name: str, *, shape: tuple[int, int]) -> Piecewise | None:
        self._tensor(name, shape)
        return None

    def vector(self, name: str, *, size: int) -> np.ndarray:
        return self._tensor(name, (size,)).astype(np.float32)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        tensor = self._checkpoint.tensor(name)
        _check_shape(self._checkpoint.directory, name, tensor.shape, shape)
        return tensor


class GgufSource:
    """A GGUF file.

    ``interleaved_heads`` (for architecture llama) names, for q_proj and k_proj, the number of heads whose rows llama.cpp has
    reordered from [first half, second half] to pairs; they are put back while still packed, which moves the fewest bytes.
    """

    def __init__(self, file: GgufFile, *, interleaved_heads: dict[str, int], unpack: Unpack) -> None:
        self._path = file.path
        self._tensors = {ours: tensor for name, tensor in file.tensors.items() if (ours := hf_name(name)) is not None}
        self._names = tuple(hf_name(name) or name for name in file.tensors)
        self._interleaved_heads = interleaved_heads
        self._unpack = unpack

    def has(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> Iterable[str]:
        return self._names

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self._tensor(name, shape)

    def read(self, name: str, out: np.ndarray) -> None:
        tensor = self._tensor(name, out.shape)
        self._unpack.dequantize(tensor.kind, self._bytes(name, tensor, 0, tensor.shape[0]), out.reshape(-1))

    def dense(self, name: str, *, shape: tuple[int, int], dtype: str) -> Dense:
        tensor = self._tensor(name, shape)
        stored_so = (tensor.kind, dtype) in ((GgmlType.F32, "float32"), (GgmlType.BF16, "bfloat16"))
        if stored_so and self._heads_of(name) is None:
            return Dense(tensor.data.view(DTYPES[dtype]).reshape(shape))
        out = np.empty(shape, DTYPES[dtype])
        self.read(name, out)
        return Dense(out)

    def integer(self, name: str, *, shape: tuple[int, int]) -> Piecewise | None:
        tensor, (rows, columns) = self._tensor(name, shape), shape
        layout = layout_of(tensor.kind, columns)

        def read(first: int, end: int) -> Integer:
            data = self._bytes(name, tensor, first, end)
            return integer_layout(tensor.kind, data, (end - first, columns), unpack=self._unpack)

        return None if layout is None else Piecewise(layout, columns, ((rows, read),))

    def vector(self, name: str, *, size: int) -> np.ndarray:
        out = np.empty(size, np.float32)
        self.read(name, out)
        return out

    def _tensor(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        if name not in self._tensors:
            raise ConfigError(f"{self._path}: tensor {name!r} is missing from the file")
        tensor = self._tensors[name]
        _check_shape(self._path, name, tensor.shape, shape)
        return tensor

    def _heads_of(self, name: str) -> int | None:
        return self._interleaved_heads.get(name.rpartition(".")[0].rpartition(".")[2])

    def _bytes(self, name: str, tensor: GgufTensor, first: int, end: int) -> np.ndarray:
        """The bytes of some of the tensor's rows, uint8, in the order of Hugging Face checkpoints."""
        heads, rows = self._heads_of(name), tensor.shape[0]
        if heads is None and (first, end) == (0, rows):
            return tensor.data
        data = tensor.data.reshape(rows, -1)
        if heads is None:
            return data[first:end].reshape(-1)
        if rows % (2 * heads):
            raise ConfigError(f"{self._path}: tensor {name!r} has {rows} rows, which are not {heads} heads of pairs")
        order = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        return data[order[first:end]].reshape(-1)


class DummySource:
    """Random weights that depend on the seed, the name and the shape alone: for trying a model without its weights.

    Matrices are uniform with variance 1 / in_features, so that activations keep their size through the layers; norm weights
    are 1; biases are small. Random numbers are drawn for the first part of a tensor and repeated, since drawing them takes
    far longer than writing them: rows differ, because the part's length is no multiple of theirs.
    """

    _DRAWN = 1_000_003  # a prime

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def has(self, name: str) -> bool:
        return name.endswith((".weight", ".bias"))

    def names(self) -> Iterable[str]:
        return ()

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Any name has a tensor of any shape."""

    def read(self, name: str, out: np.ndarray) -> None:
        if out.ndim == 1 and name.endswith(".weight"):
            out[...] = 1
            return
        width = np.float32(2 * np.sqrt(3 / out.shape[1])) if out.ndim == 2 else np.float32(0.04)
        digest = hashlib.sha256(f"{self._seed}:{name}:{out.shape}".encode()).digest()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
        flat = out.reshape(-1)
        drawn = flat[: self._DRAWN]
        drawn[...] = (random.random(drawn.size, np.float32) - np.float32(0.5)) * width
        for start in range(drawn.size, flat.size, drawn.size):
            part = flat[start : start + drawn.size]
            part[...] = drawn[: part.size]

    def dense(self, name: str, *, shape: tuple[int, int], dtype: str) -> Dense:
        out = np.empty(shape, DTYPES[dtype])
        self.read(name, out)
        return Dense(out)

    def integer(self, name: str, *, shape: tuple[int, int]) -> Piecewise | None:
        return None

    def vector(self, name: str, *, size: int) -> np.ndarray:
        out = np.empty(size, np.float32)
        self.read(name, out)
        return out


def _check_shape(path: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ConfigError(f"{path}: tensor {name!r} has shape {list(found)}; the configuration asks for {list(expected)}")
