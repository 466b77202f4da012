"""POST /invocations: completions and chat on one route, as some platforms call a model; the shape of the body tells which."""

from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive

from octavo.server import aside, body, errors
from octavo.server.service import Service

Handler = Callable[[HttpRequest], Awaitable[Response]]


class Invocations:
    """``handlers``: by the field that only bodies of that kind have, the route that takes them."""

    def __init__(self, service: Service, handlers: dict[str, Handler]) -> None:
        self._service = service
        self._handlers = handlers

    async def handle(self, http: HttpRequest) -> Response:
        """Raises ``ApiError`` 400 for a body that none of them takes."""
        service = self._service
        pieces = await body.read_body(http.scope, http.receive, service.options, service.status)
        handler = await aside.run(sum(map(len, pieces)) > aside.MANY_BYTES, self._choose, pieces)
        return await handler(HttpRequest(http.scope, _again(pieces, http.receive)))

    def _choose(self, pieces: list[bytes]) -> Handler:
        try:
            names = msgspec.json.decode(body.joined(pieces), type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return next(iter(self._handlers.values()))  # says what is wrong with it
        for name, handler in self._handlers.items():
            if name in names:
                return handler
        wanted = " nor ".join(f"`{name}`" for name in self._handlers)
        raise errors.malformed(f"Cannot find suitable handler for request: it has neither {wanted}.", "body")


def _again(pieces: list[bytes], receive: Receive) -> Receive:
    """The body once more, then whatever comes after it. Empties ``pieces``, so that nothing is kept once it has been read."""
    left = deque(pieces)
    pieces.clear()

    async def receive_again() -> Message:
        if left:
            return {"type": "http.request", "body": left.popleft(), "more_body": bool(left)}
        return await receive()

    return receive_again
