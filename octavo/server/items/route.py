"""The route /v1/responses: a body of items becomes a chat request, and chat's machinery answers it in items."""

from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo.sampling_params import ParameterError
from octavo.server import aside, body, errors
from octavo.server.chat import Chat
from octavo.server.items import conversation
from octavo.server.items.answer import ItemsAnswer
from octavo.server.items.protocol import ResponsesRequest
from octavo.server.service import Service


class Items:
    """One instance serves all requests and keeps nothing between them."""

    def __init__(self, service: Service, chat: Chat) -> None:
        self._service = service
        self._chat = chat

    async def handle(self, http: HttpRequest) -> Response:
        """Raises ``ApiError`` in the names of this body's fields."""
        service = self._service
        asked, warnings = await body.read(http.scope, http.receive, ResponsesRequest, service.options, service.status)
        is_large = http.scope["state"]["body_bytes"] > aside.MANY_BYTES
        limits = service.loaded().limits
        request = await aside.run(is_large, conversation.chat_request, asked, max_model_len=limits.max_model_len)
        try:
            return await self._chat.answer(http, request, warnings, prefix="resp_", shape=partial(ItemsAnswer, asked))
        except ParameterError as error:
            raise conversation.renamed(errors.from_parameter_error(error)) from error
        except errors.ApiError as error:
            raise conversation.renamed(error) from error
