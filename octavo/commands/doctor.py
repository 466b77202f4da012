"""``octavo doctor``: what this machine can do, what Octavo would choose, and why. Changes nothing and fetches nothing."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from octavo import __version__
from octavo.commands import flags
from octavo.config import EngineConfig

OPTIONS: flags.Options = (EngineConfig,)
_PACKAGES = ("numpy", "ml-dtypes", "msgspec", "tokenizers", "jinja2", "starlette", "uvicorn", "uvloop", "prometheus-client")


def parser() -> flags.Parser:
    return flags.Parser(
        prog="octavo doctor",
        usage="octavo doctor",
        description="Say what this machine can do, what Octavo would choose and why.",
    )


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    parser().parse_args(arguments)
    flags.warn_of_unknown(environment, OPTIONS)
    for title, lines in (
        ("octavo", _versions()),
        ("machine", _machine()),
        ("instruction sets", _instruction_sets()),
        ("models", _models()),
    ):
        print(title)
        for line in lines:
            print(f"  {line}")
    return 0


def _versions() -> Iterator[str]:
    yield f"octavo {__version__}, Python {platform.python_version()} ({sys.executable})"
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} missing")
    yield ", ".join(found)


def _machine() -> Iterator[str]:
    from octavo.backends.cpu import control_groups, memory, topology

    yield f"{platform.system()} {platform.release()} on {_processor()}"
    cores, quota = topology.allowed_cores(), control_groups.cpu_quota()
    limit = "no quota" if quota is None else f"a quota of {quota:g} cores"
    threads = topology.default_threads()
    yield f"{os.cpu_count()} cores, {len(cores)} in this process's affinity, {limit}: {threads} compute threads"
    try:
        left = control_groups.memory_left()
        tail = "" if left is None else f" (control group: {_gib(left)} left)"
        yield f"{_gib(memory.available_memory())} of memory available{tail}"
    except OSError as error:
        yield f"available memory unknown: {error.strerror or error}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _instruction_sets() -> Iterator[str]:
    try:
        from octavo import _native
    except ImportError as error:
        yield f"the native module cannot be loaded ({error}): build it with `pip install .`; --backend reference works without"
        return
    usable = []
    for name, (ok, reason) in _native.cpu_features().items():
        yield f"{name:<12} {'usable' if ok else f'not usable: {reason}'}"
        if ok:
            usable.append(name)
    yield f"chosen: {usable[-1]}, the most capable usable one (--isa forces another)"


def _models() -> Iterator[str]:
    from octavo.build_packed import packed_directory
    from octavo.weights.demo import DEMO_MODELS
    from octavo.weights.hub import default_cache_dir

    directory = default_cache_dir()
    yield f"cache: {directory}"
    for alias, model in DEMO_MODELS.items():
        path = directory / model.file_name
        yield f"{alias}: {_cached(path, model.size)}"
    directory = packed_directory()
    yield f"packed by `octavo pack`: {_held(directory)} in {directory}"


def _cached(path: Path, size: int) -> str:
    try:
        if path.stat().st_size == size:
            return f"in the cache ({size / 2**20:.0f} MiB)"
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return f"unknown: {error.strerror or error}"
    return f"not in the cache; `octavo serve` fetches it once ({size / 2**20:.0f} MiB)"


def _held(directory: Path) -> str:
    """The size of a directory's files, and of what is left of some."""
    try:
        return _gib(sum(path.stat().st_size for path in directory.iterdir()))
    except OSError as error:
        is_new = isinstance(error, FileNotFoundError) and not os.path.lexists(directory)
        return _gib(0) if is_new else f"unknown ({error.strerror or error})"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
