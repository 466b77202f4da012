"""Where the packed weights of a model are kept, and whether what is there is of this model, this machine and this build.

A file that is of something else, or damaged, is left alone and not used.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from octavo.backends.base import Backend, Weight
from octavo.config import ConfigError
from octavo.layers.loader import WeightFormat
from octavo.weights.checkpoint import Checkpoint, stamps_of
from octavo.weights.packaged import cache_directory
from octavo.weights.packed_file import Form, PackedFile, write_packed_file


@runtime_checkable
class PackingBackend(Protocol):
    """What a backend has whose packed weights can be kept."""

    @property
    def packing(self) -> str: ...
    @property
    def build(self) -> str: ...
    def take_apart(self, weight: Any) -> tuple[Form, list[np.ndarray]]: ...
    def put_together(self, form: Form, arrays: list[np.ndarray]) -> Weight: ...


def packed_directory() -> Path:
    return cache_directory("packed")


def packed_path(checkpoint: Checkpoint, weight_format: WeightFormat, backend: PackingBackend) -> Path:
    """The file of a model's weights as this backend packs them. Another build, or another state of the model, has the same."""
    path = checkpoint.path.resolve()
    name = hashlib.blake2b(repr((str(path), weight_format, backend.packing)).encode(), digest_size=8).hexdigest()
    return packed_directory() / f"{path.stem[:64]}-{name}.safetensors"


def _made_for(checkpoint: Checkpoint, weight_format: WeightFormat, backend: PackingBackend) -> Any:
    """What has to be the same for packed weights to be the model's."""
    return [backend.packing, backend.build, weight_format, str(checkpoint.path.resolve()), checkpoint.stamps]


@dataclass(slots=True)
class PackedWeights:
    """The weights of a file, for a ``Loader``."""

    file: PackedFile
    backend: PackingBackend

    def weight(self, key: str, make: Callable[[], Weight]) -> Weight:
        """As it is there. Raises ``ConfigError`` where it is not."""
        form, arrays = self.file.get(key)
        try:
            return self.backend.put_together(form, arrays)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{self.file.path}: weight {key!r}: {error}; delete the file") from None


@dataclass(slots=True)
class WeightsToKeep:
    """Weights as a ``Loader`` makes them, to be written."""

    backend: PackingBackend
    weights: dict[str, Weight] = field(default_factory=dict)

    def weight(self, key: str, make: Callable[[], Weight]) -> Weight:
        """As it is made now."""
        self.weights[key] = make()
        return self.weights[key]

    def write(self, checkpoint: Checkpoint, weight_format: WeightFormat, progress: Callable[[float], None]) -> tuple[Path, int]:
        """Where they are then, and how large the file is. Raises ``ConfigError`` where it cannot be written, or the model
        is not any more what was read."""
        path = packed_path(checkpoint, weight_format, self.backend)
        parts = {key: self.backend.take_apart(weight) for key, weight in self.weights.items()}
        if stamps_of(checkpoint.path) != checkpoint.stamps:
            raise ConfigError(f"{checkpoint.path}: changed while it was being packed; pack it again")
        made_for = _made_for(checkpoint, weight_format, self.backend)
        return path, write_packed_file(path, parts, made_for=made_for, progress=progress)


def find_packed(checkpoint: Checkpoint, weight_format: WeightFormat, backend: Backend) -> PackedWeights | None:
    """The model's packed weights, if they are kept."""
    if checkpoint.kind == "dummy" or not isinstance(backend, PackingBackend):
        return None
    try:
        path = packed_path(checkpoint, weight_format, backend)
    except ConfigError:  # there is no place where any could be
        return None
    if not os.path.exists(path):  # or it may not be looked for, of which Path would complain
        return None
    try:
        file = PackedFile(path)
    except ConfigError:
        logging.getLogger(__name__).warning("%s is damaged or cannot be read: run `octavo pack` again to start from it", path)
        return None
    if file.made_for != _made_for(checkpoint, weight_format, backend):
        logging.getLogger(__name__).warning(
            "%s is of another build, or the model has changed: run `octavo pack` again to start from it", path
        )
        return None
    return PackedWeights(file, backend)
