"""One run of the server: load, serve, drain, end. Owns the signals and the order of things; knows no route and no message.

The exit status is 0 only for an asked-for stop. Whatever ends the server, streams are told before their connections close.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import socket
import sys
import time
import traceback

from octavo.config import ConfigError, EngineConfig
from octavo.server import garbage, interpreter
from octavo.server.app import build_app, import_exposition
from octavo.server.auth import Keyring
from octavo.server.engine_handle import EngineProcess
from octavo.server.exit_codes import BAD_CONFIG, ENGINE_FAULT
from octavo.server.http_server import make_server, wake_readers
from octavo.server.listen import url_of
from octavo.server.main import Started, load_served_model
from octavo.server.names import ModelNames
from octavo.server.options import ServerOptions
from octavo.server.request_log import Log, LogBridge
from octavo.server.service import Service
from octavo.server.startup import startup_lines
from octavo.server.status import Status
from octavo.server.supervisor import Supervisor
from octavo.server.traces import Traces
from octavo.server.usage_log import UsageLog
from octavo.server.wire import Ready

_POLL = 0.02
_SWITCH_SECONDS = 0.001
"""What the event loop waits for a thread at the most, unless it is in the middle of something that cannot be interrupted."""
_LAST_WORDS = 0.2
"""Seconds for error events to reach their clients before connections are closed."""
_TRACES_WAIT = 2.0
"""Seconds for the last traces to reach their collector."""
_LOG_WAIT = 1.0
"""Seconds for the last lines of the log to be written."""

_PINNED_FOR_NOBODY = (
    "--pin-prefix: no key finds what is pinned, as each has a part of the prefix cache of its own: "
    "make keys with octavo keys new NAME --cache-scope ''"
)


class Lifecycle:
    """Made outside the event loop, run once inside it."""

    def __init__(
        self,
        config: EngineConfig,
        options: ServerOptions,
        keys: Keyring,
        usage_log: UsageLog | None,
        traces: Traces | None,
        *,
        sock: socket.socket,
        process_start: float,
    ) -> None:
        self._config = config
        self._options = options
        self._keys = keys
        self._usage_log = usage_log
        self._traces = traces
        self._sock = sock
        self._process_start = process_start
        self._log = Log.to(sys.stderr, options.log_format)
        self._signals = 0
        self._tidying: asyncio.Task[None] | None = None

    async def run(self, started: "concurrent.futures.Future[Started]", spawner: concurrent.futures.ThreadPoolExecutor) -> int:
        """Serves until a signal or a fault. ``started`` is the first engine process. Returns the exit status."""
        self._status = Status()
        self._stop = asyncio.Event()
        self._engine_ready: asyncio.Future[tuple[Ready, EngineProcess]] = asyncio.get_running_loop().create_future()
        self._supervisor = Supervisor(
            status=self._status,
            log=self._log,
            spawner=spawner,
            max_pending=self._options.max_num_queued_reqs,
            max_pending_tokens=self._options.max_num_queued_tokens,
            on_ready=self._on_engine_ready,
            inject_faults=self._options.inject_faults,
        )
        self._service = Service(
            options=self._options,
            names=ModelNames.of(self._config.model, self._options.served_model_name),
            client=self._supervisor,
            status=self._status,
            log=self._log,
            keys=self._keys,
            usage_log=self._usage_log,
            traces=self._traces,
        )
        self._http = make_server(build_app(self._service), self._options)
        self._catch_signals()
        if self._options.inject_faults:
            self._log.warning("faults", "--inject-faults: requests may ask to fail; this is for tests")
        if self._config.pin_prefix and not self._keys.finds_pinned:
            self._log.warning("pin", _PINNED_FOR_NOBODY)
        serving = asyncio.create_task(self._http.serve(sockets=[self._sock]))
        loading = asyncio.create_task(self._load(started))
        exit_status = await self._until_told(loading)
        self._http.should_exit = True
        loading.cancel()
        if self._tidying is not None:
            self._tidying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close, _TRACES_WAIT)
        self._close_grammars()
        spawner.shutdown(wait=False)
        self._log.wait(_LOG_WAIT)
        return exit_status

    def _catch_signals(self) -> None:
        logging.getLogger().addHandler(LogBridge(self._log))
        loop = asyncio.get_running_loop()
        for number in interpreter.STOP:
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(interpreter.READ_AGAIN, self._read_again)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            self._supervisor.kill()
            self._log.wait(_LOG_WAIT)
            os._exit(0)
        self._stop.set()

    def _read_again(self) -> None:
        """Reads the keys again and opens the usage log again; a failure of one does not keep the other from being done."""
        if self._options.api_keys_file is None and self._usage_log is None:
            self._log.info("reload", "there is neither a keys file nor a usage log to open again")
        if self._options.api_keys_file is not None:
            try:
                count = self._keys.reload()
            except ConfigError as error:
                self._log.error("reload", f"{error}; the keys stay as they were")
            else:
                self._log.info("reload", f"{count} keys of the keys file hold from now on")
        if self._usage_log is not None:
            try:
                self._usage_log.reopen()
            except ConfigError as error:
                self._log.error("reload", f"{error}; usage is booked where it was")
            else:
                self._log.info("reload", "the usage log is open again")

    async def _load(self, started: "concurrent.futures.Future[Started]") -> None:
        """Until a request could be answered. Raises ``ConfigError`` when none ever will."""
        self._status.loading("finding the model", 0.0)
        served = await load_served_model(started, self._supervisor)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.open, self._log)
        self._service.served = served
        _settle_down()
        self._status.text_ready()
        ready, process = await self._engine_ready
        self._announce(ready, process)
        self._tidying = asyncio.create_task(self._stay_tidy())

    async def _stay_tidy(self) -> None:
        """What a start does not wait for, and then the collector."""
        await asyncio.to_thread(import_exposition)
        garbage.settle()
        await garbage.collect_at_rest(lambda: not self._http.server_state.tasks)

    def _on_engine_ready(self, ready: Ready, process: EngineProcess) -> None:
        if self._engine_ready.done():
            self._log.info("engine_ready", "the engine is ready again")
        else:
            self._engine_ready.set_result((ready, process))

    def _announce(self, ready: Ready, process: EngineProcess) -> None:
        now = time.monotonic()
        lines = startup_lines(
            self._service.names[0], ready, process_start=self._process_start, spawned_at=process.spawned_at, now=now
        )
        for line in lines:
            self._log.info("startup", line)
        url = url_of(self._sock)
        self._log.info("ready", f"ready on {url}")

    async def _until_told(self, loading: asyncio.Task[None]) -> int:
        """Waits for a signal, for the supervisor to give up, or for loading to fail. Returns the exit status."""
        stopped = asyncio.create_task(self._stop.wait())
        waiting: set[asyncio.Future[object]] = {stopped, self._supervisor.outcome, loading}  # type: ignore[arg-type]  # invariance
        while True:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if stopped in done:
                await self._drain()
                return 0
            if self._supervisor.outcome in done:
                exit_status, message = self._supervisor.outcome.result()
                return await self._fail(exit_status, message)
            error = loading.exception()
            if error is not None:
                return await self._fail(*self._fault(error))

    async def _drain(self) -> None:
        """Lets running requests finish, then tells the rest that they cannot."""
        self._status.draining = True
        wake_readers(self._http)
        tasks = self._http.server_state.tasks
        self._log.info("drain", f"stopping: {len(tasks)} requests have {self._options.drain_timeout:g} s to finish")
        deadline = time.monotonic() + self._options.drain_timeout
        while tasks and time.monotonic() < deadline:
            await asyncio.sleep(_POLL)
        self._close_grammars()
        await self._supervisor.close()
        await self._let_streams_end()
        self._log.info("stopped", "stopped")

    async def _fail(self, exit_status: int, message: str) -> int:
        self._supervisor.kill()
        await self._let_streams_end()
        self._log.plain(f"octavo: error: {message}")
        return exit_status

    def _fault(self, error: BaseException) -> tuple[int, str]:
        """The exit status and the line for an exception that ended loading."""
        if isinstance(error, ConfigError):
            return BAD_CONFIG, str(error)
        self._log.plain("".join(traceback.format_exception(error)).rstrip())
        return ENGINE_FAULT, f"{type(error).__name__}: {error}"

    def _close_grammars(self) -> None:
        if self._service.served is not None:
            self._service.served.grammars.close()

    async def _let_streams_end(self) -> None:
        deadline = time.monotonic() + _LAST_WORDS
        while self._http.server_state.tasks and time.monotonic() < deadline:
            await asyncio.sleep(_POLL)


def _settle_down() -> None:
    """What holds up the event loop without being on it: the collector, and threads that keep the interpreter to themselves."""
    garbage.settle()
    sys.setswitchinterval(_SWITCH_SECONDS)
