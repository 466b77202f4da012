"""The process that finds out whether a grammar can be compiled, so that one that cannot harms nobody.

Started as ``python -m octavo.server.grammar_process FD...``, with one end of a socket pair for each of its lanes. The
vocabulary comes first, on the first lane; then every lane answers its own questions, one after the other. Each grammar is
compiled in a process that is forked for it alone: what takes too long, too much memory or too deep a stack ends that one, and
nothing has to be built again. A lane ends when its socket does, and what it was compiling with it.
"""

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Literal, NoReturn

import msgspec

from octavo.sampling_params import StructuredOutputsParams
from octavo.server import interpreter
from octavo.server.framing import framed, read_frame
from octavo.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from octavo.structured.compiler import GrammarCompiler

_MEMORY_BYTES = 512 << 20
_STACK_BYTES = 4 << 20


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Can this be compiled, within so many seconds of computing and of waiting, at a priority no higher than that?"""

    wanted: StructuredOutputsParams
    seconds: float
    wall_seconds: float
    niceness: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """``message`` None: it can be compiled. With ``cut`` nobody knows: it was ended by its seconds of computing (``time``), by
    those of waiting (``late``), or by what it needed of memory or stack (``died``)."""

    message: str | None = None
    path: str = ""
    cut: Literal["time", "late", "died"] | None = None


def send(lane: socket.socket, message: msgspec.Struct) -> None:
    """Writes one message, all of it."""
    lane.sendall(framed(msgspec.msgpack.encode(message)))


def serve(lanes: list[socket.socket]) -> None:
    """Reads the vocabulary, says when it is ready, answers until the sockets close."""
    from octavo.structured.compiler import GrammarCompiler

    with lanes[0].makefile("rb") as stream:
        first = read_frame(stream)
        if first is None:
            return
        compiler = GrammarCompiler(msgspec.msgpack.decode(first, type=Vocabulary))
        gc.collect()
        gc.freeze()  # pages that the collector does not write to stay shared with every fork
        send(lanes[0], Verdict())
    for lane in lanes[1:]:
        if os.fork() == 0:
            for other in lanes:
                if other is not lane:
                    other.close()
            answer(lane, compiler)
            os._exit(0)
        lane.close()
    answer(lanes[0], compiler)


def answer(lane: socket.socket, compiler: "GrammarCompiler") -> None:
    """Answers one lane's questions until it closes."""
    with lane.makefile("rb") as stream:
        while (body := read_frame(stream)) is not None:
            question = msgspec.msgpack.decode(body, type=Question)
            send(lane, examine(compiler, question, lane))


def examine(compiler: "GrammarCompiler", question: Question, lane: socket.socket) -> Verdict:
    """The answer of a process of its own. Ends this process when ``lane`` closes meanwhile: nobody waits for the answer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        lane.close()
        _compile_and_exit(compiler, question, writing)
    os.close(writing)
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    poller.register(lane, select.POLLIN)
    with open(reading, "rb") as source:
        ready = [number for number, _ in poller.poll(question.wall_seconds * 1000)]
        if reading not in ready:
            os.kill(pid, signal.SIGKILL)
        told = source.read()
    _, status = os.waitpid(pid, 0)
    if lane.fileno() in ready:
        os._exit(0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return msgspec.msgpack.decode(told, type=Verdict)
    if not ready:
        return Verdict(cut="late")
    return Verdict(cut="time" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF else "died")


def _compile_and_exit(compiler: "GrammarCompiler", question: Question, target: int) -> NoReturn:
    """Compiles on a thread whose stack is smaller than any in the engine: what fits here fits there."""
    try:
        _lower_priority(question.niceness)
        _limit_memory()
        signal.setitimer(signal.ITIMER_PROF, question.seconds)
        threading.stack_size(_STACK_BYTES)
        found: list[Verdict] = []
        thread = threading.Thread(target=lambda: found.append(_verdict(compiler, question.wanted)))
        thread.start()
        thread.join()
        with open(target, "wb") as stream:
            stream.write(msgspec.msgpack.encode(found[0]))
        os._exit(0)
    finally:
        os._exit(1)


def _lower_priority(niceness: int) -> None:
    """To ``niceness``, whatever it was; never up, which few may."""
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))


def _verdict(compiler: "GrammarCompiler", wanted: StructuredOutputsParams) -> Verdict:
    from octavo.structured.compiler import GrammarError

    try:
        compiler.check(wanted)
    except GrammarError as error:
        return Verdict(str(error), error.path)
    return Verdict()


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, resource.RLIM_INFINITY))


def main() -> None:
    interpreter.ignore_signals()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        serve([socket.socket(fileno=int(number)) for number in sys.argv[1:]])


if __name__ == "__main__":
    main()
