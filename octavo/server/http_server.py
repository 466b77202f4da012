"""uvicorn, held to the limits that an ASGI application cannot enforce: header size, slow headers, stuck connections.

Signals belong to ``main``, not to uvicorn. Bytes that are no HTTP get the one error shape like everything else.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server import errors
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


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bounded_protocol(options: ServerOptions) -> type[asyncio.Protocol]:
    """A protocol class with the limits bound in, because uvicorn constructs it."""

    class Bounded(BoundedProtocol):
        max_header_bytes = options.max_header_bytes
        header_timeout = options.read_timeout

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a cap on what headers may take, in bytes and in time."""

    max_header_bytes: int
    header_timeout: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn asks for asyncio.Transport, which it gets
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._start_header_timer()
        self.scope["state"]["abort_connection"] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        if self._count(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._count(len(name) + len(value)):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        body = errors.malformed("The request is not valid HTTP/1.1.").body()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(head + body)
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
        self._header_timer = self.loop.call_later(self.header_timeout, self._headers_late)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
