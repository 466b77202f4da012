"""The command line: ``octavo COMMAND``. Picks the command, lets it read its flags, and turns errors into one line and a status.

A command's module is imported only when it is called, so that ``--help`` costs nothing. The only reader of the environment:
``OCTAVO_<FLAG>`` stands for every flag.
"""

import errno
import os
import signal
import sys
import time
from importlib import import_module

from octavo.commands import COMMANDS, PITCH, USAGE_ERROR, silence_output

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What is wrong with the output, or the disk; anything else is an error of ours, or of the system."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0, 64 for what the user can put right, or 130 for Ctrl-C."""
    try:
        started = _process_start()
        try:
            return _choose(sys.argv[1:] if arguments is None else arguments, started)
        finally:
            if sys.stdout is not None:  # it was closed from the beginning
                sys.stdout.flush()  # or what cannot be written would be found out while the interpreter ends
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        silence_output()
        return 0
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        silence_output()
        print(f"octavo: error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr, flush=True)
        return USAGE_ERROR


def _choose(arguments: list[str], started: float) -> int:
    if not arguments or arguments == ["help"] or arguments[0] in ("-h", "--help"):
        print(help_text())
        return 0 if arguments else USAGE_ERROR
    if arguments[0] == "help":
        return _choose([*arguments[1:], "--help"], started)
    if arguments[0] in ("-V", "--version"):
        from octavo import __version__

        print(f"octavo {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        print(f"octavo: error: no command {arguments[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return USAGE_ERROR
    return _run(arguments[0], arguments[1:], started)


def help_text() -> str:
    """What ``octavo --help`` says."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {help_line}" for name, (_, help_line) in COMMANDS.items())
    return (
        f"{PITCH}\n\nusage: octavo COMMAND [flags]\n\ncommands:\n{commands}\n\n"
        "  octavo COMMAND --help shows a command's flags; each can also be set as OCTAVO_<FLAG> in the environment\n"
        "  octavo --version      shows the version\n\n"
        "first steps:\n  octavo serve smollm2      serve the demo model on http://127.0.0.1:8000/v1\n"
        "  octavo chat smollm2       talk to it here"
    )


def _run(name: str, arguments: list[str], started: float) -> int:
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # msgspec crashes later, when its import is interrupted
    try:
        from octavo.config import ConfigError
        from octavo.sampling_params import ParameterError

        command = import_module(COMMANDS[name][0])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    try:
        return int(command.run(arguments, environment=dict(os.environ), started=started))
    except (ConfigError, ParameterError) as error:
        print(f"octavo: error: {error}", file=sys.stderr, flush=True)
        return USAGE_ERROR


def _process_start() -> float:
    """When this process began, on the monotonic clock; now, where the system does not tell."""
    now = time.monotonic()
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - max(0.0, age)


if __name__ == "__main__":
    sys.exit(main())
