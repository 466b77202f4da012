"""Log-probabilities of a prompt, in the bytes in which they came from the engine: decoded by whoever reads them, in pieces.

For a prompt of thousands of tokens they are hundreds of thousands of objects. On the event loop nothing decodes or frees them;
here they are a few pieces of bytes, and what reads them, on a thread, has the objects of one piece at a time.
"""

from collections.abc import Iterator, Sequence
from typing import overload

import msgspec

from octavo.step import TokenLogprobs

PIECE = 128
"""Entries in one piece."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[TokenLogprobs])


def pack(entries: Sequence[TokenLogprobs]) -> Iterator[bytes]:
    """The pieces of ``entries``, in order."""
    for begin in range(0, len(entries), PIECE):
        yield _encoder.encode(entries[begin : begin + PIECE])


class PackedLogprobs(Sequence[TokenLogprobs]):
    """``count`` entries in ``pieces`` as ``pack`` makes them. Reading raises ``msgspec.MsgspecError`` if they are not."""

    def __init__(self, pieces: list[bytes], count: int) -> None:
        self._pieces = pieces
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TokenLogprobs]:
        for piece in self._pieces:
            yield from _decoder.decode(piece)

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs: ...

    @overload
    def __getitem__(self, index: slice) -> list[TokenLogprobs]: ...

    def __getitem__(self, index: int | slice) -> TokenLogprobs | list[TokenLogprobs]:
        return list(self)[index]
