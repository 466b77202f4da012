"""A client that costs little: HTTP/1.1 over asyncio's transports, httptools for parsing, one decoder for every event.

It shares the processor with what it measures, so it does little for a token: one read, one search for line ends, one typed
decode. Times are taken when bytes come, before they are looked at. Knows no dataset and no statistics.
"""

import asyncio
import contextlib
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import cast

import httptools
import msgspec

from octavo.bench.serve.events import Choice, decode_event, error_text

_LONGEST_ERROR = 2000
_LONGEST_LINE = 64 << 20
TIMEOUT = 6 * 3600.0


class Outcome(msgspec.Struct, kw_only=True):
    """One request as its client saw it. Seconds; ``started`` on the clock of ``time.perf_counter``. ``output_tokens`` is None
    where the server has not said; ``error`` is empty when the answer is whole."""

    started: float = 0.0
    ttft: float = 0.0
    itl: list[float] = []
    latency: float = 0.0
    text: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
    queued: float = 0.0


class _Answer:
    """Events as they come in, until the response ends."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self._texts: list[str] = []
        self._rest = b""
        self._last = 0.0
        self._failure = ""
        self.done = False

    @property
    def begun(self) -> bool:
        return bool(self._last or self._rest)

    def feed(self, data: bytes, now: float) -> None:
        """A piece of the body that came at ``now``."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError("an event without an end")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def finished(self) -> Outcome:
        """When the response has ended."""
        outcome = self.outcome
        outcome.text = "".join(self._texts)
        outcome.latency = self._last - outcome.started if self._last else 0.0
        if self._failure:
            outcome.error = self._failure
        elif not self._last:
            outcome.error = "the answer had no tokens"
        return outcome

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        event = decode_event(data)
        if event.error is not None:
            self._failure = error_text(msgspec.json.encode({"error": event.error}))
        if event.choices:
            self._token(event.choices, now)
        if event.usage is not None and event.usage.completion_tokens is not None:
            self.outcome.output_tokens = event.usage.completion_tokens
            self.outcome.prompt_tokens = event.usage.prompt_tokens

    def _token(self, choices: list[Choice], now: float) -> None:
        if not self._last:
            self.outcome.ttft = now - self.outcome.started
        else:
            self.outcome.itl.append(now - self._last)
        self._last = now
        self._texts += [choice.new_text for choice in choices]


class _Connection(asyncio.Protocol):
    """One connection, one request at a time on it. ``reusable`` after an answer that left it open."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.reusable = False
        self._answer: _Answer | None = None
        self._done: asyncio.Future[int] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._error_body = bytearray()
        self._now = 0.0

    def ask(self, request: bytes, answer: _Answer) -> "asyncio.Future[int]":
        """Sends a request. The future has the status when the answer is complete."""
        self._answer, self._parser = answer, httptools.HttpResponseParser(self)
        self._error_body.clear()
        self._done = asyncio.get_running_loop().create_future()
        self.reusable = False
        if self.transport is None or self.transport.is_closing():
            self._fail(ConnectionResetError("the connection was closed"))
        else:
            self.transport.write(request)
        return self._done

    @property
    def error_body(self) -> bytes:
        return bytes(self._error_body)

    def close(self) -> None:
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # event loops have classes of their own

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except Exception as error:  # of the parser or of a decoder: either way this answer cannot be read
            cause = error.__context__ or error
            self._fail(ConnectionError(f"the answer cannot be read: {cause}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Which is how a body without a length ends."""
        self.reusable = False
        if self._answer is not None and self._answer.done and self._done is not None and not self._done.done():
            self._done.set_result(self._parser.get_status_code())
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._error_body += body[: max(0, _LONGEST_ERROR - len(self._error_body))]
        elif self._answer is not None:
            self._answer.feed(body, self._now)

    def on_message_complete(self) -> None:
        if self._done is not None and not self._done.done():
            self.reusable = self._parser.should_keep_alive()
            self._done.set_result(self._parser.get_status_code())

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class LoadClient:
    """Sends streamed requests to one route. Connections that an answer has left open are used again."""

    def __init__(self, url: str, path: str, *, headers: Mapping[str, str], insecure: bool = False) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host = parts.hostname or ""
        secure = parts.scheme == "https"
        self._port = parts.port or (443 if secure else 80)
        self._tls = tls(insecure) if secure else None
        lines = [f"POST {parts.path}{path} HTTP/1.1", f"host: {parts.netloc}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join(lines).encode() + b"\r\naccept: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        self._idle: list[_Connection] = []

    async def send(self, body: bytes, *, on_start: Callable[[], None] | None = None) -> Outcome:
        """One request from its first byte to the answer's last. Never raises for what the server or the network does."""
        answer = _Answer()
        outcome = answer.outcome
        outcome.started = time.perf_counter()
        if on_start is not None:
            on_start()
        try:
            async with asyncio.timeout(TIMEOUT):
                status, error_body = await self._exchange(self._head % len(body) + body, answer)
        except (OSError, TimeoutError) as error:
            outcome.error = str(error) or type(error).__name__
            return outcome
        if status != 200:
            outcome.error = f"{status}: {error_text(error_body)}"
            return outcome
        return answer.finished()

    async def _exchange(self, request: bytes, answer: _Answer) -> tuple[int, bytes]:
        """A server may close an idle connection just as it is used again: then, and only then, a new one is tried."""
        connection = self._reusable()
        if connection is not None:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                return await self._on(connection, request, answer)
            if answer.begun:
                raise ConnectionResetError("the server closed the connection")
        _, made = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port, ssl=self._tls)
        return await self._on(made, request, answer)

    async def _on(self, connection: _Connection, request: bytes, answer: _Answer) -> tuple[int, bytes]:
        try:
            status = await connection.ask(request, answer)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return status, connection.error_body

    def _reusable(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    def close(self) -> None:
        """Of what is idle."""
        while self._idle:
            self._idle.pop().close()


def tls(insecure: bool) -> ssl.SSLContext:
    """``insecure``: certificates are not looked at."""
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
