"""The routes, and the ASGI application that is them behind the gate."""

import asyncio
from types import ModuleType

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo import __version__
from octavo.server import openapi
from octavo.server.chat import Chat
from octavo.server.completions import Completions
from octavo.server.gate import Gate
from octavo.server.invocations import Invocations
from octavo.server.items.route import Items
from octavo.server.replies import json_response
from octavo.server.responses import ModelCard, ModelList, ModelPermission, ServerLoad, Version
from octavo.server.service import Service
from octavo.server.tokenization import Tokenization
from octavo.server.turns import Turns

_BEGIN_AT_ONCE = 8


class Probes:
    """What orchestrators ask. Reads the status and nothing else, so that it answers however busy the server is."""

    def __init__(self, service: Service) -> None:
        self._status = service.status

    async def health(self, http: HttpRequest) -> Response:
        """Ready, with an empty body."""
        code, body = self._status.ready()
        return Response(b"" if code == 200 else msgspec.json.encode(body), code, media_type="application/json")

    async def startup(self, http: HttpRequest) -> Response:
        return _answer(*self._status.startup())

    async def ready(self, http: HttpRequest) -> Response:
        return _answer(*self._status.ready())

    async def live(self, http: HttpRequest) -> Response:
        return _answer(*self._status.live())


class Facts:
    """What the server says about itself."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, http: HttpRequest) -> Response:
        return json_response(ModelList(data=[self._card(name) for name in self._service.names]))

    async def model(self, http: HttpRequest) -> Response:
        return json_response(self._card(self._service.model_name(http.path_params["model"])))

    def _card(self, name: str) -> ModelCard:
        service = self._service
        return ModelCard(
            id=name,
            created=service.created,
            root=service.names[0],
            max_model_len=service.loaded().limits.max_model_len,
            permission=[ModelPermission(id=f"modelperm-{name}", created=service.created)],
        )

    async def version(self, http: HttpRequest) -> Response:
        return json_response(Version(__version__))

    async def load(self, http: HttpRequest) -> Response:
        return json_response(ServerLoad(self._service.answering))

    async def openapi(self, http: HttpRequest) -> Response:
        return Response(await asyncio.to_thread(openapi.document), media_type=openapi.JSON)

    async def docs(self, http: HttpRequest) -> Response:
        return Response(await asyncio.to_thread(openapi.page), media_type="text/html", headers=openapi.PAGE_HEADERS)

    async def metrics(self, http: HttpRequest) -> Response:
        exposition = await asyncio.to_thread(import_exposition)
        text = await asyncio.to_thread(exposition.render, exposition.snapshot(self._service))
        return Response(text, media_type=exposition.MEDIA_TYPE)


def import_exposition() -> ModuleType:
    """Imported late, and on a thread: the exporter's library is slow to import, and no start waits for a scrape."""
    from octavo.server import exposition

    return exposition


def _answer(code: int, body: dict[str, object]) -> Response:
    return Response(msgspec.json.encode(body), code, media_type="application/json")


def routes(service: Service) -> list[Route]:
    """Every route. ``openapi`` describes the same."""
    probes, facts, tokens = Probes(service), Facts(service), Tokenization(service)
    completions, chats = Completions(service).handle, Chat(service)
    chat = chats.handle
    described = [
        Route("/openapi.json", facts.openapi, methods=["GET"]),
        Route("/docs", facts.docs, methods=["GET"]),
        Route("/redoc", facts.docs, methods=["GET"]),
    ]
    return [
        Route("/health", probes.health, methods=["GET"]),
        Route("/ping", probes.health, methods=["GET", "POST"]),
        Route("/healthz/startup", probes.startup, methods=["GET"]),
        Route("/healthz/ready", probes.ready, methods=["GET"]),
        Route("/healthz/live", probes.live, methods=["GET"]),
        Route("/version", facts.version, methods=["GET"]),
        Route("/load", facts.load, methods=["GET"]),
        Route("/metrics", facts.metrics, methods=["GET"]),
        *([] if service.options.disable_fastapi_docs else described),
        Route("/v1/models", facts.models, methods=["GET"]),
        Route("/v1/models/{model:path}", facts.model, methods=["GET"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/responses", Items(service, chats).handle, methods=["POST"]),
        Route("/invocations", Invocations(service, {"messages": chat, "prompt": completions}).handle, methods=["POST"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
    ]


def build_app(service: Service) -> ASGIApp:
    """The whole server as one ASGI application."""
    served = routes(service)
    router = Router(served, redirect_slashes=False)
    generating = frozenset(operation.path for operation in openapi.OPERATIONS if operation.generates)
    turns = Turns(_BEGIN_AT_ONCE)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # the router raises for unknown routes and methods instead of answering in its own shape
        counted = scope["path"] in generating
        service.answering += counted
        try:
            if counted:
                await turns.take()
            await router(scope, receive, send)
        finally:
            service.answering -= counted

    gate = Gate(
        routed,
        service,
        paths=frozenset(route.path for route in served if not route.param_convertors),
        generating=generating,
    )
    return _open_to_pages(gate, service.options.allowed_origins) if service.options.allowed_origins else gate


def _open_to_pages(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """``app`` for browsers too. They ask whether a page may send a request before they send it, and without its key."""
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )
