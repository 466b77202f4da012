"""Host memory: how much is left, and large buffers of it. Buffers are page-aligned, zero until written, on huge pages."""

import mmap
from pathlib import Path

import numpy as np

from octavo.backends.cpu import control_groups

HUGE_PAGE = 2 << 20
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, the default, would not get huge pages


def available_memory(*, root: Path = control_groups.ROOT) -> int:
    """Bytes that this process may still use: the machine's available memory and every control group's limit considered."""
    candidates = [_machine_available(root), control_groups.memory_left(root=root)]
    return min(c for c in candidates if c is not None)


def _machine_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("no MemAvailable line in /proc/meminfo")


def huge_buffer(num_bytes: int) -> np.ndarray:
    """uint8[num_bytes] of zeros straight from the system; starts on a huge page where the buffer is that large."""
    if num_bytes < HUGE_PAGE:
        region = mmap.mmap(-1, max(num_bytes, 1), flags=PRIVATE)
        return np.frombuffer(region, np.uint8, num_bytes)
    region = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(region, np.uint8)
    skip = -whole.ctypes.data % HUGE_PAGE
    return whole[skip : skip + num_bytes]
