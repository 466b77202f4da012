"""Which cores this process may compute on: the affinity mask and the control group's quota. Reads, never changes."""

import math
import os
from pathlib import Path

from octavo.backends.cpu import control_groups


def allowed_cores() -> list[int]:
    """Ids of the cores in the affinity mask, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def default_threads(*, root: Path = control_groups.ROOT) -> int:
    """Compute threads that make sense here: one a core, no more than the quota rounded up."""
    quota = control_groups.cpu_quota(root=root)
    cores = len(allowed_cores())
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cores_to_pin(num_threads: int) -> list[int]:
    """One core for each thread when the threads use up all cores; else none: then the system knows better."""
    cores = allowed_cores()
    return cores if len(cores) == num_threads else []
