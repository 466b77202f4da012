"""The picture stays true: who may import whom, and what stays out of the core."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "octavo"

LEAVES = {"config", "sampling_params", "request", "step", "outputs", "metrics", "clock", "server_url"}
TEXT = {"tokenizer", "detokenizer", "chat_template", "gguf_tokenizer", "token_bytes", "prefix_files", "output_processor"}

# package or module -> the parts of octavo that it may import, beside the leaves and itself
ALLOWED: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    **dict.fromkeys(TEXT, TEXT),
    "memory": set(),
    "engine": {"memory", "executor.base"},
    "executor": set(),
    "worker": {"sampling", "models", "backends.base"},
    "sampling": {"backends.base"},
    "structured": set(),
    "models": {"layers", "weights", "quant", "backends.base"},
    "layers": {"weights", "quant", "backends.base"},
    "weights": {"quant"},
    "quant": set(),
    "backends": {"quant", "_native"},
    "build_memory": {"models", "layers", "backends.base"},
    "build_packed": {"layers", "weights", "backends.base"},
    "build_resolve": {"layers", "backends.base"},
    "build": {
        "build_memory",
        "build_packed",
        "build_resolve",
        "engine",
        "executor",
        "memory",
        "worker",
        "models",
        "layers",
        "weights",
        "quant",
        "backends",
        "structured",
        "tokenizer",
    },
    "build_simulated": {"build", "build_resolve", "engine", "executor"},
    "llm": {"build", "structured", "weights.hub", *TEXT},
    "bench": {
        "build",
        "build_resolve",
        "build_simulated",
        "engine.engine",
        "backends.base",
        "backends.cpu.ceilings",
        "executor.cost_model",
        "executor.fitted_cost",
        "executor.presets",
        "weights.packaged",
        *TEXT,
    },
    "server": {"build", "weights", "structured", *TEXT},
    "commands": {"build", "build_packed", "llm", "bench", "server", "backends", "weights", "_native", *TEXT},
    "cli": {"build", "llm", "bench", "server", "commands", "backends", "weights", "_native", *TEXT},
    "__init__": {"llm", *TEXT},
}

FORBIDDEN_EVERYWHERE = {"pickle", "cloudpickle", "dill", "marshal", "yaml"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports_of(path: Path) -> list[str]:
    """Dotted names of everything that the module imports, wherever in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def is_allowed(target: str, allowed: set[str]) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    assert part in ALLOWED, f"{part} has no place in the picture yet"
    allowed = ALLOWED[part] | LEAVES | {part, "__version__"}
    inner = [name.removeprefix("octavo.") for name in imports_of(path) if name.startswith("octavo.")]
    wrong = [name for name in inner if not is_allowed(name, allowed)]
    assert not wrong, f"{part} must not import {wrong}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_and_unsafe_loaders_stay_out(path: Path) -> None:
    relative = str(path.relative_to(PACKAGE))
    roots = {name.split(".")[0] for name in imports_of(path)}
    assert not roots & FORBIDDEN_EVERYWHERE
    if not relative.startswith(("backends/cuda", "distributed")):
        assert not roots & {"torch", "triton", "transformers"}
    calls = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert not {"eval", "exec"} & set(calls)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_owns_and_checks_without_assert(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module begins with what it owns and what it does not know"
    if path.relative_to(PACKAGE).parts[0] not in {"memory"}:
        assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)], "assert vanishes under python -O"


def test_only_leaves_are_imported_by_importing_octavo() -> None:
    code = "import sys, octavo; print({'numpy', 'tokenizers', 'starlette', 'torch'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert loaded == "set()", "import octavo stays light"
