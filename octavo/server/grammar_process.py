"""The process that finds out whether a grammar can be compiled, so that one that cannot harms nobody.

Started as ``python -m octavo.server.grammar_process`` with frames on its standard streams: the vocabulary first, then one
request after the other, each answered. A grammar that takes too long, too much memory or too deep a stack ends this process;
whoever started it takes that for the answer. Ends when its input does.
"""

import contextlib
import os
import resource
import signal
import sys
import threading
from typing import IO

import msgspec

from octavo.sampling_params import StructuredOutputsParams
from octavo.server.framing import framed, read_frame
from octavo.structured.vocabulary import Vocabulary

COMPILE_SECONDS = 2.0
"""Of computing, not of waiting."""
_MEMORY_BYTES = 512 << 20
_STACK_BYTES = 4 << 20
_NICENESS = 10


class Verdict(msgspec.Struct, frozen=True):
    """``message`` None: it can be compiled."""

    message: str | None = None
    path: str = ""


def send(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Writes one message, all of it."""
    stream.write(framed(msgspec.msgpack.encode(message)))
    stream.flush()


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Answers until ``source`` ends."""
    from octavo.structured.compiler import GrammarCompiler, GrammarError

    first = read_frame(source)
    if first is None:
        return
    compiler = GrammarCompiler(msgspec.msgpack.decode(first, type=Vocabulary))
    _limit_memory()
    send(target, Verdict())
    while (body := read_frame(source)) is not None:
        wanted = msgspec.msgpack.decode(body, type=StructuredOutputsParams)
        verdict = Verdict()
        signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
        try:
            compiler.check(wanted)
        except GrammarError as error:
            verdict = Verdict(str(error), error.path)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(target, verdict)


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, resource.RLIM_INFINITY))


def main() -> None:
    """Compiles on a thread whose stack is smaller than any in the engine: what fits here fits there."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=serve, args=(sys.stdin.buffer, sys.stdout.buffer))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
