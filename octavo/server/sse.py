"""Server-sent events and clients that leave.

``EventStream`` writes what a generator yields; ``watch_client`` runs a callback when a client's connection closes, whoever
closed it (``http_server`` does where a client stops reading). The request behind it ends within one step of the engine.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server import aside
from octavo.server.errors import ApiError

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(value: msgspec.Struct) -> bytes:
    """One event with a JSON value."""
    return b"data: %b\n\n" % _encode(value)


def failure(error: ApiError) -> bytes:
    """An error as the last event of a stream, and ``[DONE]``."""
    return b"data: %b\n\n" % error.body() + DONE


class TextEvents:
    """Events that differ in one text only: what is around it is encoded once, from an event whose last text is ``MARK``."""

    MARK = "\0"
    _ENCODED_MARK = _encode(MARK)

    def __init__(self, value: msgspec.Struct) -> None:
        self._before, _, self._after = event(value).rpartition(self._ENCODED_MARK)

    def event(self, text: str) -> bytes:
        """The event with ``text`` where the mark was."""
        return self._before + _encode(text) + self._after


@asynccontextmanager
async def watch_client(receive: Receive, on_gone: Callable[[], None]) -> AsyncIterator[None]:
    """While inside, ``on_gone`` is called when the client closes its connection. The request's body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        on_gone()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()


def _nowhere(part: bytes) -> bool:
    """In place of a server that can write a part of an answer without waiting."""
    return False


class EventStream(Response):
    """A response of events. ``on_gone`` is called when the client leaves.

    What the server can write without waiting goes straight to it; ``send``, with all the layers around it, is for where there
    is something to wait for.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], on_gone: Callable[[], None]) -> None:
        self._events = events
        self._on_gone = on_gone
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with watch_client(receive, self._on_gone):
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                write_part = scope.get("state", {}).get("write_part", _nowhere)
                async for piece in self._events:
                    if len(piece) <= aside.WRITTEN_AT_ONCE and write_part(piece):
                        continue
                    async for part in aside.slices(piece):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                await self._events.aclose()
