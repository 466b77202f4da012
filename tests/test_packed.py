"""Packed weights that are kept: what starts from them gives the same answers, and what is of something else is not used."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo import build, build_memory, cli
from octavo.build_packed import packed_directory
from octavo.config import ConfigError, EngineConfig
from octavo.layers.loader import Loader
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from tests.server.tiny import ROOT, RunningServer, write_tiny_llama

FORMATS: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"quantization": "int8"},
    {"quantization": "int4", "activation_bits": 8},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return packed_directory()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny")


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is packed while a model is loaded."""
    packed: list[str] = []
    pack = Loader._pack

    def spy(self: Loader, names: Any, *arguments: Any) -> Any:
        packed.extend(names)
        return pack(self, names, *arguments)

    monkeypatch.setattr(Loader, "_pack", spy)
    return packed


def config(model: Path | str, **changes: Any) -> EngineConfig:
    return EngineConfig(model=str(model), swap_space=0.0, num_gpu_blocks_override=64, max_model_len=128, **changes)


def answers(config: EngineConfig) -> list[tuple[int, float]]:
    """Tokens and their log-probabilities."""
    engine = build.load(config).engine
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, detokenize=False, logprobs=1)
    for i in range(3):
        engine.add(Request(id=str(i), prompt_token_ids=[5, 6, 7 + i], params=params, seed=0, arrival_time=0.0))
    found: list[tuple[int, float]] = []
    while engine.has_work:
        for delta in engine.step():
            assert delta.logprobs is not None
            found += zip(delta.token_ids, (entry.logprob for entry in delta.logprobs), strict=True)
    engine.shutdown()
    return found


def pack(config: EngineConfig) -> Path:
    path, size = build.pack(config, lambda phase, fraction: None)
    assert path.stat().st_size == size
    return path


@pytest.mark.parametrize("changes", FORMATS)
def test_answers_are_the_same(changes: dict[str, Any], tiny: Path, cache: Path, packings: list[str]) -> None:
    wanted = config(tiny, **changes)
    expected = answers(wanted)
    assert len(expected) == 18 and packings and not cache.exists()
    path = pack(wanted)
    assert list(cache.iterdir()) == [path]
    packings.clear()
    assert answers(wanted) == expected
    assert not packings, "all of it was there"


def test_of_a_gguf_file(smollm2_path: Path, packings: list[str]) -> None:
    wanted = config(smollm2_path)
    expected = answers(wanted)
    size = pack(wanted).stat().st_size
    packings.clear()
    assert answers(wanted) == expected and not packings
    assert size < 1.05 * smollm2_path.stat().st_size


def test_what_is_of_something_else_is_left_alone(
    tiny: Path, cache: Path, packings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    paths = {str(changes): pack(config(tiny, **changes)) for changes in FORMATS}
    assert len(set(paths.values())) == 4 and set(cache.iterdir()) == set(paths.values())
    packings.clear()
    answers(config(tiny, dtype="float32", isa="generic"))
    assert packings and not caplog.records, "of other kernels nothing is kept, and that is no news"
    weights = tiny / "model.safetensors"
    stamp = weights.stat().st_mtime_ns
    weights.write_bytes(weights.read_bytes())
    os.utime(weights, ns=(stamp, stamp))  # as in images whose files all have one time
    packings.clear()
    expected = answers(config(tiny, dtype="float32"))
    assert packings and "run `octavo pack` again" in caplog.text
    assert pack(config(tiny, dtype="float32")) == paths[str(FORMATS[0])], "in the place of the other"
    packings.clear()
    assert answers(config(tiny, dtype="float32")) == expected and not packings


def test_of_another_build_nothing_is_used(tiny: Path, packings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pack(config(tiny))
    packings.clear()
    monkeypatch.setattr("octavo.backends.cpu.backend.CpuBackend.build", property(lambda self: "another"))
    answers(config(tiny))
    assert packings


def test_a_damaged_file_is_left_alone(tiny: Path, packings: list[str], caplog: pytest.LogCaptureFixture) -> None:
    path = pack(config(tiny))
    whole = path.read_bytes()
    for content in (whole[:-64], b"", whole[:8] + b"nonsense" + whole[16:]):
        path.write_bytes(content)
        packings.clear()
        caplog.clear()
        build.load(config(tiny)).engine.shutdown()
        assert packings and f"{path} is damaged" in caplog.text and "run `octavo pack` again" in caplog.text
    pack(config(tiny))
    packings.clear()
    build.load(config(tiny)).engine.shutdown()
    assert not packings


@pytest.mark.parametrize("moment", ["start backend", "load weights", "write"])
def test_a_model_that_is_replaced_meanwhile_is_not_packed(moment: str, tiny: Path, cache: Path) -> None:
    """What was read is of the one, and the file would be taken for the other's."""
    weights, other = tiny / "model.safetensors", tiny / "other"
    other.write_bytes(weights.read_bytes())

    def replace(phase: str, fraction: float) -> None:
        if phase == moment and other.exists():
            other.replace(weights)

    with pytest.raises(ConfigError, match="changed while it was being packed; pack it again"):
        build.pack(config(tiny), replace)
    assert not other.exists() and not cache.exists()
    pack(config(tiny))


@pytest.mark.parametrize("changes", [{"backend": "reference"}, {"load_format": "dummy"}])
def test_what_cannot_be_kept(changes: dict[str, Any], tiny: Path, cache: Path) -> None:
    with pytest.raises(ConfigError, match="can be kept packed"):
        pack(config(tiny, **changes))
    assert not cache.exists()


def test_without_a_home_nothing_is_looked_for(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user nobody knows."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", staticmethod(nowhere))
    assert answers(config(tiny))
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        pack(config(tiny))


def test_its_memory_counts(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file's memory is said to be available, but the pool may not be made of it."""
    seen: list[int] = []
    resolve = build_memory.resolve_num_blocks

    def spy(*arguments: Any, weight_bytes: int, **named: Any) -> int:
        seen.append(weight_bytes)
        return resolve(*arguments, weight_bytes=weight_bytes, **named)

    monkeypatch.setattr(build, "resolve_num_blocks", spy)
    size = pack(config(tiny)).stat().st_size
    build.load(config(tiny)).engine.shutdown()
    assert seen[-1] >= size


def test_the_command_and_a_server_that_starts_from_it(tiny: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pack", str(tiny), "--quantization", "int8"]) == 0
    told = capsys.readouterr()
    path = Path(told.out.strip())
    assert path.parent == cache and path.is_file() and "MiB, in " in told.err
    assert cli.main(["doctor"]) == 0
    assert f"GiB in {cache}" in capsys.readouterr().out
    server = RunningServer(tiny, "--quantization", "int8").wait_ready()
    try:
        maps = Path(f"/proc/{server.engine_pid()}/maps").read_text()
        assert path.name in maps
        assert server.stop() == 0
    finally:
        server.kill()


def test_a_command_that_is_ended_leaves_nothing(tiny: Path, cache: Path) -> None:
    """What the end of a process that cannot do anything more has left, the next removes."""
    code = (
        "import os, signal, sys; from octavo import build_packed, cli; write = build_packed.write_packed_file\n"
        "def end(_): os.kill(os.getpid(), int(sys.argv[1]))\n"
        "build_packed.write_packed_file = lambda *a, progress, **k: write(*a, progress=end, **k)\n"
        f"sys.exit(cli.main(['pack', {str(tiny)!r}]))"
    )

    def ended_by(number: signal.Signals) -> int:
        return subprocess.run([sys.executable, "-c", code, str(int(number))], check=False, cwd=ROOT).returncode

    assert ended_by(signal.SIGTERM) == 128 + signal.SIGTERM and not list(cache.iterdir())
    assert ended_by(signal.SIGKILL) == -signal.SIGKILL and len(list(cache.glob(".*.part"))) == 1
    pack(config(tiny))
    assert len(list(cache.iterdir())) == 1


def test_processes_that_pack_at_once_leave_one_file(tiny: Path, cache: Path) -> None:
    command = [sys.executable, "-m", "octavo.cli", "pack", str(tiny)]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(list(cache.iterdir())) == 1
    build.load(config(tiny)).engine.shutdown()
