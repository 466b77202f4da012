"""POST /tokenize and /detokenize: what the model would see of a text or a conversation, and back."""

from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo.server import aside, body, errors
from octavo.server.protocol import DetokenizeRequest, TokenizeRequest
from octavo.server.replies import json_response
from octavo.server.responses import DetokenizeResponse, TokenizeResponse
from octavo.server.service import ServedModel, Service
from octavo.server.tool_choice import check_tools


class Tokenization:
    """Both routes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, http: HttpRequest) -> Response:
        service = self._service
        request, warnings = await body.read(http.scope, http.receive, TokenizeRequest, service.options, service.status)
        served = service.loaded()
        service.model_name(request.model)
        text, special = await self._text(request, warnings)
        (tokens,) = await served.encoder.encode([text], add_special_tokens=special)
        with_strings = bool(request.return_token_strs)
        return await aside.run(len(tokens) > aside.MANY_ENTRIES, _tokenized, tokens, served, with_strings, warnings or UNSET)

    async def detokenize(self, http: HttpRequest) -> Response:
        service = self._service
        request, warnings = await body.read(http.scope, http.receive, DetokenizeRequest, service.options, service.status)
        served = service.loaded()
        service.model_name(request.model)
        return await aside.run(
            len(request.tokens) > aside.MANY_ENTRIES, _detokenized, request.tokens, served, warnings or UNSET
        )

    async def _text(self, request: TokenizeRequest, warnings: list[str]) -> tuple[str, bool]:
        """The text to tokenize, and whether special tokens are added around it. Adds to ``warnings``."""
        if request.chat_template is not None:
            raise errors.invalid("`chat_template` is not supported by this server.", "chat_template")
        if request.tools is not None:
            check_tools(request.tools)
        if request.messages is not None:
            text = await self._service.render(
                request.messages,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                template_kwargs=request.chat_template_kwargs,
                warn=warnings.append,
                tools=request.tools,
            )
            return text, bool(request.add_special_tokens)
        if request.prompt is None:
            raise errors.malformed("prompt: field required", "prompt")
        return request.prompt, request.add_special_tokens is not False


def _tokenized(tokens: list[int], served: ServedModel, with_strings: bool, warnings: list[str] | UnsetType) -> Response:
    strings = [served.tokenizer.piece(token) for token in tokens] if with_strings else None
    longest = served.limits.max_model_len
    return json_response(
        TokenizeResponse(count=len(tokens), max_model_len=longest, tokens=tokens, token_strs=strings, warnings=warnings)
    )


def _detokenized(tokens: list[int], served: ServedModel, warnings: list[str] | UnsetType) -> Response:
    for token in tokens:
        if not 0 <= token < served.limits.vocab_size:
            raise errors.invalid(f"Token id {token} is out of vocabulary", "tokens")
    text = served.tokenizer.decode(tokens, skip_special_tokens=False)
    response = json_response(DetokenizeResponse(prompt=text, warnings=warnings))
    aside.forget(tokens)
    return response
