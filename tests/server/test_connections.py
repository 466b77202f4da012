"""Connections that misbehave: silent, endless, garbled, or not reading. Plain sockets against the real process."""

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.server.http_server import make_server
from tests.server.fakes import Bench, error_of
from tests.server.test_process import running
from tests.server.tiny import RunningServer


@pytest.fixture(scope="module")
def impatient(tiny_model: Path) -> Iterator[RunningServer]:
    flags = ["--read-timeout", "0.5", "--write-timeout", "0.5", "--max-header-bytes", "4096"]
    server = RunningServer(tiny_model, "--served-model-name", "tiny", *flags).wait_ready()
    yield server
    assert server.stop() == 0


def connect(server: RunningServer, data: bytes = b"") -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(20)
    sock.sendall(data)
    return sock


def until_closed(sock: socket.socket) -> bytes:
    """All that comes until the server closes, which it has to do by itself."""
    found = bytearray()
    with sock, contextlib.suppress(ConnectionResetError):
        while data := sock.recv(1 << 16):
            found += data
    return bytes(found)


def refusal(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return error_of(int(head.split()[1]), body)


def post(fields: dict[str, Any], version: str = "1.1") -> bytes:
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behind", [0, 1])
def test_a_client_that_leaves_is_noticed_with_a_request_behind_the_one_that_is_answered(
    tmp_path: Path, behind: int, stream: bool
) -> None:
    bench = Bench(tmp_path / "tokenizer")
    bench.engine.silent = True

    async def scene() -> None:
        server = make_server(bench.app, bench.service.options)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(post({"prompt": "one", "stream": stream}) * (1 + behind))
            async with asyncio.timeout(20):
                while not bench.engine.requests:
                    await asyncio.sleep(0.01)
                writer.transport.abort()
                while not bench.engine.aborted:
                    await asyncio.sleep(0.01)
            server.should_exit = True
            await serving

    asyncio.run(scene())
    assert len(bench.engine.requests) == 1


@pytest.mark.parametrize("data", [b"", b"\r\n", b"GE", b"GET / HTTP/1.1\r\nhost: x\r\nx-ha"])
def test_a_connection_that_sends_no_request_is_closed(impatient: RunningServer, data: bytes) -> None:
    assert until_closed(connect(impatient, data)) == b""


def test_headers_that_drip_are_not_waited_for(impatient: RunningServer) -> None:
    sock = connect(impatient, b"GET /version HTTP/1.1\r\n")
    with contextlib.suppress(OSError):
        for _ in range(400):
            sock.sendall(b"x: y\r\n")
            time.sleep(0.05)
        pytest.fail("headers that never end were waited for")


def test_a_connection_kept_alive_by_nothing_is_closed(impatient: RunningServer) -> None:
    sock = connect(impatient, b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
    assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    with contextlib.suppress(OSError):
        for _ in range(400):
            sock.sendall(b"\r\n")
            time.sleep(0.05)
        pytest.fail("empty lines keep a connection open")


def test_requests_one_after_the_other_share_a_connection(impatient: RunningServer) -> None:
    sock = connect(impatient)
    for _ in range(3):
        sock.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b'"}'):
            answer += sock.recv(1000)
        time.sleep(0.6)  # longer than a request may take to arrive: an idle connection has its own, longer time
    sock.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n" * 2 + b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert until_closed(sock).count(b'{"version"') == 3


def test_headers_behind_a_request_have_their_time_when_it_is_answered(impatient: RunningServer) -> None:
    """The answer takes longer than headers may, which then are not completed; or they are."""
    fields = {"prompt": ["x"] * 32, "max_tokens": 450, "ignore_eos": True, "stream": True}
    begin, rest = b"GET /version HTTP/1.1\r\nhost", b": x\r\nconnection: close\r\n\r\n"
    assert until_closed(connect(impatient, post(fields) + begin)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    sock, found = connect(impatient, post(fields) + begin), b""
    while not found.endswith(b"\r\n0\r\n\r\n"):
        found += sock.recv(1 << 16)
    sock.sendall(rest)
    assert b'{"version"' in until_closed(sock)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /version?" + b"a" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /version HTTP/1.1\r\nx-long: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET /version HTTP/1.1\r\n" + b"a" * 5000 + b": x\r\n\r\n",
        b"GET /version HTTP/1.1\r\n" + b"x: y\r\n" * 3000 + b"\r\n",
    ],
    ids=["path", "query", "value", "name", "many"],
)
def test_large_headers_are_named(impatient: RunningServer, data: bytes) -> None:
    error = refusal(until_closed(connect(impatient, data)))
    assert error["code"] == 431 and "4096 bytes" in error["message"]


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"a"),
        (b"GET / HTTP/1.1\r\nx-", b"a"),
        (b"GET / HTTP/1.1\r\nx-long: ", b"a"),
        (b"GET / HTTP/1.1\r\n", b"x-more: " + b"a" * 1000 + b"\r\n"),
    ],
    ids=["path", "name", "value", "many"],
)
def test_headers_that_never_end_are_cut_off(impatient: RunningServer, begin: bytes, more: bytes) -> None:
    sock, sent, piece = connect(impatient, begin), 0, more * (65536 // len(more))
    with contextlib.suppress(OSError):
        while sent < 64 << 20:
            sent += len(piece)
            sock.sendall(piece)
        pytest.fail("headers without end were taken")
    assert sent < 32 << 20
    assert impatient.metric("octavo_ready") == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_http_gets_the_one_error_shape(impatient: RunningServer, data: bytes) -> None:
    error = refusal(until_closed(connect(impatient, data)))
    assert (error["code"], error["type"]) == (400, "Bad Request")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_of_http_1_0_gets_no_chunks(impatient: RunningServer, stream: bool) -> None:
    fields = {"prompt": "x", "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": stream}
    head, _, body = until_closed(connect(impatient, post(fields, "1.0"))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head and b"transfer-encoding" not in head
    if stream:
        events = body.decode().removesuffix("\n\n").split("\n\n")
        assert all(event.startswith("data: ") for event in events) and events[-1] == "data: [DONE]"
        assert b"content-length" not in head
    else:
        assert json.loads(body)["usage"]["completion_tokens"] == 4 and b"content-length: %d" % len(body) in head


def test_garbage_after_a_request_does_not_land_in_its_stream(impatient: RunningServer) -> None:
    sock = connect(impatient, post({"prompt": "x", "max_tokens": 450, "ignore_eos": True, "stream": True}))
    begin = sock.recv(1 << 16)
    sock.sendall(b"\x00\x01\r\n\r\n")
    assert b"not valid HTTP" not in begin + until_closed(sock)
    impatient.wait_metric("octavo_kv_blocks", 0, state="used")


def test_a_body_that_does_not_arrive_is_refused(impatient: RunningServer) -> None:
    error = refusal(until_closed(connect(impatient, post({"prompt": "x"})[:-5])))
    assert error["code"] == 408


def test_a_body_that_will_not_be_taken_is_not_waited_for(tiny_model: Path) -> None:
    with running(tiny_model) as server:
        server.wait_ready()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        sock = connect(server, head + b"content-length: 40\r\nexpect: 100-continue\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b'{"prompt":')
        server.process.send_signal(signal.SIGTERM)
        error = refusal(until_closed(sock))
        assert error["code"] == 503 and "shutting down" in error["message"]
        assert server.join() == 0 and not any("Traceback" in line for line in server.lines)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_does_not_read_is_dropped(impatient: RunningServer, stream: bool) -> None:
    """Its answer is far larger than what the two sockets hold. Seen from the server, because no word of a close arrives where
    nothing is read."""
    before, gone = settled_files(impatient.process.pid), impatient.metric("octavo_clients_gone_total")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = impatient.url.removeprefix("http://").partition(":")
        sock.connect((host, int(port)))
        more = {"max_tokens": 100, "return_token_ids": True} if stream else {"max_tokens": 1, "prompt_logprobs": 20}
        fields = {"prompt": [[5] * 400] * 24, "ignore_eos": True, "n": 2, "stream": stream, "logprobs": 20, **more}
        sock.sendall(post(fields))
        deadline = time.monotonic() + 30
        begun = False
        while not begun or open_files(impatient.process.pid) > before:
            begun = begun or open_files(impatient.process.pid) > before
            assert time.monotonic() < deadline, "the connection is still held"
            time.sleep(0.02)
    impatient.wait_metric("octavo_clients_gone_total", gone + stream)  # a whole answer is complete before it is sent
    impatient.wait_metric("octavo_requests_running", 0)
    impatient.wait_metric("octavo_kv_blocks", 0, state="used")


def settled_files(pid: int) -> int:
    """The fewest in a while: connections of earlier requests may still be closing."""
    samples = []
    for _ in range(20):
        samples.append(open_files(pid))
        time.sleep(0.025)
    return min(samples)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
