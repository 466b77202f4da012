"""What a user may call a model; the hub's protocol against a local server, by the real client in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.config import ConfigError
from octavo.weights.hub import default_cache_dir, resolve_model
from tests.models.variants import build
from tests.weights.hub_server import COMMIT, OLDER, Hub, serve

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from octavo.config import ConfigError
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.hub import resolve_model
try:
    path = resolve_model(sys.argv[1], revision=sys.argv[2] or None, progress=False)
    print(path, open_checkpoint(path).config.num_layers)
except ConfigError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    directory = tmp_path_factory.mktemp("hub")
    build("llama2", directory, max_shard_size="50KB")
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    extra = {
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"template",
        "README.md": b"# hello",
        "modeling_evil.py": b"raise SystemExit('code ran')",
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"again",
        "original/params.json": b"{}",
        "onnx/model.safetensors": b"other",
    }
    with serve(Hub({**files, **extra}, files)) as server:
        yield server


def resolve(hub: Hub, home: Path, model: str, revision: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, model, revision],
        env={**inherited, **settings},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_hub_id_is_fetched_once_without_code_or_pickles(hub: Hub, tmp_path: Path) -> None:
    first = resolve(hub, tmp_path, "org/tiny")
    assert first.returncode == 0, first.stderr
    path, layers = first.stdout.split()
    assert layers == "3"
    assert Path(path).name == COMMIT
    names = {entry.name for entry in Path(path).iterdir()}
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json"} < names
    assert not names & {"README.md", "modeling_evil.py", "pytorch_model.bin", "consolidated.safetensors", "original", "onnx"}
    hub.requests.clear()
    again = resolve(hub, tmp_path, "org/tiny")
    assert again.stdout == first.stdout
    assert not [request for request in hub.requests if request.startswith("GET") and "/resolve/" in request]
    offline = resolve(hub, tmp_path, "org/tiny", HF_HUB_OFFLINE="1")
    assert offline.stdout == first.stdout, offline.stderr


def test_revisions(hub: Hub, tmp_path: Path) -> None:
    tagged = resolve(hub, tmp_path, "org/tiny", "v1")
    assert tagged.returncode == 0, tagged.stderr
    path = Path(tagged.stdout.split()[0])
    assert path.name == OLDER
    assert not (path / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("model", "revision", "environment", "message"),
    [
        ("org/tiny", "v9", {}, "model 'org/tiny': the hub has no revision 'v9'"),
        ("org/nothing", "", {}, "model 'org/nothing': neither a local path nor on the hub"),
        ("org/gated", "", {}, "model 'org/gated': access is gated"),
        ("org/tiny", "", {"HF_HUB_OFFLINE": "1"}, "model 'org/tiny': the hub cannot be reached"),
        ("org/tiny", "", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "model 'org/tiny': the hub cannot be reached"),
    ],
)
def test_failures_are_one_line(
    hub: Hub, tmp_path: Path, model: str, revision: str, environment: dict[str, str], message: str
) -> None:
    result = resolve(hub, tmp_path, model, revision, **environment)
    assert result.returncode == 1
    [line] = [line for line in result.stderr.splitlines() if line]
    assert line.startswith(message)


def test_paths_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "m.gguf").touch()
    for model in ("org/tiny", "smollm2", "m.gguf", str(tmp_path)):
        assert resolve_model(model) == Path(model)


NOT_MODELS = ["", "nothing", "missing.gguf", "org/missing.gguf", "./org", "a/b/c", "/no/where", "-x/y", "org/na me"]


@pytest.mark.parametrize("model", NOT_MODELS)
def test_other_names_are_refused_with_what_there_is(model: str) -> None:
    with pytest.raises(ConfigError, match="smollm2") as caught:
        resolve_model(model)
    assert "\n" not in str(caught.value)


def test_the_cache_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "octavo" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "octavo" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "octavo" / "models"


def test_the_hub_client_is_imported_only_for_hub_ids() -> None:
    modules = "sys, octavo.weights.hub, octavo.weights.checkpoint"
    script = f"import {modules}; print('huggingface_hub' in sys.modules, 'tqdm' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
