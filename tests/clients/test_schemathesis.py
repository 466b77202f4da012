"""Requests drawn from the API's own description: whatever comes, it is answered as described, by the same engine.

``SCHEMATHESIS_EXAMPLES`` is how many are drawn for each route and kind; the default keeps this short.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.tiny import RunningServer, write_tiny_llama

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "15")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
PROMPT = {"prompt": [5, 6, 7, 8], "max_tokens": 16, "temperature": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def drawn_upon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Its context is short: requests may ask for 128 answers as long as it allows."""
    model = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=64)
    running = RunningServer(model, "--served-model-name", "tiny").wait_ready()
    yield running
    running.kill()


def run_schemathesis(url: str, directory: Path) -> str:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", CHECKS]
    options = ["--max-examples", EXAMPLES, "--phases", "coverage,fuzzing", "--no-color", "--seed", "1", "--no-shrink"]
    done = subprocess.run([*command, *options], check=False, capture_output=True, text=True, cwd=directory, timeout=3000)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_every_answer_is_as_described(drawn_upon: RunningServer, tmp_path: Path) -> None:
    engine, process = drawn_upon.engine_pid(), drawn_upon.process.pid
    before = httpx.post(f"{drawn_upon.url}/v1/completions", json=PROMPT).json()["choices"]
    blocks = drawn_upon.metric("octavo_kv_blocks", state="used")
    out = run_schemathesis(drawn_upon.url, tmp_path)
    found = re.search(r"(\d+) generated", out)
    assert found is not None and int(found.group(1)) > 1000
    assert (drawn_upon.process.pid, drawn_upon.find_engine()) == (process, engine) and drawn_upon.process.poll() is None
    drawn_upon.wait_metric("octavo_requests_running", 0)
    drawn_upon.wait_metric("octavo_kv_blocks", blocks, state="used")
    assert httpx.post(f"{drawn_upon.url}/v1/completions", json=PROMPT).json()["choices"] == before
    codes = {line.partition("code=")[2][:5].strip('"}') for line in _responses(drawn_upon)}
    assert {"200", "400"} <= codes and not {code for code in codes if code.startswith("5")}


def _responses(server: RunningServer) -> list[str]:
    text = httpx.get(f"{server.url}/metrics").text
    return [line for line in text.splitlines() if line.startswith("octavo_http_responses_total")]
