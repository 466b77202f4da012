"""What clients call the model: the names that are listed, and those that are understood beside them.

A model that was given as a path is listed under the path's last part, because where it lies is nobody's business.
"""

import os
from pathlib import Path

import msgspec


class ModelNames(msgspec.Struct, frozen=True):
    """``listed`` are told to clients, the first one is the default; ``accepted`` mean the first one and are not told."""

    listed: tuple[str, ...]
    accepted: frozenset[str] = frozenset()

    @staticmethod
    def of(model: str, served: tuple[str, ...]) -> "ModelNames":
        """The names of ``model`` as given on the command line; the operator's, where there are any."""
        if served:
            return ModelNames(served)
        if not _is_path(model):
            return ModelNames((model,))
        return ModelNames((Path(os.path.abspath(model)).name or "model",), frozenset({model}))


def _is_path(model: str) -> bool:
    """Whether it names a place in the file system, and no alias or hub id."""
    return model.startswith(("/", ".", "~")) or model.endswith(".gguf") or os.path.exists(model)
