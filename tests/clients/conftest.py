"""One real server on a tiny checkpoint, that other people's clients talk to; it is the same process with the same engine when
they are done."""

from collections.abc import Iterator

import pytest

from tests.server.tiny import RunningServer, write_tiny_llama

KEY = "sk-clients"


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
    running = RunningServer(model, "--served-model-name", "tiny", "--api-key", KEY).wait_ready()
    try:
        engine = running.engine_pid()
        yield running
        assert running.find_engine() == engine, "the engine that began is the one that ended"
        assert running.stop() == 0, "\n".join(running.lines[-20:])
    finally:
        running.kill()
