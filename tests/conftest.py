"""What tests of several parts share: the demo model, fetched once into the user's cache."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    from octavo.weights.hub import resolve_model

    return resolve_model("smollm2", revision=None, progress=False)
