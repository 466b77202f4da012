"""Helpers end with whoever began them, however that ends."""

import signal
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from octavo.bench.options import PaperOptions
from octavo.bench.paper.helpers import Helpers
from octavo.config import EngineConfig
from tests.server.tiny import ROOT

BUSY = """
import os, sys, time
from octavo.bench.options import PaperOptions
from octavo.bench.paper.helpers import Helpers
from octavo.config import EngineConfig

with Helpers(EngineConfig(model=sys.argv[1]), PaperOptions(out=sys.argv[2])) as helpers:
    assert helpers._pool.submit(os.getpid).result() != os.getpid()
    helpers._pool.submit(time.sleep, 600)
    print("busy", flush=True)
    time.sleep(600)
"""


def test_helpers_end_when_their_parent_is_killed(tiny: str, tmp_path: Path) -> None:
    """They have its output open: it ends when the last of them has."""
    command = [sys.executable, "-c", BUSY, tiny, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None and parent.stdout.readline() == "busy\n"
    parent.kill()
    assert parent.communicate(timeout=60)[0] == ""
    assert parent.returncode == -signal.SIGKILL


def test_an_interrupt_of_the_parent_ends_what_they_compute(tiny: str, tmp_path: Path) -> None:
    helpers = Helpers(EngineConfig(model=tiny), PaperOptions(out=str(tmp_path)))
    with pytest.raises(KeyboardInterrupt), helpers:
        helpers._pool.submit(time.sleep, 600)
        (process,) = helpers._pool._processes.values()
        raise KeyboardInterrupt
    assert wait([process.sentinel], 60)
