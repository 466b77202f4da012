"""uvicorn, held to the limits that an ASGI application cannot enforce: header size, slow headers, stuck connections.

Signals belong to ``lifecycle``, not to uvicorn. Bytes that are no HTTP get the one error shape like everything else.
"""

import asyncio
import contextlib
import functools
import http
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server import errors
from octavo.server.errors import ApiError
from octavo.server.options import ServerOptions

KEEP_ALIVE_SECONDS = 30
_HARD_FACTOR = 4
"""A client that goes on sending headers beyond the limit is cut off at this multiple of it."""


def make_server(app: ASGIApp, options: ServerOptions) -> uvicorn.Server:
    """A server for ``app``; run it with ``serve(sockets=[...])`` and end it with ``should_exit``."""
    config = uvicorn.Config(
        app,
        loop="none",
        http=_bounded_protocol(options),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
    )
    return _Server(config)


def wake_readers(server: uvicorn.Server) -> None:
    """Whoever waits for more of a body is handed an empty piece, and so can look whether it is still wanted."""
    for connection in server.server_state.connections:
        if isinstance(connection, BoundedProtocol):
            connection.wake_reader()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bounded_protocol(options: ServerOptions) -> type[asyncio.Protocol]:
    """A protocol class with the limits bound in, because uvicorn constructs it."""

    class Bounded(BoundedProtocol):
        max_header_bytes = options.max_header_bytes
        header_timeout = options.read_timeout
        write_timeout = options.write_timeout

    return Bounded


class _Unchunked(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks and closes after each: one that says no length ends with the connection."""

    async def send(self, message: Any) -> None:
        self.chunked_encoding = False
        if message["type"] == "http.response.body":
            self.expected_content_length += len(message.get("body", b""))  # whatever is sent was expected
        await super().send(message)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a cap on what headers may take, in bytes and in time, and on the time a client may leave bytes unread.

    The time of headers that come while an answer is under way begins when that has been given."""

    max_header_bytes: int
    header_timeout: float
    write_timeout: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._messages = 0
        self._in_headers = False
        self._header_bytes = 0
        self._unparsed_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn asks for asyncio.Transport, which it gets
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_write_timer()
        for cycle in self._unanswered:  # the library tells the last one only, and another may be under way
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered.clear()
        super().connection_lost(exc)
        # What refers to itself in a circle is freed by a collection only, and a busy server would have much to collect.
        self.cycle = None  # type: ignore[assignment]  # as it is before the first request
        self.scope = None  # type: ignore[assignment]  # of the last request, whose own it stays

    def data_received(self, data: bytes) -> None:
        message, in_headers = self._messages, self._awaits_headers
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._awaits_headers:
            if self._between_requests():  # bytes that begin nothing, and have stopped the clock of an idle connection
                self._start_header_timer()
            return
        # The parser reports a header when it is complete. One that never is would be counted, and kept, without end.
        self._unparsed_bytes = self._unparsed_bytes + len(data) if in_headers and message == self._messages else 0
        if self._unparsed_bytes > self.max_header_bytes:
            self._refuse(errors.headers_too_large(self.max_header_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._messages += 1
        self._header_bytes = 0
        self._in_headers = True
        if self._answered:
            self._start_header_timer()

    def on_url(self, url: bytes) -> None:
        super().on_url(url if self._count(len(url)) else b"/"[len(self.url) :])

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._count(len(name) + len(value)):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._stop_header_timer()
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        self.scope["state"]["write_part"] = functools.partial(self._write_part, weakref.ref(self.cycle))
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = _Unchunked

    def on_response_complete(self) -> None:
        if self._unanswered:  # the client may have left
            self._unanswered.popleft()
        super().on_response_complete()
        if self._in_headers and self._answered and not self.transport.is_closing():
            self._start_header_timer()

    def wake_reader(self) -> None:
        if self.cycle is not None and self.cycle.more_body:
            self.cycle.message_event.set()

    def send_400_response(self, msg: str) -> None:
        self._refuse(errors.malformed("The request is not valid HTTP/1.1."))

    def timeout_keep_alive_handler(self) -> None:
        """An idle connection is closed; one that has not read its answer yet would never close by itself."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered as if it had not asked to upgrade, which HTTP allows; no line of the log is due."""

    def _write_part(self, known: "weakref.ref[RequestResponseCycle]", part: bytes) -> bool:
        """Sends a part of an answer that is under way, at once; False where that is ``send``'s business, because there is
        something to wait for. Streams call it for every token, and all of ``send``'s layers would cost as much as the token."""
        cycle = known()
        if (
            cycle is None
            or self.flow.write_paused
            or cycle.disconnected
            or not cycle.chunked_encoding
            or cycle.response_complete
        ):
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    @property
    def _answered(self) -> bool:
        """Whether every request that has come is: answers are given in order."""
        return self.cycle is None or bool(self.cycle.response_complete)

    @property
    def _awaits_headers(self) -> bool:
        return self._in_headers or self._header_timer is not None

    def _between_requests(self) -> bool:
        return self._answered and not self.pipeline and self.timeout_keep_alive_task is None

    def _refuse(self, error: ApiError) -> None:
        """Answers what is not a request, if that is possible, and closes."""
        self._stop_header_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # the answer would land in the middle of another
            return
        body = error.body()
        phrase = http.HTTPStatus(error.status).phrase
        head = f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _count(self, size: int) -> bool:
        """Whether headers are still within the limit; what is beyond it is not kept."""
        self._header_bytes += size
        if self._header_bytes <= self.max_header_bytes:
            return True
        self.scope["state"]["headers_cut"] = True
        if self._header_bytes > _HARD_FACTOR * self.max_header_bytes:
            self.transport.abort()
        return False

    def _start_header_timer(self) -> None:
        self._stop_header_timer()
        self._header_timer = self.loop.call_later(self.header_timeout, self.transport.close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _start_write_timer(self) -> None:
        self._stop_write_timer()
        unread = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.write_timeout, self._write_late, unread)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _write_late(self, unread: int) -> None:
        """A slow reader is given more time, one that has read nothing is not."""
        if self.transport.get_write_buffer_size() < unread:
            self._start_write_timer()
        else:
            self.transport.abort()
