"""A server with a scripted engine, and a real one on a tiny checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.fakes import Bench
from tests.server.tiny import RunningServer, write_tiny_llama


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "tokenizer")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture(scope="session")
def server(tiny_model: Path) -> Iterator[RunningServer]:
    """One server for all tests that leave it as they found it."""
    running = RunningServer(tiny_model, "--served-model-name", "tiny", "--enable-prompt-tokens-details").wait_ready()
    yield running
    running.kill()
    running.assert_engine_lived()
