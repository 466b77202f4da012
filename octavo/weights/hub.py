"""``resolve_model``: what a user calls a model -> a local path, fetched first if need be.

Owns the order of meanings: an existing path, a demo model's alias, a hub id. The hub's own library does the talking
(``HF_ENDPOINT``, ``HF_HOME``, ``HF_TOKEN`` and its cache work as everywhere) and is imported only when a hub id is given.
Code and pickles are never fetched.
"""

import re
from pathlib import Path

import msgspec

from octavo.config import ConfigError, EngineConfig
from octavo.weights.demo import DEMO_MODELS, fetch_demo_model
from octavo.weights.packaged import cache_directory

ALLOW_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
IGNORE_PATTERNS = ["*/*", "consolidated*.safetensors"]
"""Only the top folder, and no second copy of the weights in a vendor's own layout."""

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def default_cache_dir() -> Path:
    """Where demo models are kept: ``$XDG_CACHE_HOME/octavo/models``, by default under ``~/.cache``."""
    return cache_directory("models")


def resolve_model(model: str, *, revision: str | None = None, progress: bool = True, cache_dir: Path | None = None) -> Path:
    """The directory or .gguf file that ``model`` means: a path, an alias of ``DEMO_MODELS``, or a hub id ``org/name``.

    ``revision`` is a branch, tag or commit of the hub. Raises ``ConfigError``, one line, if there is no such model or it
    cannot be fetched.
    """
    path = Path(model).expanduser()
    if model and path.exists():
        return path
    if model in DEMO_MODELS:
        return fetch_demo_model(model, cache_dir=cache_dir or default_cache_dir(), progress=progress)
    if _HUB_ID.fullmatch(model) and path.suffix.lower() != ".gguf":
        return _fetch_from_hub(model, revision=revision, progress=progress)
    raise ConfigError(
        f"model {model[:200]!r}: no such directory or .gguf file, no demo model ({', '.join(sorted(DEMO_MODELS))})"
        " and no hub id like org/name"
    )


def resolved(config: EngineConfig) -> EngineConfig:
    """``config`` with a model that is here, fetched if need be: who opens it later opens the same. A demo model keeps its name,
    for messages. Raises ``ConfigError`` as ``resolve_model``."""
    path = resolve_model(config.model, revision=config.revision)
    return config if config.model in DEMO_MODELS else msgspec.structs.replace(config, model=str(path))


def _fetch_from_hub(repo: str, *, revision: str | None, progress: bool) -> Path:
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined] # not in its __all__

    if not progress:
        disable_progress_bars()
    try:
        found = huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=ALLOW_PATTERNS, ignore_patterns=IGNORE_PATTERNS
        )
    except Exception as error:  # whatever the library, its transports and the file system raise: the user needs one line
        raise ConfigError(_explain(repo, revision, error)) from error
    return Path(found)


def _explain(repo: str, revision: str | None, error: Exception) -> str:
    """One line that names the model and what to do."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"model {repo!r}: access is gated; accept its terms on the hub and set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"model {repo!r}: the hub has no revision {revision!r}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"model {repo!r}: neither a local path nor on the hub (a private model needs HF_TOKEN)"
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return f"model {repo!r}: the hub cannot be reached and the model is not in its cache; give a local directory"
    reason = (str(error).strip().splitlines() or [""])[0][:200]
    return f"model {repo!r}: download failed ({type(error).__name__}: {reason}); try again or give a local directory"
