"""What the API process and the engine process say to each other.

A frame (``framing``) holds one msgpack value of a fixed type: no pickle, no free-form value. ``ToEngine`` goes one way,
``FromEngine`` the other. Every message is a value; losing the socket is how either side learns that the other has died.
"""

from typing import Literal

import msgspec

from octavo.config import EngineConfig, ModelConfig
from octavo.metrics import EngineStats
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.server.framing import framed


class Load(msgspec.Struct, frozen=True, tag=True):
    """The first message to an engine process: load this. ``inject_faults``: requests may ask to fail (``faults``)."""

    config: EngineConfig
    inject_faults: bool = False


class Pin(msgspec.Struct, frozen=True, tag=True):
    """The second message, if the configuration has prefixes to pin: their token ids, in the same order."""

    prefixes: list[list[int]]


class Add(msgspec.Struct, frozen=True, tag=True):
    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    """``branch`` None ends every branch."""

    request_id: str
    branch: int | None = None


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    pass


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Loading has come this far: ``fraction`` in [0, 1]."""

    phase: str
    fraction: float


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The engine would take a request now. ``phases`` are the seconds of its start, in order, from its first line of Python.

    ``started_at`` is that first line on the monotonic clock.
    """

    started_at: float
    model_config: ModelConfig
    max_model_len: int
    num_device_blocks: int
    num_host_blocks: int
    block_size: int
    num_pinned_blocks: int = 0
    dtype: str
    weight_format: str
    activation_bits: int
    backend: str
    isa: str
    phases: dict[str, float]


class Step(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What came of one step, and proof of life. ``stats`` are there at intervals and when the engine falls idle."""

    deltas: list[TokenDelta]
    seconds: float = 0.0
    stats: EngineStats | None = None


class Working(msgspec.Struct, frozen=True, tag=True):
    """What is computed has got on since the last of these, whether or not there is a result yet."""


class PromptPiece(msgspec.Struct, frozen=True, tag=True):
    """A piece (``packed_logprobs``) of the log-probabilities of a request's prompt. Its next delta has none of its own, and
    gets the pieces before it."""

    request_id: str
    packed: bytes
    count: int


class Refused(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """This one request cannot be taken. ``internal``: not the client's fault; ``message`` is then only an error id."""

    request_id: str
    message: str
    param: str | None = None
    internal: bool = False


class Ended(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An ``Abort`` ended the last of a request, so that no delta will bring its metrics."""

    request_id: str
    metrics: RequestMetrics


class Fatal(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The engine process is about to end. ``config``: starting it again would fail the same way."""

    kind: Literal["config", "engine"]
    message: str


ToEngine = Load | Pin | Add | Abort | Shutdown
FromEngine = Progress | Ready | Step | Working | PromptPiece | Refused | Ended | Fatal

_encoder = msgspec.msgpack.Encoder()


def frame(message: ToEngine | FromEngine) -> bytes:
    """The bytes of one message. Raises ``WireError`` when it is above the cap."""
    return framed(_encoder.encode(message))
