"""Errors on purpose, for tests: with ``--inject-faults``, a request that says ``X-Octavo-Fault: STAGE`` fails at that stage.

Without the flag such a request is refused. Stages in the API process are points that raise; those of the engine are known by
the request's seed, which is all of it that reaches a step. What is wanted is kept in a context variable, so that it belongs to
one request, wherever its work is done, and a point costs nothing to pass.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from octavo.request import Request
from octavo.server import errors
from octavo.step import ScheduledSequence

API_STAGES = ("parse", "template", "tokenize", "grammar", "detokenize", "stream")
ENGINE_STAGES = ("admit", "compute", "sample")
HEADER = b"x-octavo-fault"
_SEEDS = {stage: 0x0FA0_17FA_0170_FA17 + i for i, stage in enumerate(ENGINE_STAGES)}
_wanted: ContextVar[str | None] = ContextVar("wanted", default=None)


class InjectedFault(RuntimeError):
    """What is raised. Its text must never reach a client."""


@contextlib.contextmanager
def asked_by(header: bytes | None, *, enabled: bool) -> Iterator[None]:
    """While inside, the request fails where ``header`` says. Raises ``ApiError`` 400."""
    if header is None:
        yield
        return
    stage = header.decode("latin-1")
    if not enabled or stage not in API_STAGES + ENGINE_STAGES:
        raise errors.malformed("X-Octavo-Fault: no such stage, or the server runs without --inject-faults.", "x-octavo-fault")
    token = _wanted.set(stage)
    try:
        yield
    finally:
        _wanted.reset(token)


def point(stage: str) -> None:
    """A place where a request may fail. Raises ``InjectedFault``."""
    if _wanted.get() == stage:
        raise InjectedFault(f"injected at {stage}")


def seed() -> int | None:
    """The seed that makes the engine fail where the request wants it to."""
    return _SEEDS.get(_wanted.get() or "")


def probe(stage: str, seq: ScheduledSequence) -> None:
    """Before a stage of a step of one sequence. Raises ``InjectedFault``."""
    if _SEEDS[stage] in seq.seeds:
        raise InjectedFault(f"injected at {stage}")


def check_admission(request: Request) -> None:
    """Before the engine is given a request. Raises ``InjectedFault``."""
    if request.seed == _SEEDS["admit"]:
        raise InjectedFault("injected at admit")
