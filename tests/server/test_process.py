"""The real thing: ``octavo serve`` in its own processes, met with the official client, signals and plain sockets."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.server import interpreter
from tests.server.test_structured import MULTIPLE
from tests.server.tiny import ROOT, RunningServer, write_tiny_llama


@contextlib.contextmanager
def running(model: Path, *flags: str, **options: Any) -> Iterator[RunningServer]:
    server = RunningServer(model, "--served-model-name", "tiny", *flags, **options)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(api_key="EMPTY", base_url=f"{server.url}/v1", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny" and model.owned_by == "octavo"
    assert model.model_dump()["max_model_len"] == 512


def test_chat_n4_shares_the_prompts_blocks(client: openai.OpenAI, server: RunningServer) -> None:
    copies = server.metric("octavo_copy_on_writes_total")
    response = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Write the Fibonacci sequence in Python"}],
        n=4,
        temperature=0.8,
        max_tokens=24,
        extra_body={"ignore_eos": True},
    )
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in response.choices}) == 4
    assert response.usage is not None and response.usage.completion_tokens == 4 * 24
    assert server.metric("octavo_copy_on_writes_total") == copies + 3


def test_streamed_chat_equals_the_whole_answer(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "n": 2,
        "seed": 5,
        "temperature": 1.0,
        "max_tokens": 30,
    }
    whole = client.chat.completions.create(**fields)
    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage is not None and whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_streamed_completion_equals_the_whole_answer(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "prompt": ["The", "A longer prompt"], "temperature": 0, "max_tokens": 20}
    whole = client.completions.create(**fields, logprobs=2)
    texts = ["", ""]
    for chunk in client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    for choice in whole.choices:
        assert choice.logprobs is not None and choice.logprobs.tokens is not None
        assert len(choice.logprobs.tokens) == 20


def test_seeds_make_draws_repeatable_and_their_absence_does_not(client: openai.OpenAI) -> None:
    def draw(**fields: Any) -> str:
        answer = client.completions.create(model="tiny", prompt="Once", max_tokens=24, temperature=1.0, **fields)
        return str(answer.choices[0].text)

    assert draw(seed=7) == draw(seed=7)
    assert draw(seed=7) != draw(seed=8)
    assert draw() != draw()


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "prompt": "Once", "max_tokens": 40, "temperature": 0}
    text = client.completions.create(**fields).choices[0].text
    stop = text[8:11]
    cut = client.completions.create(**fields, stop=[stop]).choices[0]
    assert cut.text == text[: text.index(stop)] and cut.finish_reason == "stop"
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**fields, stop=[stop], stream=True))
    assert streamed == cut.text


def test_tokenize_and_back(server: RunningServer) -> None:
    tokens = httpx.post(f"{server.url}/tokenize", json={"prompt": "Hello world", "return_token_strs": True}).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) and tokens["max_model_len"] == 512
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert back["prompt"].endswith("Hello world") and "warnings" not in {*tokens, *back}
    for path, fields in (("/tokenize", {"prompt": "Hello"}), ("/detokenize", {"tokens": [1]})):
        answer = httpx.post(f"{server.url}{path}", json={**fields, "promt": 1}).json()
        assert answer["warnings"] == ["unknown field `promt` was ignored"]


def test_prefix_hits_are_reported(server: RunningServer) -> None:
    fields = {"prompt": list(range(10, 90)), "max_tokens": 1, "temperature": 0}
    httpx.post(f"{server.url}/v1/completions", json=fields)
    usage = httpx.post(f"{server.url}/v1/completions", json=fields).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 64
    other_tenant = httpx.post(f"{server.url}/v1/completions", json={**fields, "cache_salt": "other"}).json()["usage"]
    assert other_tenant["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_request_that_the_engine_refuses_is_refused_alone(server: RunningServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a", logprobs=21)
    assert caught.value.status_code == 400 and caught.value.param == "logprobs"
    assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices[0].finish_reason == "length"


def test_metrics_parse_and_stay_few(server: RunningServer) -> None:
    httpx.get(f"{server.url}/v1/nothing")
    families = list(text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text))
    samples = {sample.name for family in families for sample in family.samples}
    assert sum(len(family.samples) for family in families) <= 300
    assert {"octavo_saturation", "octavo_kv_blocks", "octavo_copy_on_writes_total", "octavo_preemptions_total"} <= samples
    assert {"octavo_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"} <= samples
    assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds_bucket"} <= samples
    blocks = {state: server.metric("octavo_kv_blocks", state=state) for state in ("total", "used", "cached", "free")}
    assert blocks["used"] + blocks["cached"] + blocks["free"] == blocks["total"]


def raw_post(server: RunningServer, path: str, body: dict[str, Any]) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    content = json.dumps(body).encode()
    sock = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    sock.sendall(head.encode() + content)
    return sock


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: RunningServer, stream: bool, reset: bool) -> None:
    gone = server.metric("octavo_clients_gone_total")
    fields = {"prompt": ["x"] * 64, "max_tokens": 450, "ignore_eos": True, "stream": stream, "n": 16}
    sock = raw_post(server, "/v1/completions", fields)
    if stream:
        assert b"200 OK" in sock.recv(100)
    else:
        server.wait_until_busy()
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    server.wait_metric("octavo_clients_gone_total", gone + 1)
    server.wait_metric("octavo_requests_running", 0)
    server.wait_metric("octavo_kv_blocks", 0, state="used")


def test_the_engine_killed_in_mid_stream(tiny_model: Path) -> None:
    """Streams are told, what had no token is answered by the next engine, and the server goes on."""
    with running(tiny_model, "--max-num-seqs", "1") as server:
        server.wait_ready()
        url = f"{server.url}/v1/completions"
        fields = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        expected = httpx.post(url, json={**fields, "max_tokens": 5}).json()["choices"][0]["text"]
        queued: list[httpx.Response] = []
        with httpx.stream("POST", url, json={**fields, "stream": True}, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(server.engine_pid(), signal.SIGSTOP)
            waiter = threading.Thread(
                target=lambda: queued.append(httpx.post(url, json={**fields, "max_tokens": 5}, timeout=60)), daemon=True
            )
            waiter.start()
            server.wait_metric("octavo_requests_pending", 1)
            os.kill(server.engine_pid(), signal.SIGKILL)
            events = [line for line in lines if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        error = json.loads(events[-2].removeprefix("data: "))["error"]
        assert error["type"] == "engine_restarted"
        waiter.join(60)
        assert queued[0].status_code == 200 and queued[0].json()["choices"][0]["text"] == expected
        assert httpx.get(f"{server.url}/healthz/ready").status_code == 200
        assert server.metric("octavo_engine_restarts_total") == 1
        assert server.stop() == 0


def test_a_stopped_engine_is_replaced(tiny_model: Path) -> None:
    """Its socket stays open and it would never say anything again: only the watchdog notices."""
    with running(tiny_model) as server:
        server.wait_ready()
        url = f"{server.url}/v1/completions"
        fields = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url, json=fields, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(server.engine_pid(), signal.SIGSTOP)
            rest = [line for line in lines if line]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["type"] == "engine_restarted" and rest[-1] == "data: [DONE]"
        server.wait_metric("octavo_ready", 1)
        assert httpx.post(url, json={"prompt": "x"}).status_code == 200
        assert server.stop() == 0


def test_both_processes_tell_where_their_threads_are(tiny_model: Path) -> None:
    """Asked by SIGUSR1, at any time, whatever their threads do; they go on serving."""
    with running(tiny_model) as server:
        server.wait_ready()
        for pid, place in ((server.process.pid, "in run"), (server.engine_pid(), "in receive")):
            for _ in range(100):
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.002)
            server.wait_line(place)
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}).status_code == 200
        assert server.stop() == 0


def test_an_engine_that_is_given_up_tells_where_its_threads_are(tiny_model: Path) -> None:
    with running(tiny_model) as server:
        server.wait_ready()
        os.kill(server.engine_pid(), interpreter.LAST_WORDS)
        server.wait_line("in receive")


def test_three_crashes_end_the_server(tiny_model: Path) -> None:
    with running(tiny_model) as server:
        server.wait_ready()
        for _ in range(3):
            pid = server.engine_pid()
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while server.process.poll() is None and server.find_engine() in (pid, None):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert server.join() == 70
        assert [line for line in server.lines if line.startswith("octavo: error: the engine failed 3 times")]


def test_the_engine_ends_when_the_api_process_is_killed(tiny_model: Path) -> None:
    with running(tiny_model) as server:
        server.wait_ready()
        pid = server.engine_pid()
        server.process.kill()
        server.process.wait()
        wait_ended(pid)


def wait_ended(pid: int) -> None:
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_has_hardly_begun_stops_when_asked(tiny_model: Path, number: signal.Signals) -> None:
    """Also where a terminal or a service manager asks its engine too, whose first line has not run yet."""
    with running(tiny_model) as server:
        engine = server.engine_pid()
        for pid in (engine, server.process.pid):
            os.kill(pid, number)
        assert server.join() == 0 and not any("Traceback" in line for line in server.lines)
        wait_ended(engine)


def test_a_terminal_that_closes_ends_no_server(tiny_model: Path) -> None:
    """Neither one that has hardly begun, nor one that has no file to read again; and their engines live."""
    with running(tiny_model) as server:
        for _ in range(2):
            for pid in (server.engine_pid(), server.process.pid):
                os.kill(pid, signal.SIGHUP)
            server.wait_ready()
        server.wait_line("neither a keys file nor a usage log")
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}).status_code == 200
        assert server.stop() == 0
        server.assert_engine_lived()


def test_a_log_that_nobody_reads_stops_nothing(tiny_model: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    port = free_port()
    command = [sys.executable, "-m", "octavo.cli", "serve", str(tiny_model), "--port", str(port), "--swap-space", "0.01"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=writing, cwd=ROOT, env=environment) as process:
        try:
            os.close(writing)
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: answers(f"{url}/health"))
            for _ in range(3):
                assert httpx.post(f"{url}/v1/completions", json={"prompt": "x"}).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(reading)


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_sigterm_finishes_what_runs_and_refuses_the_rest(tiny_model: Path) -> None:
    with running(tiny_model) as server:
        server.wait_ready()
        url = f"{server.url}/v1/completions"
        fields = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url, json=fields, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(server.engine_pid(), signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            while httpx.get(f"{server.url}/healthz/ready").status_code == 200:
                time.sleep(0.01)
            refused = httpx.post(url, json={"prompt": "y"})
            assert refused.status_code == 503 and refused.headers["connection"] == "close"
            assert "retry-after" in refused.headers
            os.kill(server.engine_pid(), signal.SIGCONT)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]" or rest[-1] == "data: [DONE]"
        assert any('"finish_reason":"length"' in line for line in rest)
        assert server.join() == 0


def test_what_cannot_finish_in_time_is_told_so(tiny_model: Path) -> None:
    with running(tiny_model, "--drain-timeout", "0.1") as server:
        server.wait_ready()
        fields = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=fields, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(server.engine_pid(), signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert '"error"' in rest[-2] and rest[-1] == "data: [DONE]"
        assert server.join() == 0


def test_whose_grammar_is_still_being_compiled_is_told_so(tiny_model: Path) -> None:
    with running(tiny_model, "--drain-timeout", "0.1") as server:
        server.wait_ready()
        fields = {"prompt": "x", "guided_json": MULTIPLE}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(httpx.post, f"{server.url}/v1/completions", json=fields, timeout=60)
            while len(server.grammar_pids()) < 3:  # the two lanes, and the one that compiles
                assert not answer.done()
                time.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            assert answer.result().status_code == 503
        lanes = server.grammar_pids()
        assert server.join() == 0 and not lanes


def test_a_second_signal_stops_at_once(tiny_model: Path) -> None:
    with running(tiny_model) as server:
        server.wait_ready()
        sock = raw_post(server, "/v1/completions", {"prompt": "x", "max_tokens": 450, "ignore_eos": True, "stream": True})
        assert b"200 OK" in sock.recv(100)
        os.kill(server.engine_pid(), signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        while httpx.get(f"{server.url}/healthz/ready").status_code == 200:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.join() == 0


def serve_and_wait(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "octavo.cli", "serve", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
    )


def test_a_taken_port(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = serve_and_wait(str(tiny_model), "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 69
    assert len(ended.stderr.splitlines()) == 1 and "is in use" in ended.stderr


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("architecture", "FooForCausalLM"),
        ("tokenizer", "tokenizer.json"),
        ("truncated", "model.safetensors"),
        ("nothing", "no such directory"),
        ("too long", "--max-model-len"),
    ],
)
def test_bad_models_are_one_line_and_64(tmp_path: Path, what: str, words: str) -> None:
    model, flags = tmp_path / "model", [] if what != "too long" else ["--max-model-len", "100k"]
    if what != "nothing":
        write_tiny_llama(
            model, **({"architectures": ["FooForCausalLM"], "model_type": "foo"} if what == "architecture" else {})
        )
    if what == "tokenizer":
        (model / "tokenizer.json").unlink()
    if what == "truncated":
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
    ended = serve_and_wait(str(model), "--port", "0", *flags)
    assert ended.returncode == 64, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("octavo: error: ") and words in line


def test_another_machine_needs_a_key(tiny_model: Path) -> None:
    ended = serve_and_wait(str(tiny_model), "--host", "0.0.0.0", "--port", "0")
    assert ended.returncode == 64 and "--api-key" in ended.stderr


def test_the_start_is_accounted_for(server: RunningServer) -> None:
    messages = [json.loads(line).get("message", "") for line in server.lines]
    (account,) = [message for message in messages if message.startswith("start-up ")]
    total, _, parts = account.removeprefix("start-up ").partition(" s: ")
    assert abs(float(total) - sum(float(part.rpartition(" ")[2]) for part in parts.split(", "))) < 0.01 * (parts.count(",") + 2)
    assert any(message.startswith("# device blocks: ") and "# host blocks: " in message for message in messages)


def test_the_port_answers_while_the_model_loads(tiny_model: Path) -> None:
    port = free_port()
    with running(tiny_model, "--port", str(port)) as server:
        os.kill(server.engine_pid(), signal.SIGSTOP)
        answer = httpx.get(f"http://127.0.0.1:{port}/healthz/startup", timeout=30)
        assert answer.status_code == 503 and set(answer.json()) == {"phase", "progress"}
        busy = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "x"})
        assert busy.status_code == 503 and "retry-after" in busy.headers
        assert httpx.get(f"http://127.0.0.1:{port}/healthz/live").status_code == 200
        os.kill(server.engine_pid(), signal.SIGCONT)
        server.wait_ready()
        assert httpx.get(f"http://127.0.0.1:{port}/healthz/startup").status_code == 200
