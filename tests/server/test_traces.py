"""Traces at a collector: a real server process, and a receiver in this one that reads what it posts."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from octavo.config import ConfigError
from octavo.server.traces import Traces
from tests.server.tiny import ROOT, RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


class Collector:
    """Receives OTLP over HTTP. ``spans`` are what has come; while ``failing`` every post is refused, and while
    ``answering`` is not set none is answered."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.paths: set[str] = set()
        self.posts = 0
        self.failing = False
        self.answering = threading.Event()
        self.answering.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.posts += 1
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.answering.wait(30)
                if not collector.failing:
                    collector.take(self.path, body)
                self.send_response(400 if collector.failing else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append({pair.key: value_of(pair.value) for pair in batch.resource.attributes})
            self.spans += [span for scope in batch.scope_spans for span in scope.spans]

    def wait(self, count: int) -> list[Any]:
        """The first ``count`` spans."""
        deadline = time.monotonic() + 20
        while len(self.spans) < count:
            assert time.monotonic() < deadline, f"{len(self.spans)} of {count} spans have come"
            time.sleep(0.02)
        return self.spans[:count]

    def close(self) -> None:
        self.answering.set()
        self._http.shutdown()
        self._http.server_close()


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind or "")


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in span.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def serve(model: Path, endpoint: str, **environment: str) -> RunningServer:
    flags = ("--served-model-name", "tiny", "--otlp-traces-endpoint", endpoint, "--log-format", "json")
    return RunningServer(model, *flags, environment={**SOON, **environment}).wait_ready()


def test_a_span_for_each_request(tiny_model: Path, collector: Collector) -> None:
    server = serve(tiny_model, collector.url)
    try:
        fields = {"max_tokens": 6, "ignore_eos": True, "temperature": 0.5, "top_p": 0.9, "n": 2, "seed": 3}
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b", "x-request-id": "mine"}
        began = time.time()
        answer = httpx.post(f"{server.url}{CHAT}", json={"messages": HELLO, **fields}, headers=parent, timeout=30)
        usage = answer.json()["usage"]
        with httpx.stream("POST", f"{server.url}{COMPLETIONS}", json={"prompt": "hi", "stream": True, **fields}) as stream:
            stream.read()
        httpx.post(f"{server.url}{COMPLETIONS}", json={"prompt": "hi", "model": "other"})
        httpx.get(f"{server.url}/v1/models")
        httpx.get(f"{server.url}/health")
        chat, streamed, refused = collector.wait(3)
    finally:
        assert server.stop() == 0
    assert len(collector.spans) == 3 and collector.paths == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "octavo"

    assert (chat.name, chat.kind) == ("llm_request", chat.SPAN_KIND_SERVER)
    assert (chat.trace_id.hex(), chat.parent_span_id.hex(), chat.trace_state) == (TRACE, PARENT, "a=b")
    assert began <= chat.start_time_unix_nano / 1e9 <= chat.end_time_unix_nano / 1e9 <= time.time()
    told = attributes(chat)
    for name, value in {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.id": "chatcmpl-mine",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.n": 2,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.prompt_tokens": usage["prompt_tokens"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.completion_tokens": 12,
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "http.response.status_code": 200,
        "url.path": CHAT,
    }.items():
        assert told[name] == value, name
    latency = {name: told[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token", "e2e")}
    assert 0 <= latency["time_in_queue"] <= latency["time_to_first_token"] <= latency["e2e"] < 30
    assert "hi" not in [value for value in told.values() if isinstance(value, str)]

    assert len(streamed.trace_id) == 16 and not streamed.parent_span_id and streamed.trace_id != chat.trace_id
    assert attributes(streamed)["gen_ai.operation.name"] == "text_completion"
    assert attributes(refused)["error.type"] == "404" and "gen_ai.usage.input_tokens" not in attributes(refused)
    lines = [json.loads(line) for line in server.lines]
    assert {line["trace_id"] for line in lines if "trace_id" in line} == {span.trace_id.hex() for span in collector.spans}


def test_who_calls_decides_on_sampling_and_bad_parents_are_none(tiny_model: Path, collector: Collector) -> None:
    server = serve(tiny_model, f"{collector.url}/otlp", OTEL_SERVICE_NAME="mine")
    try:
        for parent in (f"00-{TRACE}-{PARENT}-00", "00-nonsense", "\xff", f"00-{'0' * 32}-{PARENT}-01"):
            headers = [(b"traceparent", parent.encode("latin-1"))]
            assert httpx.post(f"{server.url}{COMPLETIONS}", json={"prompt": "hi"}, headers=headers).status_code == 200
        spans = collector.wait(3)
    finally:
        assert server.stop() == 0
    assert len(collector.spans) == 3 and TRACE not in {span.trace_id.hex() for span in spans}
    assert not any(span.parent_span_id for span in spans)
    assert collector.paths == {"/otlp"} and collector.resources[0]["service.name"] == "mine"


def test_no_collector_harms_nobody(tiny_model: Path, collector: Collector) -> None:
    """Nobody at the address, one that refuses, one that never answers: requests are answered, the log says it, all ends."""
    nobody = serve(tiny_model, "http://127.0.0.1:9/v1/traces", OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="1")
    slow = serve(tiny_model, collector.url)
    try:
        collector.failing = True
        for server in (nobody, slow):
            with ThreadPoolExecutor(8) as pool:
                asked = [pool.submit(httpx.post, f"{server.url}{COMPLETIONS}", json={"prompt": "hi"}) for _ in range(40)]
            assert {answer.result().status_code for answer in asked} == {200}
            wait_line(server, "traces cannot be delivered to 127.0.0.1")
            assert httpx.get(f"{server.url}/health", timeout=1).status_code == 200
        collector.failing = False
        httpx.post(f"{slow.url}{COMPLETIONS}", json={"prompt": "hi"})
        wait_line(slow, "traces arrive at 127.0.0.1 again")
        collector.answering.clear()
        httpx.post(f"{slow.url}{COMPLETIONS}", json={"prompt": "hi"})
        posts = collector.posts
        begun = time.monotonic()
        assert (slow.stop(), nobody.stop()) == (0, 0)
        assert time.monotonic() - begun < 15 and collector.posts <= posts + 1
    finally:
        for server in (nobody, slow):
            server.kill()
    for line in (*nobody.lines, *slow.lines):
        assert json.loads(line)["level"], "and nothing but lines of the log"
    told = [line for line in nobody.lines if '"event":"traces"' in line or '"event":"library"' in line]
    assert len(told) == 1, told


def wait_line(server: RunningServer, words: str) -> None:
    deadline = time.monotonic() + 20
    while not any(words in line for line in server.lines):
        assert time.monotonic() < deadline, "\n".join(server.lines)
        time.sleep(0.02)


def test_what_was_not_sent_is_sent_at_the_end(tiny_model: Path, collector: Collector) -> None:
    server = serve(tiny_model, collector.url, OTEL_BSP_SCHEDULE_DELAY="60000")
    for _ in range(3):
        httpx.post(f"{server.url}{COMPLETIONS}", json={"prompt": "hi"})
    assert not collector.spans
    assert server.stop() == 0
    assert len(collector.spans) == 3


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://localhost:4317", "http://", "http://[", "http://a:x", "", "x"])
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint .*must be an http"):
        Traces.of(endpoint)


def test_without_the_extra_it_says_what_to_install() -> None:
    arguments = ["serve", "no-such-model", "--otlp-traces-endpoint", "http://localhost:4318"]
    code = f"import sys; sys.modules['opentelemetry'] = None; from octavo.cli import main; sys.exit(main({arguments}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 64
    assert ended.stderr == "octavo: error: --otlp-traces-endpoint needs OpenTelemetry: pip install 'octavo[otel]'\n"


def test_nothing_of_it_is_imported_without_the_flag(tiny_model: Path) -> None:
    server = RunningServer(tiny_model, environment={"PYTHONPROFILEIMPORTTIME": "1"}).wait_ready()
    httpx.post(f"{server.url}{COMPLETIONS}", json={"prompt": "hi"})
    assert server.stop() == 0
    imported = [line for line in server.lines if line.startswith("import time")]
    assert any("starlette" in line for line in imported)
    assert not [line for line in imported if "opentelemetry" in line or "protobuf" in line]


def test_the_flag_imports_nothing_before_the_port_is_open() -> None:
    code = (
        "import sys; from octavo.server.traces import Traces; Traces.of('http://localhost:4318');"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'google', 'requests', 'starlette'))])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT) == "[]\n"
