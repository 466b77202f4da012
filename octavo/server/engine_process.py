"""The engine process: one thread that takes requests from a socket, steps the engine and sends back what came of it.

Started as ``python -m octavo.server.engine_process FD`` by the supervisor, with one end of a socket pair as its only
connection to anything. Speaks token ids, never text. It ends when the socket closes, whoever closed it; one request's
error is that request's alone; an error of the engine itself ends the process with exit status 70 and one last message.
"""

import contextlib
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import msgspec

from octavo.config import ConfigError
from octavo.metrics import EngineStats
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.sampling_params import ParameterError
from octavo.server import interpreter
from octavo.server.exit_codes import BAD_CONFIG, ENGINE_FAULT
from octavo.server.framing import FrameReader, WireError
from octavo.server.log_writer import LogWriter
from octavo.server.packed_logprobs import PIECE, pack
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
    Working,
    frame,
)

PULSE_SECONDS = 1.0
"""Between two looks at whether what is computed gets on."""
STATS_INTERVAL = 0.1
"""Seconds between two statistics while the engine works."""
_RECEIVE = 1 << 20
_LOG_WAIT = 1.0
"""For who reads the log, in the end; nobody is told before that this process is gone."""
M = TypeVar("M", Load, Pin)


class Channel:
    """The engine's end of the socket. Sending, on any thread, blocks when the API process does not read; that is the
    back-pressure."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._sending = threading.Lock()
        self._reader = FrameReader()
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode

    def send(self, message: FromEngine) -> None:
        with self._sending:
            self._sock.sendall(frame(message))

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """The messages that have come; with ``wait``, sleeps until something has. Raises ``EOFError`` when the peer is gone."""
        if not wait and not self._poller.poll(0):
            return []
        data = self._sock.recv(_RECEIVE)
        if not data:
            raise EOFError
        return [self._decode(body) for body in self._reader.feed(data)]


class SteppedEngine(Protocol):
    """What this process needs of an engine: ``add`` and ``abort`` at any time, ``step`` while ``has_work``."""

    @property
    def has_work(self) -> bool: ...
    def add(self, request: Request) -> None: ...
    def abort(self, request_id: str, branch: int | None = None) -> RequestMetrics | None: ...
    def step(self) -> list[TokenDelta]: ...
    def stats(self) -> EngineStats: ...


class EngineLoop:
    """Drains the socket, steps the engine, sends the deltas; sleeps in the kernel when there is nothing to compute.

    ``log`` takes text for the log and must not wait for who reads it: all requests would wait too. ``admit``, for tests, may
    raise for a request.
    """

    def __init__(
        self,
        engine: SteppedEngine,
        channel: Channel,
        log: Callable[[str], None],
        admit: Callable[[Request], None] | None = None,
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._log = log
        self._admit = admit
        self._stats_due = 0.0

    def run(self) -> None:
        """Returns on ``Shutdown``. Raises what the engine raises, and ``EOFError`` when the API process is gone."""
        self._send_stats()
        while True:
            for message in self._channel.receive(wait=not self._engine.has_work):
                if isinstance(message, Shutdown):
                    return
                self._handle(message)
            if self._engine.has_work:
                self._step()

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, Add):
            self._add(message.request)
        elif isinstance(message, Abort):
            metrics = self._engine.abort(message.request_id, message.branch)
            if metrics is not None:
                self._channel.send(Ended(request_id=message.request_id, metrics=metrics))
            if not self._engine.has_work:
                self._send_stats()

    def _add(self, request: Request) -> None:
        try:
            if self._admit is not None:
                self._admit(request)
            self._engine.add(request)
        except ParameterError as error:
            self._channel.send(Refused(request_id=request.id, message=str(error), param=error.param))
        except Exception:
            error_id = os.urandom(6).hex()
            self._channel.send(Refused(request_id=request.id, message=error_id, internal=True))
            self._log(f"octavo: request refused, error id {error_id}\n{traceback.format_exc()}")

    def _step(self) -> None:
        begin = time.monotonic()
        deltas = self._engine.step()
        now = time.monotonic()
        stats = None
        if now >= self._stats_due or not self._engine.has_work:
            stats = self._engine.stats()
            self._stats_due = now + STATS_INTERVAL
        deltas = [self._unburdened(delta) for delta in deltas]
        if deltas or stats is not None:
            self._channel.send(Step(deltas=deltas, seconds=now - begin, stats=stats))

    def _unburdened(self, delta: TokenDelta) -> TokenDelta:
        """``delta`` without the log-probabilities of a long prompt, which have been sent ahead in pieces."""
        entries = delta.prompt_logprobs
        if entries is None or len(entries) <= PIECE:
            return delta
        for number, packed in enumerate(pack(entries)):
            self._channel.send(PromptPiece(delta.request_id, packed, min(PIECE, len(entries) - number * PIECE)))
        return msgspec.structs.replace(delta, prompt_logprobs=[])

    def _send_stats(self) -> None:
        self._channel.send(Step(deltas=[], stats=self._engine.stats()))


class Pulse:
    """Tells the API process that what is computed gets on."""

    def __init__(self, channel: Channel) -> None:
        self._progress: Callable[[], int] = lambda: 0
        self._channel = channel
        self._seen = 0

    def follow(self, progress: Callable[[], int]) -> None:
        """Watch this from now on: a number that changes whenever the computation advances."""
        self._progress = progress

    def beat(self) -> None:
        now = self._progress()
        if now != self._seen:
            self._seen = now
            with contextlib.suppress(OSError):  # whoever is gone is noticed elsewhere
                self._channel.send(Working())


def _look_out(sock: socket.socket, pulse: Pulse) -> None:
    """Lets the pulse beat, and ends this process when the other end of ``sock`` closes, even in the middle of loading or of a
    long step."""
    hangup = getattr(select, "POLLRDHUP", select.POLLHUP)
    poller = select.poll()
    poller.register(sock, hangup)
    while not poller.poll(PULSE_SECONDS * 1000):
        pulse.beat()
    os._exit(0)


def _load(channel: Channel, pulse: Pulse, started_at: float, log: Callable[[str], None]) -> EngineLoop:
    """The loop of an engine as the first message wants it, and a ``Ready`` sent. Imports while that message is on its way."""
    from octavo import build
    from octavo.server import faults

    imported = time.monotonic()
    opening = _messages(channel)
    load = _expected(opening, Load)
    config = load.config
    told = time.monotonic()
    loaded = build.load(
        config,
        progress=lambda phase, fraction: channel.send(Progress(phase, fraction)),
        on_backend=lambda backend: pulse.follow(backend.progress),
        isolate=True,
        probe=faults.probe if load.inject_faults else None,
    )
    facts, phases = loaded.facts, loaded.facts["phases"]
    if config.pin_prefix:
        channel.send(Progress("pin prefixes", 0.0))
        begun = time.monotonic()
        build.pin_prefixes(loaded.engine, config, _expected(opening, Pin).prefixes)
        phases["pin prefixes"] = time.monotonic() - begun
    channel.send(
        Ready(
            started_at=started_at,
            model_config=loaded.model_config,
            max_model_len=loaded.max_model_len,
            num_device_blocks=facts["num_device_blocks"],
            num_host_blocks=facts["num_host_blocks"],
            block_size=config.block_size,
            num_pinned_blocks=loaded.engine.stats().blocks_pinned,
            dtype=facts["dtype"],
            weight_format=facts["weight_format"],
            activation_bits=facts["activation_bits"],
            backend=facts["backend"],
            isa=facts["isa"],
            phases={"import": imported - started_at, "find model": told - imported, **phases},
        )
    )
    admit = faults.check_admission if load.inject_faults else None
    return EngineLoop(loaded.engine, channel, log, admit)


def _messages(channel: Channel) -> Iterator[ToEngine]:
    while True:
        yield from channel.receive(wait=True)


def _expected(messages: Iterator[ToEngine], kind: type[M]) -> M:
    message = next(messages)
    if not isinstance(message, kind):
        raise WireError(f"before Ready come Load and, if there is something to pin, Pin; not {type(message).__name__}")
    return message


def serve(channel: Channel, pulse: Pulse, started_at: float, log: Callable[[str], None]) -> int:
    """Runs the engine behind ``channel`` until it is told to end. Returns the exit status."""
    try:
        _load(channel, pulse, started_at, log).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except ConfigError as error:
        _last_words(channel, Fatal(kind="config", message=str(error)))
        return BAD_CONFIG
    except Exception as error:
        _last_words(channel, Fatal(kind="engine", message=f"{type(error).__name__}: {error}"))
        log(traceback.format_exc())
        return ENGINE_FAULT
    return 0


def _last_words(channel: Channel, message: Fatal) -> None:
    with contextlib.suppress(OSError):
        channel.send(message)


def _tell_lost(count: int) -> str:
    return f"octavo: {count} errors of the engine are lost here: nobody read the log\n"


def main() -> None:
    """Signals are the API process's business: a terminal sends them to both, and this one must outlive the drain."""
    started_at = time.monotonic()
    interpreter.ignore_signals()
    interpreter.tell_stacks()
    sock = socket.socket(fileno=int(sys.argv[1]))
    channel = Channel(sock)
    pulse = Pulse(channel)
    threading.Thread(target=_look_out, args=(sock, pulse), daemon=True, name="look-out").start()
    log = LogWriter(sys.stderr, _tell_lost)
    status = serve(channel, pulse, started_at, log.write)
    log.wait(_LOG_WAIT)
    os._exit(status)


if __name__ == "__main__":
    main()
