"""A server with a scripted engine, and a real one on a tiny checkpoint."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.fakes import Bench
from tests.server.tiny import RunningServer, write_tiny_llama


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "tokenizer")


@pytest.fixture
def many_files() -> Iterator[None]:
    """What is opened meanwhile gets a number that is too high for ``select``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("needs 2048 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        number = 0
        while number < 1024:
            number = os.open(os.devnull, os.O_RDONLY)
            held.callback(os.close, number)
        yield


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
