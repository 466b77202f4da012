"""From the bytes of a request body to a typed value, within the limits on size, time, nesting and names.

Every cap is checked before the work it bounds: length while reading, nesting before decoding. Numbers that JSON cannot hold
(NaN, infinities) and those that a double cannot (1e999) do not decode. A number or a truth value may be written as clients of
other servers do: 4.0 or "4" for 4, 1 or "true" for true; with ``--strict`` it may not.
"""

import array
import asyncio
import itertools
import re
from typing import TypeVar

import msgspec
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope

from octavo.server import aside, errors, faults, garbage
from octavo.server.errors import ApiError
from octavo.server.options import ServerOptions
from octavo.server.status import Status

T = TypeVar("T")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # possessive and anchored, so linear whatever comes
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH = bytes.maketrans(b"[{]}", bytes([1, 1, 0xFF, 0xFF]))
_SLICE = 1 << 16
_BOM = b"\xef\xbb\xbf"
_TOLD = 16
"""Unknown fields that are named; there may be hundreds of thousands."""


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


async def read_body(scope: Scope, receive: Receive, options: ServerOptions, status: Status) -> list[bytes]:
    """The whole body, in the pieces in which it came: to join megabytes takes milliseconds, and not on the event loop. Raises
    ``ApiError`` 413, 415, 408 or, as soon as the server drains, 503, and ``ClientGone``."""
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        raise ApiError(415, "Unsupported Media Type: Only 'application/json' is allowed")
    limit = options.max_body_bytes
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    while True:
        if status.draining:
            raise errors.draining()
        message = await _next_part(receive, options.read_timeout)
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return pieces


async def _next_part(receive: Receive, timeout: float) -> AsgiMessage:
    try:
        async with asyncio.timeout(timeout):
            return await receive()
    except TimeoutError:
        raise ApiError(408, "The request body did not arrive in time.", headers={"connection": "close"}) from None


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request body is larger than the limit of {limit} bytes.", headers={"connection": "close"})


async def read(scope: Scope, receive: Receive, kind: type[T], options: ServerOptions, status: Status) -> tuple[T, list[str]]:
    """A request's body as ``kind`` and the warnings it deserves. Raises ``ApiError`` and ``ClientGone``."""
    pieces = await read_body(scope, receive, options, status)
    size = scope["state"]["body_bytes"] = sum(map(len, pieces))
    value, unknown = await aside.run(
        size > aside.MANY_BYTES, _decode_pieces, pieces, kind, options.max_json_depth, options.strict
    )
    return value, warn_unknown(unknown, strict=options.strict)


def joined(pieces: list[bytes]) -> bytes:
    """The text of a body, without the mark that some editors put before UTF-8."""
    return b"".join(pieces).removeprefix(_BOM)


def _decode_pieces(pieces: list[bytes], kind: type[T], max_depth: int, strict: bool) -> tuple[T, list[str]]:
    """Empties ``pieces``: what is large is freed where it is large, too."""
    body = joined(pieces)
    pieces.clear()
    return decode(body, kind, max_depth=max_depth, strict=strict)


def decode(body: bytes, kind: type[T], *, max_depth: int, strict: bool) -> tuple[T, list[str]]:
    """The body as ``kind``, and the names of top-level fields that ``kind`` does not have, the first few. ``strict``: a value
    has the JSON type of its field. Raises ``ApiError`` 400."""
    faults.point("parse")
    if not body.strip():
        raise errors.malformed("body: field required", "body")
    if nests_deeper(body, max_depth):
        raise errors.malformed(f"The request body is nested deeper than {max_depth} levels.", "body")
    try:
        names = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        with garbage.paused():
            value = msgspec.json.decode(body, type=kind, strict=strict)
    except msgspec.ValidationError as error:
        raise errors.from_validation_error(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.malformed(f"JSON decode error: {error}", "body") from None
    known = frozenset(kind.__struct_encode_fields__)  # type: ignore[attr-defined]  # always a Struct
    return value, list(itertools.islice((name for name in names if name not in known), _TOLD))


def warn_unknown(names: list[str], *, strict: bool) -> list[str]:
    """A warning for each unknown field. Raises ``ApiError`` 400 when ``strict``."""
    if strict and names:
        raise errors.malformed(f"{names[0]}: unknown field", names[0])
    return [f"unknown field `{name[:64]}` was ignored" for name in names]


def nests_deeper(body: bytes, limit: int) -> bool:
    """Whether arrays and objects nest deeper than ``limit``. Linear, and in slices so that other threads get a turn."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    brackets = _STRING.sub(b"", body).translate(_DEPTH, _NOT_BRACKETS)
    level = 0
    for begin in range(0, len(brackets), _SLICE):
        levels = list(itertools.accumulate(array.array("b", brackets[begin : begin + _SLICE]), initial=level))
        if max(levels) > limit:
            return True
        level = levels[-1]
    return False
