"""The one outer layer of the server: every request passes here first and every answer last.

It gives a request its id, holds headers to their limit, asks for a key and holds it to its limits (deny by default: only the
probes are open), turns whatever is raised into the one error shape, counts and logs. Routes inside can rely on all of that.
"""

import os
import re
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server import errors, faults
from octavo.server.auth import Client
from octavo.server.body import ClientGone
from octavo.server.errors import ApiError
from octavo.server.generation import Generation
from octavo.server.origins import may_post
from octavo.server.protocol import MAX_ID
from octavo.server.rate_limits import Ticket
from octavo.server.service import Service

PROBES = frozenset({"/health", "/ping", "/healthz/startup", "/healthz/ready", "/healthz/live"})
_UNLOGGED = PROBES | {"/metrics"}
_ID = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_ID)


class Gate:
    """ASGI application around ``app``. ``paths`` are those that ``app`` has, and that may be asked for with a slash at the
    end; ``generating`` those of them that run the model."""

    def __init__(self, app: ASGIApp, service: Service, *, paths: frozenset[str], generating: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._options = options = service.options
        self._paths = paths
        self._generating = generating
        self._pages = options.allowed_origins if service.keys.is_open and not options.insecure_no_auth else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path.endswith("/") and path[:-1] in self._paths:  # before anything asks for it, so that all see the same
            scope["path"] = path[:-1]
        passage = _Passage(scope, send)
        try:
            self._admit(scope, passage)
            with faults.asked_by(dict(scope["headers"]).get(faults.HEADER), enabled=self._options.inject_faults):
                await self._app(scope, receive, passage.send)
        except ClientGone:
            passage.status = errors.CLIENT_GONE
        except Exception as error:
            await self._refuse(passage, error)
        finally:
            await self._account(scope, passage)

    def _admit(self, scope: Scope, passage: "_Passage") -> None:
        headers = scope["headers"]
        size = len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
        size += sum(len(name) + len(value) for name, value in headers)
        if size > self._options.max_header_bytes or scope["state"].get("headers_cut"):
            raise errors.headers_too_large(self._options.max_header_bytes)
        known = dict(headers)
        given = known.get(b"x-request-id", b"")
        if _ID.fullmatch(given):  # what could not be an id is a proxy's, and no reason to refuse the request
            passage.request_id = given
            scope["state"]["request_id"] = given.decode()
        if self._pages is not None and scope["method"] == "POST" and not may_post(known.get(b"origin", b""), self._pages):
            raise errors.foreign_page()
        if scope["path"] not in PROBES:
            self._admit_client(scope, passage, known.get(b"authorization"))

    def _admit_client(self, scope: Scope, passage: "_Passage", authorization: bytes | None) -> None:
        """Limits hold for what may cost something: whatever is posted."""
        client = self._service.keys.identify(authorization)
        if client is None:
            raise errors.unauthorized()
        passage.client = client
        if scope["path"].endswith("\n"):  # which the router would overlook, and a role does not
            raise HTTPException(404)
        if not client.may_use(scope["path"]):
            raise errors.forbidden(client.role)
        if scope["method"] == "POST":
            passage.ticket = scope["state"]["ticket"] = client.limits.enter()
        scope["state"]["client"] = client

    async def _refuse(self, passage: "_Passage", error: Exception) -> None:
        if isinstance(error, HTTPException):
            answer = ApiError(error.status_code, error.detail, headers=dict(error.headers or {}))
        else:
            answer = errors.answer_to(error, self._service.log, passage.request_id.decode())
        if passage.status is not None:  # too late for a status: the connection breaks off, which clients notice
            raise error
        body = answer.body()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await passage.send({"type": "http.response.start", "status": answer.status, "headers": raw})
        await passage.send({"type": "http.response.body", "body": body})

    async def _account(self, scope: Scope, passage: "_Passage") -> None:
        service, seconds = self._service, time.monotonic() - passage.arrival
        generation = scope["state"].get("generation")
        if not isinstance(generation, Generation):
            generation = None
        used = 0
        try:
            if generation is not None:
                if passage.ticket is not None and not generation.record.client_gone:
                    passage.ticket.answered()  # what it cost the engine may tell only at the end of a step
                used = await generation.settle()
        finally:
            if passage.ticket is not None:
                passage.ticket.leave(used)
        status = passage.status or errors.CLIENT_GONE
        key = None if passage.client is None else passage.client.name
        if scope["path"] in _UNLOGGED:
            return
        service.metrics.response(status)
        fields: dict[str, Any] = {
            "request_id": passage.request_id.decode(),
            "method": scope["method"],
            "path": scope["path"][:MAX_ID],
            "status": status,
            "total_ms": round(seconds * 1000, 2),
        }
        if key is not None:
            fields["key"] = key
        if generation is not None:
            if service.usage_log is not None:
                service.usage_log.write(
                    generation.record, charged=used > 0, key=key, path=scope["path"], status=status, log=service.log
                )
            fields.update(generation.record.log_fields())
        if service.traces is not None and scope["path"] in self._generating:
            told = None if generation is None else (generation.record, generation.params)
            trace_id = service.traces.request(scope, status=status, arrival=passage.arrival, seconds=seconds, told=told)
            if trace_id is not None:
                fields["trace_id"] = trace_id
        service.log.info("request", **fields)


class _Passage:
    """One request's way out: adds the request id to the response and remembers its status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.arrival = time.monotonic()
        self.request_id = os.urandom(16).hex().encode()
        self.status: int | None = None
        self.client: Client | None = None
        self.ticket: Ticket | None = None
        self._send = send
        scope["state"] = {**scope.get("state", {}), "arrival": self.arrival, "request_id": self.request_id.decode()}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", []), (b"x-request-id", self.request_id)]}
        await self._send(message)
