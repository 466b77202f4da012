"""How much of this machine's memory is left for this process."""

from pathlib import Path

from octavo.backends.cpu import control_groups


def available_memory(*, root: Path = control_groups.ROOT) -> int:
    """Bytes that this process may still use: the machine's available memory and every control group's limit considered."""
    candidates = [_machine_available(root), control_groups.memory_left(root=root)]
    return min(c for c in candidates if c is not None)


def _machine_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("no MemAvailable line in /proc/meminfo")
