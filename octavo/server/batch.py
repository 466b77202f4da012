"""``octavo run-batch``: a file of requests through the server's own routes, without a server.

The routes are called in this process, over an engine process of their own under the same supervisor, so every field means what
it means over HTTP. Answers are written in the order of the lines. A line's failure is that line's; an engine that dies is
replaced, and the lines that it had are sent again; a line for which there is no room yet waits until there is.
"""

import asyncio
import concurrent.futures
import os
import random
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta
from starlette.types import ASGIApp, Message, Scope

from octavo.config import ConfigError, EngineConfig
from octavo.server import errors, openapi
from octavo.server.app import build_app
from octavo.server.engine_handle import EngineProcess
from octavo.server.errors import ApiError
from octavo.server.main import Started, load_served_model, start_engine
from octavo.server.names import ModelNames
from octavo.server.options import ServerOptions
from octavo.server.request_log import Log
from octavo.server.service import Service
from octavo.server.status import Status
from octavo.server.supervisor import Supervisor
from octavo.server.wire import Ready

_AHEAD = 8
"""Lines on their way for each sequence of a step: enough that a slow one at the head does not let the engine run dry."""

_TRIES = 3
"""Of a line with which the engine is lost every time."""
_LOST = errors.engine_restarted().type
_WAIT = 0.2


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``description`` is the help text of the flag of the same name."""

    input_file: Annotated[str, Meta(description="JSON lines of requests: custom_id, method, url, body")]
    output_file: Annotated[str, Meta(description="file for the answers, one line for each line, in the same order")]
    served_model_name: Annotated[
        tuple[str, ...], Meta(description="names that lines may call the model; default: as given, of a path the last part")
    ] = ()
    strict: Annotated[bool, Meta(description="refuse unknown request fields instead of answering with a warning")] = False


class Line(msgspec.Struct, frozen=True):
    """One request."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class LineAnswer(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. ``error`` repeats what a failed response says; alone, it says why a line is no request."""

    id: str
    custom_id: str | None
    response: LineAnswer | None = None
    error: Any = None


class Batch:
    """One engine and the routes over it, until the file is done."""

    def __init__(self, config: EngineConfig, options: BatchOptions) -> None:
        self._config = config
        self._options = options
        self.failed = self.unreadable = 0

    async def run(self, started: "concurrent.futures.Future[Started]", spawner: concurrent.futures.ThreadPoolExecutor) -> int:
        """Answers every line. ``started`` is the engine process. Returns the exit status."""
        window = _AHEAD * self._config.max_num_seqs
        self._service = service = self._build_service(spawner, window)
        supervisor = self._supervisor
        try:
            answering = asyncio.create_task(self._answer_file(build_app(service), started, window))
            outcome = supervisor.outcome
            waiting: set[asyncio.Future[Any]] = {answering, outcome}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            answering.cancel()
            exit_status, message = outcome.result()
            print(f"octavo: error: {message}", file=sys.stderr, flush=True)
            return exit_status
        finally:
            await supervisor.close()

    def _build_service(self, spawner: concurrent.futures.ThreadPoolExecutor, window: int) -> Service:
        status = Status()
        log = _Quiet(sys.stderr, as_json=False)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = Supervisor(
            status=status,
            log=log,
            spawner=spawner,
            max_pending=window * 128,
            max_pending_tokens=2**62,
            on_ready=self._on_engine_ready,
        )
        return Service(
            options=ServerOptions(strict=self._options.strict),
            names=ModelNames.of(self._config.model, self._options.served_model_name),
            client=self._supervisor,
            status=status,
            log=log,
        )

    def _on_engine_ready(self, ready: Ready, process: EngineProcess) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    async def _load(self, started: "concurrent.futures.Future[Started]") -> None:
        self._service.served = await load_served_model(started, self._supervisor)
        self._service.status.text_ready()
        await self._ready

    async def _answer_file(self, app: ASGIApp, started: "concurrent.futures.Future[Started]", window: int) -> int:
        """The output is complete under its own name, or there is only a ``.part`` of it."""
        from tqdm import tqdm

        await self._load(started)
        output = Path(self._options.output_file)
        part = output.with_name(output.name + ".part")
        with open(self._options.input_file, "rb") as lines, part.open("wb") as answers:
            total = sum(1 for line in lines if line.strip())
            lines.seek(0)
            on_the_way: deque[asyncio.Task[Result]] = deque()
            with tqdm(total=total, unit="line", disable=None) as bar:
                for number, content in _numbered(lines):
                    on_the_way.append(asyncio.create_task(self._answer(app, number, content)))
                    if len(on_the_way) >= window:
                        self._write(answers, await on_the_way.popleft(), bar)
                while on_the_way:
                    self._write(answers, await on_the_way.popleft(), bar)
        part.replace(output)
        if self.failed:
            told = f'octavo: {self.failed} of {total} lines failed: their "error" in {output} says why'
            print(told, file=sys.stderr, flush=True)
        return 1 if self.unreadable else 0

    def _write(self, answers: BinaryIO, result: Result, bar: Any) -> None:
        self.unreadable += result.response is None
        self.failed += result.error is not None
        answers.write(msgspec.json.encode(result) + b"\n")
        bar.update()

    async def _answer(self, app: ASGIApp, number: int, content: bytes) -> Result:
        try:
            line = msgspec.json.decode(content, type=Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"line {number}: {error}"
            return Result(id=_new_id(), custom_id=None, error={"message": message, "type": "invalid_line", "code": 400})
        request_id = os.urandom(16).hex()
        status, body = await self._call(app, line, request_id)
        failure = None if status == 200 else msgspec.json.decode(body)["error"]
        response = LineAnswer(status, request_id, msgspec.Raw(body))
        return Result(id=_new_id(), custom_id=line.custom_id, response=response, error=failure)

    async def _call(self, app: ASGIApp, line: Line, request_id: str) -> tuple[int, bytes]:
        """The answer's status and body. A line that is told to come later does, unless too many engines were lost with it."""
        refusal = _refusal(line)
        if refusal is not None:
            return refusal.status, refusal.body()
        losses = 0
        while True:
            exchange = _Exchange(line, request_id)
            await app(exchange.scope, exchange.receive, exchange.send)
            losses += exchange.status == 503 and msgspec.json.decode(exchange.body)["error"]["type"] == _LOST
            if exchange.status != 503 or losses == _TRIES:
                return exchange.status, bytes(exchange.body)
            await asyncio.sleep(exchange.retry_after * random.random())  # all at once, most would be too early again
            while not self._service.status.engine_up:
                await asyncio.sleep(_WAIT)


class _Quiet(Log):
    """What a line cost is in nobody's log; what went wrong is."""

    def info(self, event: str, message: str = "", **fields: Any) -> None:
        pass


class _Exchange:
    """One request to the application, as a server would pass it on. Its client never leaves."""

    def __init__(self, line: Line, request_id: str) -> None:
        self._content: bytes | None = bytes(line.body)
        self.status = 500
        self.retry_after = 0
        self.body = bytearray()
        self.scope: Scope = {
            "type": "http",
            "method": line.method,
            "path": line.url,
            "raw_path": line.url.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())],
            "state": {},
        }

    async def receive(self) -> Message:
        if self._content is None:
            await asyncio.get_running_loop().create_future()
        content, self._content = self._content, None
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.retry_after = int(dict(message["headers"]).get(b"retry-after", 0))
        else:
            self.body += message.get("body", b"")


def _refusal(line: Line) -> ApiError | None:
    """Why a line is not passed on, if it is not."""
    urls = [operation.path for operation in openapi.OPERATIONS if operation.generates]
    if line.url not in urls:
        return errors.invalid(f"url must be one of {', '.join(urls)}.", "url")
    if line.method != "POST":
        return errors.invalid("method must be POST.", "method")
    try:
        streams = msgspec.json.decode(line.body, type=_Streams, strict=False).stream
    except msgspec.DecodeError:
        return None  # the route says what is wrong
    return errors.invalid("`stream` has no meaning in a batch.", "stream") if streams else None


class _Streams(msgspec.Struct):
    stream: bool | None = None


def _numbered(lines: BinaryIO) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _new_id() -> str:
    return f"batch_req_{os.urandom(16).hex()}"


def run(config: EngineConfig, options: BatchOptions) -> int:
    """Answers the file. Returns the exit status: 1 when a line was no request. Raises ``ConfigError``."""
    if not Path(options.input_file).is_file():
        raise ConfigError(f"--input-file {options.input_file}: there is no such file")
    if not Path(options.output_file).absolute().parent.is_dir():
        raise ConfigError(f"--output-file {options.output_file}: there is no directory for it")
    import uvloop

    spawner = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="spawner")
    started = spawner.submit(start_engine, config)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Batch(config, options).run(started, spawner))
    except OSError as error:
        raise ConfigError(f"{error.filename or options.output_file}: {error.strerror or error}") from None
    finally:
        spawner.shutdown(wait=False, cancel_futures=True)
