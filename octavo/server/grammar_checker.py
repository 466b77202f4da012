"""Asks the grammar process about every new grammar, and remembers what it said.

Owns that process: it is started with the first request that needs it, and again after a grammar has ended it. Grammars are
checked one at a time, away from the event loop; when too many wait, new ones are turned away.
"""

import asyncio
import contextlib
import hashlib
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from octavo.sampling_params import StructuredOutputsParams
from octavo.server import errors, interpreter
from octavo.server.errors import ApiError
from octavo.server.framing import WireError, read_frame
from octavo.server.grammar_process import COMPILE_SECONDS, Verdict, send
from octavo.server.structured import Wanted
from octavo.structured.vocabulary import Vocabulary

MAX_WAITING = 64
_REMEMBERED = 4096
_WALL_SECONDS = 20.0
_TOO_MUCH = Verdict(f"takes more than {COMPILE_SECONDS:g} s or too much memory to compile; make it simpler")


class GrammarChecker:
    """``vocabulary`` is called, on a thread, whenever the process is started."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar-check")
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting = 0

    async def check(self, wanted: Wanted) -> None:
        """Raises ``ApiError``: 400 for a grammar that cannot be compiled, 503 when too many wait to be."""
        key = hashlib.sha256(msgspec.msgpack.encode(wanted.params)).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            if self._waiting >= MAX_WAITING:
                raise errors.busy(int(COMPILE_SECONDS))
            self._waiting += 1
            try:
                verdict = await asyncio.wrap_future(self._thread.submit(self._verdict, key, wanted.params))
            finally:
                self._waiting -= 1
        if verdict.message is not None:
            field = f"{wanted.field}.{verdict.path}" if verdict.path else wanted.field
            raise ApiError(400, f"{field}: {verdict.message}.", param=field)

    def close(self) -> None:
        """Ends the process."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            self._process.kill()

    def _verdict(self, key: bytes, wanted: StructuredOutputsParams) -> Verdict:
        known = self._verdicts.get(key)  # while this one waited, the same may have been checked
        if known is None:
            known = self._verdicts[key] = self._ask(wanted)
            while len(self._verdicts) > _REMEMBERED:
                self._verdicts.popitem(last=False)
        return known

    def _ask(self, wanted: StructuredOutputsParams) -> Verdict:
        process = self._process or self._start()
        answer = _exchange(process, wanted)
        if answer is not None:
            return answer
        self._process = None
        process.kill()
        process.wait()
        return _TOO_MUCH

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            interpreter.command("octavo.server.grammar_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=interpreter.environment(),
        )
        if _exchange(process, self._vocabulary()) is None:
            process.kill()
            process.wait()
            raise RuntimeError("the grammar process does not start")
        self._process = process
        return process


def _exchange(process: subprocess.Popen[bytes], message: msgspec.Struct) -> Verdict | None:
    """The process's answer; None if it has died of the question."""
    if process.stdin is None or process.stdout is None:
        return None
    watchdog = threading.Timer(_WALL_SECONDS, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        with contextlib.suppress(OSError, WireError):
            send(process.stdin, message)
            body = read_frame(process.stdout)
            return None if body is None else msgspec.msgpack.decode(body, type=Verdict)
        return None
    finally:
        watchdog.cancel()
