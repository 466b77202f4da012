"""A tiny model for measurements whose numbers mean nothing and must still be sound."""

import pytest

from tests.server.tiny import write_tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("bench") / "tiny"))
