"""What the API process and the engine process say to each other, and how it is framed.

A frame is a 4-byte little-endian length and one msgpack value of a fixed type: no pickle, no free-form value, and a cap on
the length that is checked before anything is allocated. ``ToEngine`` goes one way, ``FromEngine`` the other. Every message
is a value; losing the socket is how either side learns that the other has died.
"""

import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

from octavo.config import EngineConfig, ModelConfig
from octavo.metrics import EngineStats
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request

MAX_FRAME = 256 * 1024 * 1024
_HEADER = struct.Struct("<I")


class WireError(RuntimeError):
    """The other side sent something that is not a message, or more of it than agreed."""


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
    backend: str
    isa: str
    phases: dict[str, float]


class Step(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What came of one step, and proof of life. ``stats`` are there at intervals and when the engine falls idle."""

    deltas: list[TokenDelta]
    seconds: float = 0.0
    stats: EngineStats | None = None


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
FromEngine = Progress | Ready | Step | Refused | Ended | Fatal

_encoder = msgspec.msgpack.Encoder()


def frame(message: ToEngine | FromEngine) -> bytes:
    """The bytes of one message, its length first. Raises ``WireError`` when it is above the cap."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise WireError(f"a message of {len(body)} bytes is above the cap of {MAX_FRAME}")
    return _HEADER.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames. Holds at most one incomplete frame, so never more than the cap."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the body of each frame that ``data`` completes. Raises ``WireError`` for a length above the cap."""
        self._buffer += data
        position = 0
        try:
            while len(self._buffer) - position >= _HEADER.size:
                (length,) = _HEADER.unpack_from(self._buffer, position)
                if length > MAX_FRAME:
                    raise WireError(f"a message of {length} bytes is above the cap of {MAX_FRAME}")
                end = position + _HEADER.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(memoryview(self._buffer)[position + _HEADER.size : end])
                position = end
                yield body
        finally:
            del self._buffer[:position]


def to_engine_decoder() -> msgspec.msgpack.Decoder[ToEngine]:
    return msgspec.msgpack.Decoder(ToEngine)


def from_engine_decoder() -> msgspec.msgpack.Decoder[FromEngine]:
    return msgspec.msgpack.Decoder(FromEngine)
