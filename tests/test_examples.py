"""Every example runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_offline(smollm2_path: Path) -> None:
    assert run("offline.py").count("tokens/s") == 2


def test_branches(smollm2_path: Path) -> None:
    output = run("branches.py")
    assert output.count("\n") >= 6 and "copy-on-writes 3" in output


def test_beams(smollm2_path: Path) -> None:
    output = run("beams.py")
    assert output.count("\nbest of 8, ") == 2 and output.count("beam -") == 2 and ", shared " in output


def test_pinned(smollm2_path: Path) -> None:
    first, *answers = run("pinned.py").splitlines()
    pinned = first.removeprefix("pinned ").removesuffix(" tokens")
    assert int(pinned) >= 128 and len([line for line in answers if line.startswith(f"{pinned} of ")]) == 2


def test_every_example_is_tested() -> None:
    offline = {"offline.py", "branches.py", "beams.py", "pinned.py"}
    served = {"client.py", "beams_client.py", "tools.py", "short_beside_long.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == offline | served


@pytest.mark.usefixtures("smollm2_path")
def test_client(served_smollm2: str) -> None:
    output = run("client.py", f"{served_smollm2}/v1")
    assert "--- 3:" in output and "--- streamed:" in output


@pytest.mark.usefixtures("smollm2_path")
def test_beams_client(served_smollm2: str) -> None:
    output = run("beams_client.py", f"{served_smollm2}/v1")
    assert output.count("\n  ") >= 4 and output.count("best: ") == 1


@pytest.mark.usefixtures("smollm2_path")
def test_tools(served_smollm2: str) -> None:
    output = run("tools.py", f"{served_smollm2}/v1")
    assert output.startswith("get_weather({'city': '") and "\nstreamed: get_weather{" in output


@pytest.mark.usefixtures("smollm2_path")
def test_short_beside_long(served_smollm2: str) -> None:
    output = run("short_beside_long.py", f"{served_smollm2}/v1", "600")
    assert "short alone" in output and "beside a prompt of 600 tokens" in output
