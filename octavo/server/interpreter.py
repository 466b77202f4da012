"""An interpreter of this server: how a further one is started, with the same Python and package and nothing from the current
directory, and how one is asked what it does."""

import faulthandler
import os
import signal
import sys
from pathlib import Path


def command(module: str, *arguments: str) -> list[str]:
    """Runs a module of this package."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """This process's, in which the package is found where this one was."""
    package_home = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [package_home, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": search}


TELL_STACKS = signal.SIGUSR1


def tell_stacks() -> None:
    """From now on this process writes the Python stacks of its threads to stderr: when it is sent ``TELL_STACKS``, also in the
    middle of native code, and when it dies of a fault in that."""
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
        faulthandler.register(TELL_STACKS, sys.__stderr__)
