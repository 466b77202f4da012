"""How much of this machine's memory is left for this process."""

from pathlib import Path

from octavo.backends.cpu import control_groups


def available_memory(*, root: Path = control_groups.ROOT) -> int:
    """Bytes that this process may still use: the machine's available memory, every control group's limit and that of the
    process's address space considered."""
    candidates = [_machine_available(root), control_groups.memory_left(root=root), _address_space_left(root)]
    return min(c for c in candidates if c is not None)


def _machine_available(root: Path) -> int:
    available = _field(root / "proc/meminfo", "MemAvailable:")
    if available is None:
        raise OSError("no MemAvailable line in /proc/meminfo")
    return int(available) * 1024


def _address_space_left(root: Path) -> int | None:
    """What RLIMIT_AS (``ulimit -v``) leaves; None: no limit."""
    limit, used = _field(root / "proc/self/limits", "Max address space"), _field(root / "proc/self/status", "VmSize:")
    if limit in (None, "unlimited") or used is None:
        return None
    return max(0, int(limit) - int(used) * 1024)


def _field(path: Path, name: str) -> str | None:
    """The first word behind a name that begins a line; None: there is no such line, or no file."""
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(name):
            return line.removeprefix(name).split()[0]
    return None
