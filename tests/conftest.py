"""What tests of several parts share: the demo model, fetched once into the cache, as transformers has it, and as a server."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine, and is no failure.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the servers of a test that fails have written last."""
    from tests.server.tiny import RunningServer

    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, RunningServer):
                report.sections.append((f"log of {name}", "\n".join(value.lines[-60:])))
    return report


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    from octavo.weights.hub import resolve_model

    return resolve_model("smollm2", revision=None, progress=False)


@pytest.fixture(scope="session")
def reference(smollm2_path: Path) -> Any:
    """The same model, in float32, of ``transformers``."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32)


@pytest.fixture(scope="session")
def served_smollm2(smollm2_path: Path) -> Iterator[str]:
    """The base URL, without ``/v1``, of ``octavo serve smollm2`` in its own processes. It ends well when it is asked to."""
    from tests.server.tiny import RunningServer

    server = RunningServer("smollm2")
    try:
        yield server.wait_ready().url
        assert server.stop() == 0, "\n".join(server.lines)
        server.assert_engine_lived()
    finally:
        server.kill()
