"""How questions reach the grammar process: in lanes, in each of which clients take turns, and one question is asked at a time.

``GrammarProcess`` is the handle on that process: it is started by the first question, and again if it is lost. A ``Lane`` has a
thread, which does little but wait, a bound on how many wait in it, and a measure of how fast they leave it.
"""

import contextlib
import math
import socket
import subprocess
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from octavo.sampling_params import StructuredOutputsParams
from octavo.server import interpreter
from octavo.server.framing import WireError, read_frame
from octavo.server.grammar_process import Question, Verdict, send
from octavo.structured.vocabulary import Vocabulary

_GRACE_SECONDS = 30.0
"""What the process may take beyond a question's own time before it is taken for lost; starting takes some of it."""
_PACE_WEIGHT = 0.25


class LaneFull(Exception):
    """There is no room for one more. ``retry_after``: seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"full for {retry_after} s")
        self.retry_after = retry_after


class ProcessClosed(Exception):
    """There will be no answer: the server ends."""


class GrammarProcess:
    """``vocabulary`` is called whenever the process is started. Each of the ``lanes`` is for one thread."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, lanes: int) -> None:
        self._vocabulary = vocabulary
        self._lanes = lanes
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False

    def ask(self, lane: int, question: Question) -> Verdict:
        """The process's answer. Raises ``ProcessClosed``, and ``RuntimeError`` when there is no getting one."""
        for _ in range(2):  # whoever ends the process, as one that looks for memory, has not answered the question
            running = self._started()
            answer = running.exchange(lane, question, question.wall_seconds + _GRACE_SECONDS)
            if answer is not None:
                return answer
            if self._closed:
                raise ProcessClosed
            with self._lock:
                running.end()
                if self._running is running:
                    self._running = None
        raise RuntimeError("the grammar process was lost twice")

    def close(self) -> None:
        """Ends the process and whatever it does."""
        self._closed = True
        if (running := self._running) is not None:
            running.end()

    def _started(self) -> "_Running":
        with self._lock:
            if self._closed:
                raise ProcessClosed
            if self._running is None:
                self._running = _Running.start(self._lanes)
                if self._running.exchange(0, self._vocabulary(), _GRACE_SECONDS) is None:
                    self._running.end()
                    self._running = None
                    if self._closed:
                        raise ProcessClosed
                    raise RuntimeError("the grammar process does not start")
            return self._running


class _Running(msgspec.Struct, frozen=True):
    """A process, and this side's ends of its lanes."""

    process: subprocess.Popen[bytes]
    sockets: list[socket.socket]

    @staticmethod
    def start(lanes: int) -> "_Running":
        pairs = [socket.socketpair() for _ in range(lanes)]
        theirs = [theirs for _, theirs in pairs]
        process = interpreter.start("octavo.server.grammar_process", theirs, output=subprocess.DEVNULL)
        for end in theirs:
            end.close()
        return _Running(process, [ours for ours, _ in pairs])

    def exchange(self, lane: int, message: msgspec.Struct, seconds: float) -> Verdict | None:
        """The answer to one message; None if there is none in time."""
        end = self.sockets[lane]
        with contextlib.suppress(OSError, ValueError, WireError), end.makefile("rb") as stream:
            end.settimeout(seconds)
            send(end, message)
            body = read_frame(stream)
            return None if body is None else msgspec.msgpack.decode(body, type=Verdict)
        return None

    def end(self) -> None:
        """May be called again, and while another thread waits for an answer, which then does not come."""
        self.process.kill()
        for end in self.sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.process.wait()


class Lane:
    """Questions that get ``seconds`` of computing each. ``most`` may wait, and ``most_each`` of one client.

    Clients with questions that wait are asked for one in turn, so that many of one cannot hold up the few of another.
    """

    def __init__(
        self,
        ask: Callable[[Question], Verdict],
        *,
        seconds: float,
        wall_seconds: float,
        niceness: int,
        most: int,
        most_each: int,
    ) -> None:
        self._ask = ask
        self._seconds = seconds
        self._wall_seconds = wall_seconds
        self._niceness = niceness
        self._most = most
        self._most_each = most_each
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar-lane")
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[tuple[Future[Verdict], StructuredOutputsParams]]] = OrderedDict()
        self._count = 0
        self._closed = False
        self._pace = seconds

    def submit(self, wanted: StructuredOutputsParams, client: str) -> "Future[Verdict]":
        """Raises ``LaneFull`` and ``ProcessClosed``."""
        asked: Future[Verdict] = Future()
        with self._lock:
            if self._closed:
                raise ProcessClosed
            if self._count >= self._most or len(self._waiting.get(client, ())) >= self._most_each:
                raise LaneFull(self.retry_after())
            self._thread.submit(self._serve_next)  # first: a question that it refuses must not wait
            self._waiting.setdefault(client, deque()).append((asked, wanted))
            self._count += 1
        return asked

    def retry_after(self) -> int:
        """Seconds until those that wait now have left, at the rate at which the latest did."""
        return max(1, math.ceil((self._count + 1) * self._pace))

    def close(self) -> None:
        """Takes no more questions. Those that wait are still put to the process; it is closed, so each ends with
        ``ProcessClosed``."""
        with self._lock:
            self._closed = True
        self._thread.shutdown(wait=False)

    def _serve_next(self) -> None:
        with self._lock:
            client, questions = self._waiting.popitem(last=False)
            asked, wanted = questions.popleft()
            if questions:
                self._waiting[client] = questions  # at the end: it is the others' turn
            self._count -= 1
        if not asked.set_running_or_notify_cancel():
            return
        begin = time.monotonic()
        try:
            question = Question(wanted=wanted, seconds=self._seconds, wall_seconds=self._wall_seconds, niceness=self._niceness)
            asked.set_result(self._ask(question))
        except BaseException as error:
            asked.set_exception(error)
        finally:
            self._pace += _PACE_WEIGHT * (time.monotonic() - begin - self._pace)
