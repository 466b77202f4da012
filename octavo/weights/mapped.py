"""A file in memory without copying it: a read-only map and views that cannot leave it.

Owns the mapping; knows nothing of formats. Every error is a ``ConfigError`` that names the file. A view keeps the map
alive; pages come in when they are read.
"""

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from octavo.config import ConfigError


def map_file(path: Path) -> mmap.mmap:
    """Map the whole file for reading. Raises ``ConfigError`` if it is missing, unreadable or empty."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise ConfigError(f"{path}: the file is empty; download it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None


def view(data: mmap.mmap, *, offset: int, count: int, dtype: Any) -> np.ndarray:
    """``count`` items from byte ``offset`` as a one-dimensional read-only array over the map; the caller checked the bounds.

    An array that does not begin at a multiple of its item size is copied, so that native code may read it directly.
    """
    if count == 0:
        return np.empty(0, dtype)
    array = np.frombuffer(data, np.dtype(dtype), count=count, offset=offset)
    return array if array.flags.aligned else array.copy()
