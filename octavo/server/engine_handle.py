"""A handle on an engine process: how it is started, spoken to and ended. Decides nothing."""

import asyncio
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable

import msgspec

from octavo.server import interpreter
from octavo.server.framing import FrameReader, WireError
from octavo.server.wire import FromEngine, ToEngine, frame

_EXIT_SECONDS = 2.0
_TURN = 1 << 15
"""Bytes of messages after which others get a turn. A step's usually are fewer; log-probabilities make them more."""


class EngineProcess(msgspec.Struct, frozen=True):
    """A running engine process and this side's end of the socket pair that is its only connection."""

    process: subprocess.Popen[bytes]
    sock: socket.socket
    spawned_at: float

    @staticmethod
    def spawn() -> "EngineProcess":
        """A new interpreter, so that it inherits no thread, lock or open file of this one but the socket. Raises ``OSError``
        where the system has no process or no file to give."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        spawned_at = time.monotonic()
        try:
            with theirs:
                process = interpreter.start("octavo.server.engine_process", [theirs])
        except OSError:
            ours.close()
            raise
        return EngineProcess(process, ours, spawned_at)


class Connection(asyncio.Protocol):
    """One engine's socket, decoded. Bytes that are no message end the engine, not this process."""

    def __init__(self, on_message: Callable[[FromEngine], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._frames: deque[bytes] = deque()
        self._decode = msgspec.msgpack.Decoder(FromEngine).decode
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a socket's transport can write

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.extend(self._reader.feed(data))
        except WireError:
            self.close()
        self._take_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        while self._frames:
            self._take_turn()
        self._on_lost()

    def _take_turn(self) -> None:
        """Hands on some of what has come; others get a turn before the rest, and nothing more is read until then."""
        size = 0
        try:
            while self._frames and size < _TURN:
                body = self._frames.popleft()
                size += len(body)
                self._on_message(self._decode(body))
        except msgspec.MsgspecError:
            self._frames.clear()
            self.close()
        finally:
            self._go_on()

    def _go_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._frames:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._take_turn)
        else:
            self._transport.resume_reading()

    def send(self, message: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def reap(process: subprocess.Popen[bytes]) -> int:
    """The exit status of a process that has closed its socket or was told to end; killed when it takes too long."""
    try:
        return process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def describe(exit_status: int) -> str:
    if exit_status >= 0:
        return f"exit status {exit_status}"
    if -exit_status == signal.SIGKILL:
        return "SIGKILL, as when the system runs out of memory"
    try:
        return signal.Signals(-exit_status).name
    except ValueError:
        return f"signal {-exit_status}"
