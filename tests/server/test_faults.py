"""An error at each stage of one request, beside others that must not notice: their outputs, the engine, the blocks."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.config import ConfigError
from octavo.server.faults import API_STAGES, ENGINE_STAGES
from octavo.server.options import ServerOptions
from tests.server.fakes import Bench, error_of
from tests.server.tiny import RunningServer

STAGES = [*API_STAGES, *ENGINE_STAGES]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENS = 60


@pytest.fixture(scope="module")
def faulty(tiny_model: Path) -> Iterator[RunningServer]:
    server = RunningServer(tiny_model, "--served-model-name", "tiny", "--inject-faults").wait_ready()
    yield server
    assert server.stop() == 0
    server.kill()


def body(number: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"tell me about the number {number}"}]
    return {"messages": messages, "max_tokens": TOKENS, "seed": number, "ignore_eos": True, "logprobs": True, **more}


def bystander(url: str, number: int) -> str:
    """Its answer, all of it: text and log-probabilities."""
    answer = httpx.post(url + CHAT, json=body(number), timeout=60)
    assert answer.status_code == 200, answer.text
    return json.dumps(answer.json()["choices"])


def fail(url: str, stage: str, *, stream: bool, n: int = 1) -> tuple[int, dict[str, Any]]:
    """The status and the error of a request that fails at ``stage``."""
    form = {"response_format": {"type": "json_object"}} if stage == "grammar" else {}
    fields = body(0, stream=stream, n=n, **form)
    answer = httpx.post(url + CHAT, json=fields, headers={"x-octavo-fault": stage}, timeout=60)
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, event, done = [line for line in answer.text.splitlines() if line]
        assert done == "data: [DONE]"
        error = json.loads(event.removeprefix("data: "))["error"]
        return error["code"], error
    return answer.status_code, error_of(answer.status_code, answer.content)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_fault_stays_with_its_request(faulty: RunningServer, stage: str, stream: bool) -> None:
    if stage == "stream" and not stream:
        assert httpx.post(faulty.url + CHAT, json=body(0), headers={"x-octavo-fault": stage}).status_code == 200
        return
    engine = faulty.engine_pid()
    alone = [bystander(faulty.url, number) for number in range(3)]
    found: dict[int, str] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: bystander(faulty.url, i)})) for i in range(3)]
    for thread in threads:
        thread.start()
    for n in (1, 3):
        status, error = fail(faulty.url, stage, stream=stream, n=n)
        assert (status, error["type"]) == (500, "InternalServerError")
        assert "injected" not in error["message"] and "under the id" in error["message"]
        error_id = error["message"].rstrip(".").rpartition(" ")[2]
        faulty.wait_line(error_id)
    for thread in threads:
        thread.join(60)
    assert [found[i] for i in range(3)] == alone
    faulty.wait_metric("octavo_kv_blocks", 0, state="used")
    for name in ("running", "waiting", "pending"):
        faulty.wait_metric(f"octavo_requests_{name}", 0)
    assert faulty.engine_pid() == engine and faulty.metric("octavo_engine_restarts_total") == 0


def test_many_faults_at_once_leave_no_file_open(faulty: RunningServer) -> None:
    engine, expected = faulty.engine_pid(), bystander(faulty.url, 9)
    files = len(os.listdir(f"/proc/{engine}/fd"))
    threads = [threading.Thread(target=fail, args=(faulty.url, stage), kwargs={"stream": True, "n": 2}) for stage in STAGES * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert bystander(faulty.url, 9) == expected
    faulty.wait_metric("octavo_kv_blocks", 0, state="used")
    assert (faulty.engine_pid(), len(os.listdir(f"/proc/{engine}/fd"))) == (engine, files)


def test_nobody_can_ask_for_a_fault_where_they_are_not_switched_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for stage in (*STAGES, "nonsense", ""):
        headers = {"x-octavo-fault": stage}
        status, _, answer = bench.call("POST", COMPLETIONS, {"prompt": "a"}, headers=headers)
        assert status == 400 and error_of(status, answer)["param"] == "x-octavo-fault"
    switched = Bench(tmp_path, ServerOptions(inject_faults=True))
    assert switched.call("POST", COMPLETIONS, {"prompt": "a"}, headers={"x-octavo-fault": "nonsense"})[0] == 400
    assert switched.call("POST", COMPLETIONS, {"prompt": "a"})[0] == 200


def test_they_are_for_this_machine_alone() -> None:
    with pytest.raises(ConfigError, match="loopback"):
        ServerOptions(host="0.0.0.0", api_key=("k",), inject_faults=True).check()
