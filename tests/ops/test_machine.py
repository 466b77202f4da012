"""What affinity, control groups of either version and /proc allow this process: read from trees of files made for the test."""

import os
from pathlib import Path

import pytest

from octavo.backends.cpu import topology
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.control_groups import cpu_quota, memory_left
from octavo.backends.cpu.memory import available_memory


def write(root: Path, **files: str) -> Path:
    """Files under ``root``; in names, two underscores stand for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def group(root: Path, directory: str, **files: str) -> None:
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / directory / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def version_2(root: Path, path: str = "/pod/app") -> Path:
    return write(root, proc__self__cgroup=f"0::{path}")


def version_1(root: Path) -> Path:
    lines = ["12:cpu,cpuacct:/docker/abc", "5:memory:/docker/abc", "1:name=systemd:/docker/abc"]
    return write(root, proc__self__cgroup="\n".join(lines))


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(root=tmp_path) is None
    assert memory_left(root=tmp_path) is None
    version_2(tmp_path)
    group(tmp_path, "pod/app", cpu__max="max 100000", memory__max="max", memory__current="5")
    assert cpu_quota(root=tmp_path) is None
    assert memory_left(root=tmp_path) is None


def test_the_tightest_cpu_quota_of_all_parents_holds(tmp_path: Path) -> None:
    version_2(tmp_path)
    group(tmp_path, "pod/app", cpu__max="400000 100000")
    assert cpu_quota(root=tmp_path) == 4.0
    group(tmp_path, "pod", cpu__max="75000 50000")
    assert cpu_quota(root=tmp_path) == 1.5
    group(tmp_path, "pod/app", cpu__max="20000")  # the period has a default
    assert cpu_quota(root=tmp_path) == 0.2
    group(tmp_path, "pod/other", cpu__max="1000 100000")
    assert cpu_quota(root=tmp_path) == 0.2


def test_a_quota_on_the_root_group_of_a_container(tmp_path: Path) -> None:
    version_2(tmp_path, "/")
    group(tmp_path, ".", cpu__max="150000 100000", memory__max="1000", memory__current="400")
    assert cpu_quota(root=tmp_path) == 1.5
    assert memory_left(root=tmp_path) == 600


def test_version_1(tmp_path: Path) -> None:
    version_1(tmp_path)
    group(tmp_path, "cpu/docker/abc", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    group(tmp_path, "memory", memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="77")
    assert cpu_quota(root=tmp_path) is None
    assert memory_left(root=tmp_path) is None
    group(tmp_path, "cpu/docker", cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    group(tmp_path, "memory/docker/abc", memory__limit_in_bytes="9000", memory__usage_in_bytes="4000")
    assert cpu_quota(root=tmp_path) == 2.5
    assert memory_left(root=tmp_path) == 5000
    group(tmp_path, "memory/docker/abc", memory__stat="cache 900\ninactive_file 1\ntotal_inactive_file 300")
    assert memory_left(root=tmp_path) == 5300


def test_memory_left_counts_droppable_pages_and_every_parent(tmp_path: Path) -> None:
    version_2(tmp_path)
    group(tmp_path, "pod/app", memory__max="10000", memory__current="9000")
    assert memory_left(root=tmp_path) == 1000
    group(tmp_path, "pod/app", memory__stat="anon 3\ninactive_file 2500\nactive_file 900")
    assert memory_left(root=tmp_path) == 4400
    group(tmp_path, "pod", memory__max="20000", memory__current="19990")
    assert memory_left(root=tmp_path) == 10
    group(tmp_path, "pod", memory__max="20000", memory__current="20500")
    assert memory_left(root=tmp_path) == 0


def test_a_group_that_is_held_back_at_a_limit_has_it(tmp_path: Path) -> None:
    version_2(tmp_path)
    group(tmp_path, "pod/app", memory__max="max", memory__high="8000", memory__current="3000")
    assert memory_left(root=tmp_path) == 5000
    group(tmp_path, "pod/app", memory__max="7000")
    assert memory_left(root=tmp_path) == 4000
    group(tmp_path, "pod", memory__high="3500", memory__current="3000")
    assert memory_left(root=tmp_path) == 500
    group(tmp_path, "pod", memory__high="max")
    assert memory_left(root=tmp_path) == 4000


def test_available_memory_is_the_lesser_of_machine_and_group(tmp_path: Path) -> None:
    write(version_2(tmp_path), proc__meminfo="MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:      500 kB\nBuffers: 7 kB")
    assert available_memory(root=tmp_path) == 500 * 1024
    group(tmp_path, "pod/app", memory__max="100000", memory__current="40000")
    assert available_memory(root=tmp_path) == 60000
    group(tmp_path, "pod/app", memory__max="1000000000", memory__current="40000")
    assert available_memory(root=tmp_path) == 500 * 1024


def test_the_limit_of_the_address_space_counts(tmp_path: Path) -> None:
    head = "Limit                     Soft Limit           Hard Limit           Units"
    unlimited = "Max address space         unlimited            unlimited            bytes"
    limited = "Max address space         409600               unlimited            bytes"
    write(tmp_path, proc__meminfo="MemAvailable: 500 kB", proc__self__limits=f"{head}\n{unlimited}")
    write(tmp_path, proc__self__status="VmPeak:\t 900 kB\nVmSize:\t     300 kB")
    assert available_memory(root=tmp_path) == 500 * 1024
    write(tmp_path, proc__self__limits=f"{head}\n{limited}")
    assert available_memory(root=tmp_path) == 100 * 1024
    write(tmp_path, proc__self__status="VmSize: 401 kB")
    assert available_memory(root=tmp_path) == 0


def test_meminfo_without_the_line_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemTotal: 900 kB")
    with pytest.raises(OSError, match="MemAvailable"):
        available_memory(root=tmp_path)


def test_available_memory_of_this_machine() -> None:
    page = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < CpuBackend(num_threads=1).available_memory() <= page


@pytest.mark.parametrize(
    ("cores", "quota", "threads"),
    [([0, 1, 2, 3], None, 4), ([0, 1, 2, 3], "150000 100000", 2), ([5], "800000 100000", 1), ([0, 1], "1000 100000", 1)],
)
def test_one_thread_a_core_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: list[int], quota: str | None, threads: int
) -> None:
    monkeypatch.setattr(topology, "allowed_cores", lambda: cores)
    if quota:
        group(version_2(tmp_path), "pod/app", cpu__max=quota)
    assert topology.default_threads(root=tmp_path) == threads


def test_threads_are_pinned_only_when_they_use_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "allowed_cores", lambda: [2, 3, 7])
    assert topology.cores_to_pin(3) == [2, 3, 7]
    assert topology.cores_to_pin(2) == []
    assert topology.cores_to_pin(4) == []


def test_allowed_cores_are_those_of_the_affinity_mask() -> None:
    before = os.sched_getaffinity(0)
    assert topology.allowed_cores() == sorted(before)
    one = min(before)
    os.sched_setaffinity(0, {one})
    try:
        assert topology.allowed_cores() == [one]
    finally:
        os.sched_setaffinity(0, before)
