"""An interpreter of this server: how a further one is started, with the same Python and package and nothing from the current
directory, and how one is asked what it does."""

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

STOP = (signal.SIGTERM, signal.SIGINT)
"""What asks a server to stop. A terminal sends it to the processes that it has started too."""

READ_AGAIN = signal.SIGHUP
"""What asks a server to read its files again. A terminal that closes sends it too, to all processes."""


def end_when_asked() -> None:
    """Until other handlers are set, ``STOP`` ends this process at once with status 0, and ``READ_AGAIN`` is ignored."""
    for number in STOP:
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(READ_AGAIN, signal.SIG_IGN)


def ignore_signals() -> None:
    """They are the business of the process that started this one, which a terminal or a service manager asks too."""
    for number in (*STOP, READ_AGAIN):
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def holding_signals() -> Iterator[None]:
    """A process that is started inside notices neither ``STOP`` nor ``READ_AGAIN`` before it has said what to make of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP, READ_AGAIN))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(module: str, sockets: list[socket.socket], *, output: "int | IO[str] | None" = None) -> "subprocess.Popen[bytes]":
    """A process that runs a module of this package, the numbers of ``sockets`` its arguments; they are its only open files but
    for ``output``, which None leaves as it is here. Raises ``OSError`` where the system has none to give."""
    import subprocess

    numbers = [end.fileno() for end in sockets]
    package_home = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [package_home, os.environ.get("PYTHONPATH")]))
    with holding_signals():
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, numbers)],
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": search},
        )


TELL_STACKS = signal.SIGUSR1
LAST_WORDS = signal.SIGUSR2
"""For a process that is given up: also one whose interpreter is stuck answers, but it may die of it."""


def tell_stacks() -> None:
    """From now on this process writes the Python stacks of its threads to stderr: when it is sent ``TELL_STACKS`` or
    ``LAST_WORDS`` and when it dies of a fault in native code.

    To be called before there is a second thread: ``TELL_STACKS`` must be blocked in all but the one that waits for it. That one
    holds the interpreter's lock while it looks. A signal handler does not, and follows pointers that others change meanwhile.
    """
    if sys.__stderr__ is None:
        return
    faulthandler.enable(sys.__stderr__)
    faulthandler.register(LAST_WORDS, sys.__stderr__)
    signal.pthread_sigmask(signal.SIG_BLOCK, [TELL_STACKS])
    threading.Thread(target=_tell_stacks, daemon=True, name="tell-stacks").start()


def _tell_stacks() -> None:
    while True:
        signal.sigwait([TELL_STACKS])
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        told = [
            f"Thread {names.get(ident, hex(ident))}\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        ]
        print("".join(told), end="", file=sys.stderr, flush=True)
