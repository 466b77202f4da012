"""The supervisor with a scripted engine process on the other end of its socket."""

import asyncio
import concurrent.futures
import errno
import io
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.server import interpreter, status, supervisor, wire
from octavo.server.engine_client import Mailbox
from octavo.server.engine_handle import EngineProcess
from octavo.server.errors import ApiError
from octavo.server.framing import FrameReader
from octavo.server.request_log import Log
from octavo.server.status import Status
from octavo.server.supervisor import Supervisor
from octavo.server.threads import busiest_threads
from octavo.server.wire import Abort, Add, Ended, Fatal, Load, Pin, Progress, Ready, Refused, Step, Working, frame
from tests.server.fakes import MODEL
from tests.server.test_engine_loop import delta, request

READY = Ready(
    started_at=0.0,
    model_config=MODEL,
    max_model_len=64,
    num_device_blocks=8,
    num_host_blocks=0,
    block_size=16,
    dtype="float32",
    weight_format="plain",
    activation_bits=16,
    backend="fake",
    isa="none",
    phases={},
)


class FakeProcess:
    """Ends when it is killed, which closes its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.killed = False
        self.signals: list[int] = []
        self.pid = -1

    def wait(self, timeout: float | None = None) -> int:
        return -9 if self.killed else 70

    def send_signal(self, number: int) -> None:
        assert not self.killed
        self.signals.append(number)

    def kill(self) -> None:
        self.killed = True
        self.sock.close()


class FakeEngineProcess:
    """One life of the engine: what it was told, and a way to speak."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.process = FakeProcess(self.sock)
        self.handle = EngineProcess(self.process, ours, 0.0)  # type: ignore[arg-type]  # as much of a Popen as is used
        self._reader, self._decode = FrameReader(), msgspec.msgpack.Decoder(wire.ToEngine).decode
        self.told: list[wire.ToEngine] = []

    def say(self, *messages: wire.FromEngine) -> None:
        self.sock.sendall(b"".join(map(frame, messages)))

    async def hear(self) -> wire.ToEngine:
        while not self.told:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 16), 5)
            self.told += [self._decode(body) for body in self._reader.feed(data)]
        return self.told.pop(0)

    async def silent(self) -> bool:
        """Whether it has been told nothing more."""
        await asyncio.sleep(0.02)
        try:
            return not self.told and not self.sock.recv(1)
        except BlockingIOError:
            return not self.told


class Stage:
    """A supervisor and the engine processes that it has started, the first one attached but not ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.engines = [FakeEngineProcess()]
        self.refusals = {"spawn": 0, "attach": 0}
        self.status = Status()
        self.status.text_ready()
        self.log = io.StringIO()
        monkeypatch.setattr(EngineProcess, "spawn", staticmethod(self._spawn))
        loop = asyncio.get_running_loop()
        connect = loop.create_unix_connection

        def connected(*args: Any, **kwargs: Any) -> Any:
            self._refuse("attach")
            return connect(*args, **kwargs)

        monkeypatch.setattr(loop, "create_unix_connection", connected)
        self.supervisor = Supervisor(
            status=self.status,
            log=Log(self.log, as_json=True),
            spawner=concurrent.futures.ThreadPoolExecutor(1),
            max_pending=2,
            max_pending_tokens=100,
            on_ready=lambda ready, process: None,
            **options,
        )

    def _refuse(self, what: str) -> None:
        if self.refusals[what]:
            self.refusals[what] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _spawn(self) -> EngineProcess:
        self._refuse("spawn")
        self.engines.append(FakeEngineProcess())
        return self.engines[-1].handle

    @property
    def engine(self) -> FakeEngineProcess:
        return self.engines[-1]

    async def begin(self) -> None:
        await self.supervisor.attach(self.engine.handle, EngineConfig(model="m"))
        self.engine.say(READY)
        await until(lambda: self.status.engine_up)

    async def successor(self) -> FakeEngineProcess:
        """The engine process that follows a crash, having been told what to load."""
        count = len(self.engines)
        self.engine.sock.close()
        await until(lambda: len(self.engines) > count)
        assert isinstance(await self.engine.hear(), Load)
        return self.engine


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scene(), 20)

    asyncio.run(limited())


def test_an_engine_that_loads_is_told_of_no_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage, gone, kept = Stage(monkeypatch), Mailbox(), Mailbox()
        await stage.begin()
        stage.supervisor.submit(request("gone"), gone)
        stage.supervisor.submit(request("kept"), kept)
        assert [await stage.engine.hear(), await stage.engine.hear()] == [Add(request("gone")), Add(request("kept"))]
        engine = await stage.successor()
        stage.supervisor.abort("gone")
        assert await engine.silent()
        assert await gone.accounts(5) == [] and gone._settled.is_set()
        engine.say(READY)
        assert await engine.hear() == Add(request("kept"))
        stage.supervisor.abort("kept")
        assert await engine.hear() == Abort("kept")
        metrics = RequestMetrics(arrival_time=0.0, num_swaps=3)
        engine.say(Ended(request_id="kept", metrics=metrics))
        assert await kept.accounts(5) == [metrics]

    play(scene)


def test_a_request_that_comes_after_the_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch)
        await stage.begin()
        await stage.supervisor.close()
        with pytest.raises(ApiError) as told:
            stage.supervisor.submit(request("late"), Mailbox())
        assert told.value.status == 503 and "shutting down" in str(told.value)
        assert stage.supervisor.pending == 0

    play(scene)


def test_the_end_does_not_wait_for_the_work_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage, loop, go_on = Stage(monkeypatch), asyncio.get_running_loop(), threading.Event()
        await stage.begin()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        rendering = loop.run_in_executor(None, go_on.wait)
        try:
            await asyncio.wait_for(stage.supervisor.close(), 2)
        finally:
            go_on.set()
            await rendering

    play(scene)


def test_every_engine_is_told_what_to_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage, pin = Stage(monkeypatch), Pin([[1, 2], [3]])
        await stage.supervisor.attach(stage.engine.handle, EngineConfig(model="m", pin_prefix=("a", "b")))
        assert await stage.engine.silent()
        engine = await stage.successor()  # the first one died before the tokenizer was there
        assert await engine.silent()
        stage.supervisor.pin(pin.prefixes)
        assert await engine.hear() == pin
        engine.say(READY)
        await until(lambda: stage.status.engine_up)
        assert await (await stage.successor()).hear() == pin

    play(scene)


def test_a_refusal_makes_room_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch)
        await stage.begin()
        for name in ("a", "b"):
            stage.supervisor.submit(request(name), Mailbox())
        assert stage.status.ready()[1] == {"status": "queue full"}
        stage.engine.say(Refused(request_id="a", message="never fits"))
        await until(lambda: stage.supervisor.pending == 1)
        assert stage.status.ready()[0] == 200

    play(scene)


def test_a_queue_is_full_of_tokens_before_it_is_full_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that is longer than the limit is taken by an empty queue, or nobody could ever ask it."""

    async def scene() -> None:
        stage = Stage(monkeypatch)
        await stage.begin()
        long = msgspec.structs.replace(request("long"), prompt_token_ids=[1] * 500)
        stage.supervisor.submit(long, Mailbox())
        assert stage.status.queue_full
        with pytest.raises(ApiError) as caught:
            stage.supervisor.submit(request("short"), Mailbox())
        assert caught.value.status == 503 and int(caught.value.headers["retry-after"]) >= 1
        stage.supervisor.abort("long")
        stage.supervisor.submit(request("short"), Mailbox())
        assert not stage.status.queue_full

    play(scene)


def test_tokens_arrive_and_the_engine_owes_nothing_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage, mailbox = Stage(monkeypatch), Mailbox()
        await stage.begin()
        stage.supervisor.submit(request("a"), mailbox)
        last: TokenDelta = delta("a", last=True)
        stage.engine.say(Step(deltas=[last]))
        assert await mailbox.get() == [last]
        assert stage.status.silence() == 0.0

    play(scene)


def test_a_stuck_engine_is_replaced_like_a_crashed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard from it: its streams are told, and what waited goes to the next."""
    monkeypatch.setattr(status, "STALL_SECONDS", 0.05)

    async def scene() -> None:
        stage, streaming, waiting = Stage(monkeypatch, watch_interval=0.01), Mailbox(), Mailbox()
        await stage.begin()
        stage.supervisor.submit(request("streaming"), streaming)
        stage.engine.say(Step(deltas=[delta("streaming")]))
        assert len(await streaming.get()) == 1
        stage.supervisor.submit(request("waiting"), waiting)
        stuck = stage.engine
        with pytest.raises(ApiError) as told:
            await streaming.get()
        assert told.value.type == "engine_restarted" and stuck.process.killed
        assert stuck.process.signals == [interpreter.LAST_WORDS], "what it was doing is told"
        await until(lambda: len(stage.engines) == 2)
        assert isinstance(await stage.engine.hear(), Load)
        stage.engine.say(READY)
        assert await stage.engine.hear() == Add(request("waiting"))
        stage.engine.say(Step(deltas=[delta("waiting", last=True)]))
        assert (await waiting.get())[0].finish_reason == "stop"
        assert stage.status.restarts == 1 and "no sign of life" in stage.log.getvalue()
        await asyncio.sleep(0.2)
        assert stage.status.restarts == 1, "an engine without work may be silent"

    play(scene)


def test_an_engine_that_gets_on_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may take longer than any limit, as that of a large model on a small machine."""
    monkeypatch.setattr(status, "STALL_SECONDS", 0.1)

    async def scene() -> None:
        stage, waiting = Stage(monkeypatch, watch_interval=0.02), Mailbox()
        await stage.begin()
        stage.supervisor.submit(request("waiting"), waiting)
        for _ in range(20):
            stage.engine.say(Working())
            await asyncio.sleep(0.02)
        assert not stage.engine.process.killed
        await until(lambda: stage.engines[0].process.killed)

    play(scene)


def test_one_late_look_replaces_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes may have slept."""
    silence = [1000.0]
    monkeypatch.setattr(Status, "silence", lambda self: silence[0])

    async def scene() -> None:
        stage = Stage(monkeypatch, watch_interval=0.05)
        await stage.begin()
        await asyncio.sleep(0.06)
        assert stage.status.stalled
        silence[0] = 0.0
        await asyncio.sleep(0.2)
        assert not stage.engine.process.killed

    play(scene)


def test_an_engine_that_loads_tells_of_it_or_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it would wait without end. Meanwhile the server is not live."""
    monkeypatch.setattr(status, "LOADING_SECONDS", 0.3)

    async def scene() -> None:
        stage, waiting = Stage(monkeypatch, watch_interval=0.02), Mailbox()
        await stage.begin()
        stage.supervisor.submit(request("waiting"), waiting)
        stuck = await stage.successor()
        for number in range(20):
            stuck.say(Progress("load weights", number / 20) if number % 2 else Working())
            await asyncio.sleep(0.03)
        assert not stuck.process.killed and stage.status.live()[0] == 200
        await until(lambda: stage.status.live()[0] == 503)
        await until(lambda: stuck.process.killed)
        assert stuck.process.signals == [interpreter.LAST_WORDS]
        await until(lambda: len(stage.engines) == 3)
        assert "of loading" in stage.log.getvalue() and stage.status.restarts == 2
        assert stage.status.live()[0] == 200

    play(scene)


@pytest.mark.parametrize("failing", ["spawn", "attach"])
def test_an_engine_that_cannot_be_started_is_tried_again(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there have been too many crashes, of which each try that fails is one."""
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.01)

    async def scene() -> None:
        stage = Stage(monkeypatch)
        await stage.begin()
        stage.refusals[failing] = 1
        first = stage.engine
        first.sock.close()
        await until(lambda: not stage.refusals[failing] and stage.engine is not first and not stage.engine.process.killed)
        assert isinstance(await stage.engine.hear(), Load)
        stage.engine.say(READY)
        await until(lambda: stage.status.engine_up)
        assert "the engine cannot be started (too many open files)" in stage.log.getvalue()
        assert not stage.supervisor.outcome.done()
        stage.refusals[failing] = 1
        stage.engine.sock.close()
        told = await stage.supervisor.outcome
        assert told == (70, "the engine failed 3 times within 60 s, last: exit status 70")

    play(scene)


def test_what_has_worked_is_not_wrong_because_a_successor_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where others have taken the memory meanwhile."""
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.01)

    async def scene() -> None:
        stage = Stage(monkeypatch)
        await stage.begin()
        stage.engine.sock.close()
        await until(lambda: len(stage.engines) == 2)
        assert isinstance(await stage.engine.hear(), Load)
        stage.engine.say(Fatal(kind="config", message="ask for less"))
        stage.engine.sock.close()
        await until(lambda: len(stage.engines) == 3)
        assert isinstance(await stage.engine.hear(), Load)
        stage.engine.say(READY)
        await until(lambda: stage.status.engine_up)
        assert "cannot be started (ask for less); trying again" in stage.log.getvalue()
        assert not stage.supervisor.outcome.done()

    play(scene)


def test_a_configuration_that_has_never_worked_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch)
        await stage.supervisor.attach(stage.engine.handle, EngineConfig(model="m"))
        stage.engine.say(Fatal(kind="config", message="ask for less"))
        stage.engine.sock.close()
        assert await stage.supervisor.outcome == (64, "ask for less")

    play(scene)


def test_a_server_that_can_start_no_engine_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.01)

    async def scene() -> None:
        stage, waiting = Stage(monkeypatch), Mailbox()
        await stage.begin()
        stage.supervisor.submit(request("waiting"), waiting)
        stage.refusals["spawn"] = 2
        stage.engine.sock.close()
        told = await stage.supervisor.outcome
        assert told == (70, "the engine failed 3 times within 60 s, last: it cannot be started: too many open files")
        with pytest.raises(ApiError):
            await waiting.get()

    play(scene)


def test_a_supervisor_that_fails_gives_up_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch)
        await stage.begin()
        monkeypatch.setattr(EngineProcess, "spawn", staticmethod(lambda: 1 // 0))
        stage.engine.sock.close()
        assert (await stage.supervisor.outcome)[0] == 70
        assert "Traceback" in stage.log.getvalue() and "ZeroDivisionError" in stage.log.getvalue()

    play(scene)


def test_threads_are_told_of_by_what_they_have_computed() -> None:
    told = busiest_threads(os.getpid())
    times = [float(line.split()[-2]) for line in told]
    assert 1 <= len(told) <= 4 and times == sorted(times, reverse=True)
    assert any(line.split()[-3] in ("R", "S") for line in told)
    assert busiest_threads(-1) == busiest_threads(2**31 - 1) == []
