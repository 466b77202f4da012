"""How a further interpreter of this server is started: the same Python and package, nothing from the current directory."""

import os
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
