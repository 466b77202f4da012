"""Everything is collected at rest and not while a request is answered; what was there at the start is not looked at again."""

import asyncio
import gc
import json
import socket
import weakref
from collections.abc import Iterator

import pytest
import uvloop

from octavo.server import garbage
from octavo.server.body import decode
from octavo.server.http_server import make_server
from octavo.server.protocol import CompletionRequest
from tests.server.fakes import Bench


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def old_cycle() -> "weakref.ref[Cycle]":
    """One that only a full collection frees."""
    cycle = Cycle()
    gc.collect(1)
    return weakref.ref(cycle)


@pytest.mark.parametrize("at_rest", [True, False])
def test_everything_is_collected_at_rest(monkeypatch: pytest.MonkeyPatch, at_rest: bool) -> None:
    monkeypatch.setattr(garbage, "_LOOK_SECONDS", 0.001)

    async def scene() -> None:
        gc.set_threshold(0)
        found = old_cycle()
        task = asyncio.create_task(garbage.collect_at_rest(lambda: at_rest))
        await asyncio.sleep(0.05)
        task.cancel()
        assert (found() is None) == at_rest

    asyncio.run(scene())


def test_what_has_settled_is_not_visited() -> None:
    there = Cycle()
    garbage.settle()
    assert not any(item is there for item in gc.get_objects()) and gc.get_freeze_count() > 0


async def converse(port: int, body: bytes, times: int) -> None:
    """The same request again and again on one connection, which is closed in the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    for _ in range(times):
        writer.write(head % len(body) + body)
        got = b""
        while not got.endswith((b"0\r\n\r\n", b"}")):
            piece = await reader.read(1 << 16)
            assert piece, got
            got += piece
        assert got.startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("connections", "requests"), [(1, 8), (8, 1)])
def test_requests_and_connections_leave_nothing_to_collect(bench: Bench, stream: bool, connections: int, requests: int) -> None:
    body = json.dumps({"prompt": "one", "max_tokens": 3, "stream": stream}).encode()

    async def scene() -> int:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            port = sock.getsockname()[1]
            server = make_server(bench.app, bench.service.options)
            serving = asyncio.create_task(server.serve(sockets=[sock]))
            await converse(port, body, 1)
            gc.collect()
            gc.set_threshold(0)
            for _ in range(connections):
                await converse(port, body, requests)
            while server.server_state.connections:
                await asyncio.sleep(0.01)
            found = gc.collect()
            server.should_exit = True
            await serving
            return found

    assert uvloop.run(scene()) == 0


def test_what_a_body_is_made_of_is_not_looked_at_while_it_is_made() -> None:
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    try:
        decode(b'{"prompt":"one","user":[%b]}' % b",".join([b"[]"] * 100_000), CompletionRequest, max_depth=64, strict=False)
    finally:
        gc.callbacks.pop()
    assert len(collections) < 10 and gc.isenabled()
