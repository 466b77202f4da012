"""How messages are told apart on a stream of bytes between processes: a 4-byte little-endian length before each.

A cap on the length is checked before anything is allocated. What is in a frame is the business of whoever sends it.
"""

import struct
from collections.abc import Iterator
from typing import IO

MAX_FRAME = 256 * 1024 * 1024
_HEADER = struct.Struct("<I")


class WireError(RuntimeError):
    """The other side sent something that is not a message, or more of it than agreed."""


def framed(body: bytes) -> bytes:
    """``body`` with its length before it. Raises ``WireError`` when it is above the cap."""
    return _HEADER.pack(_within_cap(len(body))) + body


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The body of the next frame, waited for; None at the end, even in the middle of one. Raises ``WireError`` for a length
    above the cap."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    length = _within_cap(_HEADER.unpack(header)[0])
    body = stream.read(length)
    return body if len(body) == length else None


def _within_cap(length: int) -> int:
    if length > MAX_FRAME:
        raise WireError(f"a message of {length} bytes is above the cap of {MAX_FRAME}")
    return length


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
                length = _within_cap(_HEADER.unpack_from(self._buffer, position)[0])
                end = position + _HEADER.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(memoryview(self._buffer)[position + _HEADER.size : end])
                position = end
                yield body
        finally:
            del self._buffer[:position]
