"""Keeps one engine process alive and is the ``EngineClient`` in front of it.

Starts the process, sends it the configuration, hands its messages on and, when it dies or is stuck, tells the running streams,
starts another and submits again what had no token yet. Gives up for a configuration that cannot work, after three crashes
in a minute, of which a process that cannot be started is one, and for an error of its own. Knows nothing of HTTP or text.
What clients are promised when an engine dies (decision 0021) is kept here.
"""

import asyncio
import concurrent.futures
import contextlib
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from octavo.config import EngineConfig
from octavo.metrics import EngineStats, continued
from octavo.request import Request
from octavo.sampling_params import ParameterError
from octavo.server import errors, interpreter
from octavo.server.engine_client import Mailbox, RequestTable
from octavo.server.engine_handle import Connection, EngineProcess, describe, reap
from octavo.server.exit_codes import BAD_CONFIG, ENGINE_FAULT
from octavo.server.request_log import Log
from octavo.server.status import Status
from octavo.server.threads import busiest_threads
from octavo.server.wire import (
    Abort,
    Add,
    Ended,
    Fatal,
    FromEngine,
    Load,
    Pin,
    Progress,
    PromptPiece,
    Ready,
    Refused,
    Shutdown,
    Step,
    ToEngine,
)

WATCH_INTERVAL = 1.0
"""Seconds between two looks at the engine."""
LOOKS = 3
"""Looks in a row that must find the engine silent before it is replaced. One is not enough: after the machine slept, this
process has missed the same time."""
CRASHES = 3
CRASH_WINDOW = 60.0
RETRY_SECONDS = 10.0
"""Before a process is started again where there was none to be had: what the system lacked may be given back meanwhile."""
_STACKS_SECONDS = 0.1
"""A stuck engine gets to write where its threads are before it is killed."""


class Supervisor:
    """``EngineClient`` over a supervised process. Lives on one event loop; only ``spawner`` runs elsewhere.

    ``spawner`` is the one thread that starts processes: it keeps the priority that this process began with, and a child
    inherits the priority of the thread that starts it. ``outcome`` resolves to (exit status, message) on giving up.
    """

    def __init__(
        self,
        *,
        status: Status,
        log: Log,
        spawner: concurrent.futures.ThreadPoolExecutor,
        max_pending: int,
        max_pending_tokens: int,
        on_ready: Callable[[Ready, EngineProcess], None],
        inject_faults: bool = False,
        watch_interval: float = WATCH_INTERVAL,
    ) -> None:
        self._status = status
        self._log = log
        self._spawner = spawner
        self._max_pending = max_pending
        self._max_pending_tokens = max_pending_tokens
        self._on_ready = on_ready
        self._inject_faults = inject_faults
        self._watch_interval = watch_interval
        self._table = RequestTable()
        self._config: EngineConfig | None = None
        self._pin: Pin | None = None
        self._engine: EngineProcess | None = None
        self._connection: Connection | None = None
        self._fatal: Fatal | None = None
        self._closing = False
        self._has_worked = False
        self._crashes: deque[float] = deque(maxlen=CRASHES)
        self._stats = EngineStats()
        self._before = EngineStats()
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcome: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    # EngineClient

    @property
    def stats(self) -> EngineStats:
        return continued(self._stats, self._before)

    @property
    def pending(self) -> int:
        """Requests that have had no token."""
        return self._table.pending

    @property
    def pending_tokens(self) -> int:
        """Tokens of their prompts."""
        return self._table.pending_tokens

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        if self._closing:  # as one that was on a thread meanwhile: nobody would settle it
            raise errors.draining()
        if not self._status.engine_up:
            raise errors.not_ready(self._status.phase)
        if self._is_full(len(request.prompt_token_ids)):
            raise errors.busy(self._table.retry_after())
        self._table.add(request, mailbox)
        self._note_queue()
        self._send(Add(request))
        self._status.expect()

    def abort(self, request_id: str, branch: int | None = None) -> None:
        if not self._table.abort(request_id, branch):
            return
        self._note_queue()
        if self._status.engine_up:
            self._send(Abort(request_id, branch))
        else:  # an engine that loads has not been given the request, and takes no message before it is ready
            self._table.settle(request_id, None)

    # the process

    async def attach(self, engine: EngineProcess, config: EngineConfig) -> None:
        """Connects to a process that has been told to load ``config``, which a successor will be told too."""
        self._config, self._engine, self._fatal = config, engine, None
        self._status.loading("loading", 0.0)
        self._status.expect()
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_unix_connection(
            lambda: Connection(self._on_message, self._on_lost), sock=engine.sock
        )
        self._in_background(self._watch(engine))

    def pin(self, prefixes: list[list[int]]) -> None:
        """Tells the engine, which waits for it before it is ready, and every successor, the token ids of the prefixes that the
        configuration wants pinned."""
        self._pin = Pin(prefixes)
        self._send(self._pin)

    async def close(self) -> None:
        """Ends the engine process: politely, then not."""
        self._closing = True
        self._table.fail_all(errors.draining())
        if self._engine is None:
            return
        self._send(Shutdown())
        if not self._status.engine_up:
            self.kill()
        # Others' work may fill the default executor. The spawner has nothing long to do once there was an engine.
        await asyncio.get_running_loop().run_in_executor(self._spawner, reap, self._engine.process)

    def kill(self) -> None:
        """Ends the engine process at once."""
        self._closing = True
        if self._engine is not None:
            with contextlib.suppress(ProcessLookupError):
                self._engine.process.kill()

    def _is_full(self, prompt_tokens: int) -> bool:
        """Whether one more prompt is too much. An empty queue takes any that the engine can compute."""
        pending, tokens = self._table.pending, self._table.pending_tokens
        return pending >= self._max_pending or (pending > 0 and tokens + prompt_tokens > self._max_pending_tokens)

    def _note_queue(self) -> None:
        self._status.queue_full = self._is_full(1)

    def _send(self, message: ToEngine) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _on_message(self, message: FromEngine) -> None:
        if isinstance(message, Step):
            self._on_step(message)
        elif isinstance(message, PromptPiece):
            self._table.keep(message)
        elif isinstance(message, Ended):
            self._table.settle(message.request_id, message.metrics)
        elif isinstance(message, Refused):
            self._on_refused(message)
        elif isinstance(message, Progress):
            self._status.loading(message.phase, message.fraction)
        elif isinstance(message, Ready):
            self._on_engine_ready(message)
        elif isinstance(message, Fatal):
            self._fatal = message
        if self._status.engine_up:
            self._note_queue()
        # Whatever it says is a sign of life. One that loads owes the next.
        self._status.heard(busy=not self._status.engine_up or len(self._table) > 0)

    def _on_step(self, step: Step) -> None:
        for delta in step.deltas:
            self._table.deliver(delta)
        if step.seconds:
            self._status.steps.observe(step.seconds)
        if step.stats is not None:
            self._stats = step.stats

    def _on_refused(self, message: Refused) -> None:
        if message.internal:
            error = errors.internal(message.message)
        else:
            error = errors.from_parameter_error(ParameterError(message.message, param=message.param))
        self._table.refuse(message.request_id, error)

    def _on_engine_ready(self, ready: Ready) -> None:
        self._status.up()
        self._has_worked = True
        for request in self._table.resubmit():
            self._send(Add(request))
            self._status.expect()
        if self._engine is not None:
            self._on_ready(ready, self._engine)

    def _on_lost(self) -> None:
        if not self._closing:
            self._in_background(self._after_crash())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._or_give_up(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _or_give_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Nobody waits for ``work``: without it, no engine would be watched or started again."""
        try:
            await work
        except Exception as error:
            self._log.error("supervisor", "the engine cannot be looked after", exception=traceback.format_exc())
            self._give_up(ENGINE_FAULT, f"{type(error).__name__}: {error}")

    async def _watch(self, engine: EngineProcess) -> None:
        """Kills an engine that is stuck, which is then a crash like any other."""
        looks = 0
        while looks < LOOKS:
            await asyncio.sleep(self._watch_interval)
            if self._engine is not engine or self._closing:
                return
            looks = looks + 1 if self._status.stalled else 0
        work = "work" if self._status.engine_up else "loading"
        reason = f"no sign of life for {self._status.silence():.0f} s of {work}"
        doing = ", ".join(busiest_threads(engine.process.pid))
        self._fatal = Fatal(kind="engine", message=f"{reason}; its threads: {doing}" if doing else reason)
        engine.process.send_signal(interpreter.LAST_WORDS)
        await asyncio.sleep(_STACKS_SECONDS)
        engine.process.kill()

    async def _after_crash(self) -> None:
        """Tells the streams first, then finds out why, then decides whether to go on."""
        engine, config = self._engine, self._config
        if engine is None or config is None:
            return
        self._status.down()
        self._before, self._stats = self.stats, EngineStats()
        self._table.engine_lost(errors.engine_restarted())
        self._note_queue()
        # The spawner has its thread already, and the system may have no other.
        exit_status = await asyncio.get_running_loop().run_in_executor(self._spawner, reap, engine.process)
        if self._closing:
            return
        reason = self._fatal.message if self._fatal else describe(exit_status)
        refused = self._fatal is not None and self._fatal.kind == "config"
        if refused and not self._has_worked:
            self._give_up(BAD_CONFIG, reason)
            return
        if not self._count_crash(reason):
            return
        if refused:  # what it lacks now, as memory that others have taken, it had before
            await self._wait_to_try_again(reason)
        else:
            self._log.error("engine_crash", f"the engine stopped ({reason}); starting it again")
        await self._start_again(config)

    def _count_crash(self, reason: str) -> bool:
        """Whether to go on."""
        now = time.monotonic()
        self._crashes.append(now)
        if len(self._crashes) < CRASHES or now - self._crashes[0] > CRASH_WINDOW:
            return True
        self._give_up(ENGINE_FAULT, f"the engine failed {CRASHES} times within {CRASH_WINDOW:g} s, last: {reason}")
        return False

    async def _start_again(self, config: EngineConfig) -> None:
        """Tries until there is a process. One that cannot be started counts as one that crashed."""
        while not self._closing:
            try:
                await self._start_successor(config)
                return
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
            if not self._count_crash(f"it cannot be started: {reason}"):
                return
            await self._wait_to_try_again(reason)

    async def _wait_to_try_again(self, reason: str) -> None:
        self._log.error("engine_crash", f"the engine cannot be started ({reason}); trying again in {RETRY_SECONDS:g} s")
        await asyncio.sleep(RETRY_SECONDS)

    async def _start_successor(self, config: EngineConfig) -> None:
        successor = await asyncio.get_running_loop().run_in_executor(self._spawner, EngineProcess.spawn)
        try:
            await self.attach(successor, config)
        except OSError:
            self._status.loading("restarting", 0.0)
            self._status.heard(busy=False)
            successor.process.kill()
            successor.sock.close()
            raise
        self._send(Load(config, self._inject_faults))
        if self._pin is not None:
            self._send(self._pin)

    def _give_up(self, exit_status: int, message: str) -> None:
        self._table.fail_all(errors.engine_restarted())
        if not self.outcome.done():
            self.outcome.set_result((exit_status, message))
