"""What the fuzz tests of both readers share: damage bytes in every way, allow ``ConfigError`` only, watch the memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from octavo.config import ConfigError

ALLOWED_BYTES = 2_000_000


def truncations(data: bytes) -> Iterator[bytes]:
    """The file cut at every length."""
    for length in range(len(data)):
        yield data[:length]


def flips(data: bytes, *, count: int, seed: int, within: int | None = None) -> Iterator[bytes]:
    """One to four bytes replaced at random places, in the first ``within`` bytes; often by extreme values."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(int(random.integers(1, 5))):
            value = int(random.choice([0, 1, 0x7F, 0x80, 0xFF, int(random.integers(0, 256))]))
            damaged[int(random.integers(0, within or len(data)))] = value
        yield bytes(damaged)


def survives(path: Path, data: bytes, open_and_read: Callable[[Path], object]) -> bool:
    """Write and open: True if it opened, False for a ``ConfigError`` of one line naming the file; nothing else may happen."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        open_and_read(path)
    except ConfigError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < ALLOWED_BYTES, f"{peak} bytes were allocated for a file of {len(data)}"
    return True
