"""The engine process's loop and the supervisor's table, each with a script on the other side."""

import asyncio
import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import msgspec
import pytest

from octavo.metrics import EngineStats, Histogram, continued
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.sampling_params import ParameterError, SamplingParams
from octavo.server import errors, interpreter, wire
from octavo.server.engine_client import Mailbox, RequestTable
from octavo.server.engine_process import Channel, EngineLoop, Pulse
from octavo.server.exit_codes import ENGINE_FAULT
from octavo.server.framing import FrameReader, WireError
from octavo.server.log_writer import LogWriter
from octavo.server.status import STALL_SECONDS, Status
from octavo.server.wire import Abort, Add, Ended, Fatal, Refused, Shutdown, Step, Working, frame


def request(name: str, n: int = 1) -> Request:
    return Request(id=name, prompt_token_ids=[1], params=SamplingParams(n=n), seed=1, arrival_time=0.0)


def delta(name: str, branch: int = 0, *, last: bool = False) -> TokenDelta:
    return TokenDelta(request_id=name, branch=branch, token_ids=[7], finish_reason="stop" if last else None)


METRICS = RequestMetrics(arrival_time=0.0, queue_time=0.5, num_preemptions=2)


class CountingEngine:
    """Two tokens for every request; ``never`` can never fit and ``broken`` raises something else."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.aborted: list[str] = []
        self.idle_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self.left)

    def add(self, request: Request) -> None:
        if request.id == "never":
            raise ParameterError("needs 9 blocks, there are 4", param="max_tokens")
        if request.id == "broken":
            raise RuntimeError("internal detail")
        self.left[request.id] = 2

    def abort(self, request_id: str, branch: int | None = None) -> RequestMetrics | None:
        self.aborted.append(request_id)
        return METRICS if self.left.pop(request_id, None) is not None else None

    def step(self) -> list[TokenDelta]:
        self.idle_steps += not self.left
        found = []
        for name in list(self.left):
            self.left[name] -= 1
            found.append(delta(name, last=self.left[name] == 0))
            if self.left[name] == 0:
                del self.left[name]
        return found

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.left))


class Peer:
    """The API's end of an engine loop that runs on a thread."""

    def __init__(self, engine: CountingEngine, log: Callable[[str], None] | None = None) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(10)
        self.logged: list[str] = []
        self.ended: list[BaseException | None] = []
        self._reader, self._decode = FrameReader(), msgspec.msgpack.Decoder(wire.FromEngine).decode
        self._messages: list[wire.FromEngine] = []
        loop = EngineLoop(engine, Channel(theirs), log or self.logged.append)
        self._thread = threading.Thread(target=self._run, args=(loop,), daemon=True)
        self._thread.start()

    def _run(self, loop: EngineLoop) -> None:
        try:
            loop.run()
            self.ended.append(None)
        except BaseException as error:
            self.ended.append(error)

    def send(self, *messages: wire.ToEngine) -> None:
        self.sock.sendall(b"".join(map(frame, messages)))

    def receive(self) -> wire.FromEngine:
        while not self._messages:
            data = self.sock.recv(1 << 16)
            assert data, "the engine is gone"
            self._messages += [self._decode(body) for body in self._reader.feed(data)]
        return self._messages.pop(0)

    def until_last_delta(self, name: str) -> list[TokenDelta]:
        found: list[TokenDelta] = []
        while not any(d.request_id == name and d.finish_reason for d in found):
            message = self.receive()
            if isinstance(message, Step):
                found += message.deltas
        return found

    def join(self) -> BaseException | None:
        self._thread.join(10)
        return self.ended[0]


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
def peer(engine: CountingEngine) -> Iterator[Peer]:
    peer = Peer(engine)
    yield peer
    peer.sock.close()


def test_requests_are_computed_and_idleness_is_reported(peer: Peer, engine: CountingEngine) -> None:
    first = peer.receive()
    assert isinstance(first, Step) and first.stats == EngineStats()
    peer.send(Add(request("a")), Add(request("b")))
    found = peer.until_last_delta("b")
    assert [d.request_id for d in found].count("a") == 2 and [d.request_id for d in found].count("b") == 2
    peer.send(Shutdown())
    assert peer.join() is None and engine.idle_steps == 0


def test_the_last_step_brings_the_statistics_of_an_idle_engine(peer: Peer) -> None:
    peer.receive()
    peer.send(Add(request("a")))
    last = None
    while not (isinstance(last, Step) and last.deltas and last.deltas[-1].finish_reason):
        last = peer.receive()
    assert last.stats is not None and last.stats.num_running == 0


def test_one_bad_request_is_refused_alone(peer: Peer) -> None:
    peer.receive()
    peer.send(Add(request("never")), Add(request("broken")), Add(request("good")))
    never, broken = peer.receive(), peer.receive()
    assert never == Refused(request_id="never", message="needs 9 blocks, there are 4", param="max_tokens")
    assert isinstance(broken, Refused) and broken.internal and "detail" not in broken.message
    assert peer.until_last_delta("good")
    assert len(peer.logged) == 1 and broken.message in peer.logged[0] and "internal detail" in peer.logged[0]


@pytest.fixture
def full_pipe() -> Iterator[TextIO]:
    """The end to write to of a pipe that nobody reads, and that has no room."""
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, bytes(size))
    with contextlib.suppress(BrokenPipeError), open(writing, "w", encoding="utf-8") as stream:
        yield stream
        os.close(reading)


def test_nobody_waits_for_who_reads_of_a_refusal(engine: CountingEngine, full_pipe: TextIO) -> None:
    peer = Peer(engine, LogWriter(full_pipe, str).write)
    peer.receive()
    peer.send(Add(request("broken")), Add(request("good")))
    assert isinstance(peer.receive(), Refused)
    assert peer.until_last_delta("good")


def test_an_engine_that_fails_ends_whoever_reads_of_it(full_pipe: TextIO) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    process = interpreter.start("octavo.server.engine_process", [theirs], output=full_pipe)
    theirs.close()
    try:
        ours.sendall(frame(Shutdown()))  # which is no way to begin
        body = next(iter(FrameReader().feed(ours.recv(1 << 16))))
        message = msgspec.msgpack.Decoder(wire.FromEngine).decode(body)
        assert isinstance(message, Fatal) and message.kind == "engine"
        assert process.wait(30) == ENGINE_FAULT
    finally:
        process.kill()
        process.wait()
        ours.close()


@pytest.mark.usefixtures("many_files")
def test_the_number_of_the_socket_does_not_matter(engine: CountingEngine) -> None:
    peer = Peer(engine)
    assert peer.sock.fileno() >= 1024
    peer.send(Add(request("a")))
    assert peer.until_last_delta("a")
    peer.sock.close()
    assert isinstance(peer.join(), EOFError)


def test_aborts_reach_the_engine(peer: Peer, engine: CountingEngine) -> None:
    peer.receive()
    peer.send(Abort("gone"), Add(request("a")))
    peer.until_last_delta("a")
    assert engine.aborted == ["gone"]


def test_an_abort_that_ends_a_request_is_answered_with_its_account(peer: Peer) -> None:
    peer.receive()
    peer.send(Add(request("a")), Abort("a"))
    while not isinstance(message := peer.receive(), Ended):
        assert isinstance(message, Step)
    assert message == Ended(request_id="a", metrics=METRICS)


def test_the_loop_ends_when_the_other_side_is_gone(peer: Peer) -> None:
    peer.receive()
    peer.sock.close()
    assert isinstance(peer.join(), EOFError)


def test_frames_survive_any_cut() -> None:
    messages: list[wire.ToEngine] = [Add(request("a", 3)), Abort("a", 1), Abort("b"), Shutdown()]
    stream = b"".join(map(frame, messages))
    decode = msgspec.msgpack.Decoder(wire.ToEngine).decode
    for size in (1, 2, 3, 5, 7, 64, len(stream)):
        reader = FrameReader()
        found = [decode(body) for i in range(0, len(stream), size) for body in reader.feed(stream[i : i + size])]
        assert found == messages


def test_a_length_above_the_cap_is_refused_before_it_is_believed() -> None:
    with pytest.raises(WireError):
        list(FrameReader().feed(b"\xff\xff\xff\xff"))


def test_only_agreed_messages_decode() -> None:
    for body in (b"", b"\xc1", msgspec.msgpack.encode({"type": "Exec", "code": "x"}), msgspec.msgpack.encode([1, 2])):
        with pytest.raises(msgspec.DecodeError):
            msgspec.msgpack.Decoder(wire.ToEngine).decode(body)


def drain(mailbox: Mailbox) -> list[TokenDelta]:
    return asyncio.run(asyncio.wait_for(mailbox.get(), 5))


def test_the_table_tells_who_had_a_token() -> None:
    table, started, waiting = RequestTable(), Mailbox(), Mailbox()
    table.add(request("a"), started)
    table.add(request("b"), waiting)
    assert table.pending == 2
    table.deliver(delta("a"))
    assert table.pending == 1
    table.engine_lost(errors.engine_restarted())
    assert [r.id for r in table.resubmit()] == ["b"]
    assert [d.request_id for d in drain(started)] == ["a"]
    with pytest.raises(errors.ApiError):
        drain(started)
    table.deliver(delta("b", last=True))
    assert drain(waiting)[0].finish_reason == "stop" and len(table) == table.pending == 0


def test_a_request_that_two_engines_died_with_is_not_given_to_a_third() -> None:
    table, mailbox = RequestTable(), Mailbox()
    table.add(request("poison"), mailbox)
    table.engine_lost(errors.engine_restarted())
    assert len(table.resubmit()) == 1
    table.engine_lost(errors.engine_restarted())
    assert table.resubmit() == [] and table.pending == 0
    with pytest.raises(errors.ApiError):
        drain(mailbox)


def test_branches_end_once_whoever_ends_them() -> None:
    table, mailbox = RequestTable(), Mailbox()
    table.add(request("a", n=3), mailbox)
    assert table.abort("a", 0)
    table.deliver(delta("a", 0))
    table.deliver(delta("a", 0, last=True))
    table.deliver(delta("a", 1, last=True))
    assert len(table) == 1
    table.deliver(delta("a", 2, last=True))
    assert len(table) == 0 and [d.branch for d in drain(mailbox)] == [1, 2]
    assert not table.abort("a", None) and not table.abort("unknown", None)


def test_an_aborted_request_gets_nothing_more() -> None:
    table, mailbox = RequestTable(), Mailbox()
    table.add(request("a", n=2), mailbox)
    assert table.abort("a", None) and len(table) == table.pending == 0
    table.deliver(delta("a"))
    assert mailbox._deltas == []


def accounts(mailbox: Mailbox, timeout: float = 5) -> list[RequestMetrics]:
    return asyncio.run(mailbox.accounts(timeout))


def test_a_repeated_id_takes_no_place_in_the_queue() -> None:
    table, first, second = RequestTable(), Mailbox(), Mailbox()
    table.add(request("a"), first)
    with pytest.raises(ValueError):
        table.add(request("a"), second)
    table.deliver(delta("a", last=True))
    assert table.pending == len(table) == 0 and drain(first) and accounts(second) == []


def test_an_account_finds_its_way_after_the_request_has_ended_here() -> None:
    table, aborted, overtaken = RequestTable(), Mailbox(), Mailbox()
    table.add(request("aborted"), aborted)
    table.add(request("overtaken"), overtaken)
    table.abort("aborted", None)
    table.abort("overtaken", 0)
    table.settle("aborted", METRICS)
    table.deliver(msgspec.structs.replace(delta("overtaken", last=True), metrics=METRICS))
    assert accounts(aborted) == accounts(overtaken) == [METRICS] and overtaken._deltas == []


def test_nobody_waits_for_the_account_of_a_lost_engine() -> None:
    table, mailboxes = RequestTable(), [Mailbox() for _ in range(4)]
    for name, mailbox in zip(("refused", "aborted", "started", "waiting"), mailboxes, strict=True):
        table.add(request(name), mailbox)
    table.refuse("refused", errors.busy(1))
    table.abort("aborted", None)
    table.deliver(delta("started"))
    table.engine_lost(errors.engine_restarted())
    assert [mailbox._settled.is_set() for mailbox in mailboxes] == [True, True, True, False]
    table.fail_all(errors.draining())
    assert mailboxes[3]._settled.is_set()


@pytest.mark.parametrize("seconds_between, waits", [(1.0, 10), (0.25, 3)])
def test_retry_after_follows_the_rate(monkeypatch: pytest.MonkeyPatch, seconds_between: float, waits: int) -> None:
    """That of requests which have begun since the queue was empty, however short a time ago that is."""
    now = [1000.0]
    monkeypatch.setattr("octavo.server.engine_client.time.monotonic", lambda: now[0])
    table = RequestTable()
    assert table.retry_after() == 5
    now[0] += 100  # an empty queue says nothing about the rate
    for i in range(10):
        table.add(request(f"waiting-{i}"), Mailbox())
    for i in range(20):
        now[0] += seconds_between
        table.add(request(f"done-{i}"), Mailbox())
        table.deliver(delta(f"done-{i}", last=True))
    assert table.retry_after() == waits
    for i in range(1000):
        table.add(request(f"more-{i}"), Mailbox())
    assert table.retry_after() == 60


def test_counters_go_on_when_an_engine_is_replaced() -> None:
    before = EngineStats(num_running=3, steps=10, prompt_tokens=5)
    now = continued(EngineStats(num_running=1, steps=2), before)
    assert (now.num_running, now.steps, now.prompt_tokens) == (1, 12, 5)


def test_histograms_count_inclusively() -> None:
    histogram = Histogram((1, 2.5, 10))
    for value in (0.5, 1, 2, 10, 11):
        histogram.observe(value)
    histogram.observe(2, 3)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.5", 6.0), ("10.0", 7.0), ("+Inf", 8.0)]
    assert histogram.cumulative((10,)) == [("10.0", 7.0), ("+Inf", 8.0)]
    assert histogram.count == 8 and histogram.total == 30.5


def test_liveness_is_owed_only_by_a_working_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("octavo.server.status.time.monotonic", lambda: clock[0])
    status = Status()
    assert status.startup() == (503, {"phase": "starting", "progress": 0.0}) and status.live()[0] == 200
    status.up()
    assert status.ready()[0] == 503 and status.startup()[0] == 503
    status.text_ready()
    assert status.ready()[0] == status.startup()[0] == 200
    clock[0] += 1000
    assert status.live()[0] == 200
    status.expect()
    clock[0] += STALL_SECONDS + 1
    assert status.live()[0] == 503 and status.ready()[0] == 503
    status.heard(busy=True)
    assert status.live()[0] == 200
    clock[0] += STALL_SECONDS + 1
    assert status.live()[0] == 503
    status.heard(busy=False)
    assert status.live()[0] == 200
    for _ in range(100):
        status.steps.observe(0.9)
    assert status.stall_limit() == 20.0
    status.down()
    assert status.ready()[0] == 503 and status.live()[0] == 200 and status.startup()[0] == 200


def test_the_pulse_beats_while_something_gets_on() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pulse, done = Pulse(Channel(theirs)), [0]
    beats = FrameReader()

    def heard() -> list[wire.FromEngine]:
        pulse.beat()
        try:
            return [msgspec.msgpack.Decoder(wire.FromEngine).decode(body) for body in beats.feed(ours.recv(1 << 16))]
        except BlockingIOError:
            return []

    assert heard() == [], "nothing is loaded"
    pulse.follow(lambda: done[0])
    assert heard() == []
    done[0] += 1
    assert heard() == [Working()]
    assert heard() == []
    ours.close()
    done[0] += 1
    pulse.beat()


def test_the_queue_is_counted_in_tokens_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("octavo.server.engine_client.time.monotonic", lambda: now[0])
    table = RequestTable()
    for name, length in (("a", 100), ("b", 10), ("c", 1)):
        table.add(msgspec.structs.replace(request(name), prompt_token_ids=[1] * length), Mailbox())
    assert table.pending_tokens == 111
    now[0] += 10
    table.deliver(delta("a"))
    table.deliver(delta("a"))
    assert table.pending_tokens == 11
    table.abort("b", None)
    assert (table.pending, table.pending_tokens) == (1, 1)
    assert table.retry_after() == 10  # one of 100 tokens has left the queue in 10 seconds
    table.add(msgspec.structs.replace(request("d"), prompt_token_ids=[1] * 400), Mailbox())
    assert table.retry_after() == 41
    table.engine_lost(errors.engine_restarted())
    assert (table.pending, table.pending_tokens) == (2, 401)
    table.fail_all(errors.draining())
    assert (table.pending, table.pending_tokens) == (0, 0)
