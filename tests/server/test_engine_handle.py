"""The API process's end of the engine's socket: every message, in order, and none of it for long."""

import asyncio
import errno
import os
import socket
import subprocess
from typing import Any

import pytest

from octavo.outputs import TokenDelta
from octavo.server.engine_handle import Connection, EngineProcess
from octavo.server.wire import FromEngine, Progress, Step, frame


class Transport(asyncio.Transport):
    """Only knows whether it was ended, and whether it would read."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


def connect() -> tuple[Connection, Transport, list[Any]]:
    heard: list[Any] = []
    connection, transport = Connection(heard.append, lambda: heard.append("lost")), Transport()
    connection.connection_made(transport)
    return connection, transport, heard


def step(number: int, tokens: int) -> FromEngine:
    return Step(deltas=[TokenDelta(request_id=str(number), branch=0, token_ids=[1000] * tokens)])


def test_many_messages_at_once_leave_turns_to_others() -> None:
    messages = [step(number, 4000) for number in range(40)]
    turns: list[int] = []

    async def scenario() -> list[Any]:
        connection, transport, heard = connect()

        def look() -> None:
            turns.append(len(heard))
            if len(heard) < len(messages):
                loop.call_soon(look)

        loop = asyncio.get_running_loop()
        sent = b"".join(map(frame, messages))
        connection.data_received(sent)
        paused = not transport.reads
        assert paused
        look()
        while len(heard) < len(messages):
            await asyncio.sleep(0)
        assert transport.reads
        return heard

    assert asyncio.run(scenario()) == messages
    assert max(after - before for before, after in zip([0, *turns], turns, strict=False)) <= 6


def test_all_that_was_said_is_heard_before_the_loss() -> None:
    messages = [step(number, 20_000) for number in range(5)]

    async def scenario() -> list[Any]:
        connection, _, heard = connect()
        connection.data_received(b"".join(map(frame, messages)))
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return heard

    assert asyncio.run(scenario()) == [*messages, "lost"]


def test_what_is_no_message_ends_the_engine() -> None:
    async def scenario() -> tuple[bool, list[Any]]:
        connection, transport, heard = connect()
        good = Progress("loading", 0.5)
        connection.data_received(frame(good) + b"\x03\0\0\0abc" + frame(good))
        await asyncio.sleep(0)
        return transport.aborted, heard

    assert asyncio.run(scenario()) == (True, [Progress("loading", 0.5)])


def test_a_process_that_cannot_be_started_holds_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    pair = socket.socketpair()
    monkeypatch.setattr(socket, "socketpair", lambda: pair)
    with pytest.raises(BlockingIOError):
        EngineProcess.spawn()
    assert [end.fileno() for end in pair] == [-1, -1]
