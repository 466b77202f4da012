"""The pool of threads beside programs that want the same cores: what is put aside, and when, must not matter."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 12
"""In which a pool whose tasks could be begun too early stood still six times of six, beside as many programs as cores."""


@pytest.fixture
def busy() -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for program in programs:
        program.kill()
        program.wait()


def test_nobody_waits_for_ever_beside_other_programs(tmp_path: Path, busy: None) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert compiler, "the kernels cannot have been built without a C++ compiler"
    sources = [Path(__file__).with_name("pool_under_load.cpp"), ROOT / "csrc/thread_pool.cpp", ROOT / "csrc/duty.cpp"]
    program = tmp_path / "pool_under_load"
    flags = ["-std=c++20", "-O2", f"-I{ROOT / 'csrc'}", "-pthread"]
    subprocess.run([compiler, *flags, *map(str, sources), "-o", str(program)], check=True)
    assert subprocess.run([str(program), str(SECONDS)], check=False, timeout=200).returncode == 0
