"""The commands of the command line, one module each with ``run(arguments, *, environment, started) -> exit status``, and with
``OPTIONS``, the types whose fields are its flags."""

import contextlib
import os
import sys

from octavo.server.exit_codes import BAD_CONFIG

PITCH = "Octavo serves large language models: the OpenAI API over paged, continuously batched attention."
USAGE_ERROR = BAD_CONFIG

COMMANDS = {
    "serve": ("octavo.commands.serve", "serve a model over HTTP"),
    "chat": ("octavo.commands.chat", "talk to a model in the terminal, here or on a server"),
    "generate": ("octavo.commands.generate", "complete prompts and print the text"),
    "complete": ("octavo.commands.complete", "let a running server go on with a text"),
    "run-batch": ("octavo.commands.run_batch", "answer a file of requests, in the format of the OpenAI batch API"),
    "bench": ("octavo.commands.bench", "measure: throughput, latency, a server under load, how near to the machine's limits"),
    "pack": ("octavo.commands.pack", "keep a model's weights as this machine computes them, so that it starts sooner"),
    "keys": ("octavo.commands.keys", "make API keys with roles and limits"),
    "doctor": ("octavo.commands.doctor", "say what this machine can do and why"),
}
"""Name -> (module, help line)."""


def silence_output() -> None:
    """What is still to be written to stdout goes nowhere, or the interpreter would complain while it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
