"""POST /invocations: completions and chat on one route, as some platforms call a model; the shape of the body tells which."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive

from octavo.server import body, errors
from octavo.server.service import Service

Handler = Callable[[HttpRequest], Awaitable[Response]]


class Invocations:
    """``handlers``: by the field that only bodies of that kind have, the route that takes them."""

    def __init__(self, service: Service, handlers: dict[str, Handler]) -> None:
        self._service = service
        self._handlers = handlers

    async def handle(self, http: HttpRequest) -> Response:
        """Raises ``ApiError`` 400 for a body that none of them takes."""
        content = await body.read_body(http.scope, http.receive, self._service.options)
        return await self._choose(content)(HttpRequest(http.scope, _again(content, http.receive)))

    def _choose(self, content: bytes) -> Handler:
        try:
            names = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return next(iter(self._handlers.values()))  # says what is wrong with it
        for name, handler in self._handlers.items():
            if name in names:
                return handler
        wanted = " nor ".join(f"`{name}`" for name in self._handlers)
        raise errors.malformed(f"Cannot find suitable handler for request: it has neither {wanted}.", "body")


def _again(content: bytes, receive: Receive) -> Receive:
    """The body once more, in one piece, then whatever comes after it."""
    left = [content]

    async def receive_again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return receive_again
