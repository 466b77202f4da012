"""What the process's Linux control groups, version 1 or 2, allow it. Reads files under ``root`` only; no file, no limit."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _group_paths(root: Path, controller: str) -> tuple[str | None, str | None]:
    """This process's group in the unified hierarchy and in ``controller``'s own hierarchy."""
    unified = own = None
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path
        elif controller in controllers.split(","):
            own = path
    return unified, own


def _directories(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, directory) of the process's group and of every parent, whose limits hold as well."""
    unified, own = _group_paths(root, controller)
    for version, base, path in ((2, root / "sys/fs/cgroup", unified), (1, root / "sys/fs/cgroup" / controller, own)):
        if path is None:
            continue
        group = PurePosixPath(path)
        for level in (group, *group.parents):
            yield version, base / str(level).lstrip("/")


def cpu_quota(*, root: Path = ROOT) -> float | None:
    """CPUs' worth of time this process may use, e.g. 1.5; None: as many as it likes."""
    limits = []
    for version, directory in _directories(root, "cpu"):
        if version == 2:
            quota, period = [*(_read(directory / "cpu.max") or "max 1").split(), "100000"][:2]
        else:
            quota, period = _read(directory / "cpu.cfs_quota_us") or "-1", _read(directory / "cpu.cfs_period_us") or "100000"
        if quota not in ("max", "-1") and int(quota) > 0 and int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_left(*, root: Path = ROOT) -> int | None:
    """Bytes until the tightest memory limit, page cache that can be dropped not counted as used; None: no limit."""
    left = []
    for version, directory in _directories(root, "memory"):
        if version == 2:  # beyond "high" a group may take memory, but it hardly runs any more
            limits, usage_file = [_read(directory / "memory.max"), _read(directory / "memory.high")], "memory.current"
        else:
            limits, usage_file = [_read(directory / "memory.limit_in_bytes")], "memory.usage_in_bytes"
        limit = min((int(text) for text in limits if text not in (None, "max")), default=_UNLIMITED)
        usage = _read(directory / usage_file)
        if usage is None or limit >= _UNLIMITED:
            continue
        left.append(max(0, limit - int(usage) + _page_cache(directory)))
    return min(left, default=None)


def _page_cache(directory: Path) -> int:
    """Bytes of files, such as the model's own, that the system drops when it needs the memory. Version 1 also has the totals of
    the group and its children, which its usage counts as well."""
    lines = (_read(directory / "memory.stat") or "").splitlines()
    fields = {name: value for name, _, value in (line.partition(" ") for line in lines)}
    return sum(int(fields.get(f"total_{name}", fields.get(name, "0"))) for name in ("inactive_file", "active_file"))
