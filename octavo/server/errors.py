"""Errors as clients see them: one shape everywhere, ``{"error": {"message", "type", "param", "code"}}``.

An ``ApiError`` knows its status and body; whatever else is raised becomes a 500 that carries an error id and nothing of the
cause. Messages are fixed here or come from validation: no path, host, traceback or object address passes through.
"""

import math
import os
import re
import traceback
from typing import Any

import msgspec

from octavo.sampling_params import ParameterError
from octavo.server.request_log import Log

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    500: "InternalServerError",
    501: "NotImplementedError",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Request Entity Too Large",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
CLIENT_GONE = 499
"""In place of a status, where nobody was left to read one."""
_AT = re.compile(r" - at `(\$[^`]*)`$")
_LONGEST_VALUE = 200


class ApiError(Exception):
    """An answer that is not a success. ``headers`` are added to the response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.type = type or _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
        self.headers = headers or {}

    def body(self) -> bytes:
        """The JSON of the one error shape."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


def from_parameter_error(error: ParameterError) -> ApiError:
    """A field out of range: 400, with the field's name and value repeated at the end of the message."""
    notes = [] if error.param is None else [f"parameter={error.param}"]
    if error.param is not None and error.value is not None:
        notes.append(f"value={_shown(error.value)}")
    suffix = f" ({', '.join(notes)})" if notes else ""
    return ApiError(400, f"{error}{suffix}", param=error.param)


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def invalid(message: str, param: str | None = None) -> ApiError:
    """A field that means something impossible or unsupported: 400."""
    suffix = f" (parameter={param})" if param else ""
    return ApiError(400, f"{message}{suffix}", param=param)


def malformed(message: str, param: str | None = None) -> ApiError:
    """A body that is not what the route takes: 400 of type ``Bad Request``."""
    return ApiError(400, message, param=param, type="Bad Request")


def from_validation_error(error: msgspec.ValidationError) -> ApiError:
    """A field of the wrong type: 400, ``param`` is the path of the field, as in ``messages[3].content``."""
    text = str(error)
    place = _AT.search(text)
    path = place.group(1).removeprefix("$").removeprefix(".") if place else ""
    what = text[: place.start()] if place else text
    missing = re.search(r"missing required field `([^`]+)`", what)
    if missing:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return malformed(f"{path}: field required", path)
    return malformed(f"{path}: {what[:1].lower()}{what[1:]}" if path else what, path or None)


def answer_to(error: Exception, log: Log, request_id: str) -> ApiError:
    """What the client is told of ``error``: itself if it is meant for clients, else an id under which the log has all of it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ParameterError):
        return from_parameter_error(error)
    error_id = os.urandom(6).hex()
    details = "".join(traceback.format_exception(error))
    log.error("internal_error", message=details, error_id=error_id, request_id=request_id)
    return internal(error_id)


def unauthorized() -> ApiError:
    message = "A valid API key is required: send it as `Authorization: Bearer KEY`."
    return ApiError(401, message, headers={"www-authenticate": "Bearer"})


def forbidden(role: str) -> ApiError:
    return ApiError(403, f"This API key has the role `{role}`, which may not use this route.")


def foreign_page() -> ApiError:
    message = "This server asks for no key, so web pages of other names may not use it; --allowed-origins names those that may."
    return ApiError(403, message, param="origin")


def limited(name: str, limit: int, seconds: float) -> ApiError:
    """A limit of the client's key; ``seconds`` until it is worth another try."""
    wait = min(3600, max(1, math.ceil(seconds)))
    message = f"The limit {name}={limit} of this API key is reached. Please try again in {wait} s."
    return ApiError(429, message, param=name, type="rate_limit_exceeded", headers={"retry-after": str(wait)})


def headers_too_large(limit: int) -> ApiError:
    message = f"The request's headers are larger than the limit of {limit} bytes."
    return ApiError(431, message, headers={"connection": "close"})


def busy(retry_after: int) -> ApiError:
    message = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    return ApiError(503, message, headers={"retry-after": str(retry_after)})


def not_ready(phase: str) -> ApiError:
    return ApiError(503, f"The server is not ready: {phase}.", headers={"retry-after": "1"})


def draining() -> ApiError:
    message = "The server is shutting down and takes no new requests."
    return ApiError(503, message, headers={"retry-after": "5", "connection": "close"})


def engine_restarted() -> ApiError:
    message = "The engine stopped unexpectedly and is being restarted. Send the request again."
    return ApiError(503, message, type="engine_restarted", headers={"retry-after": "2"})


def internal(error_id: str) -> ApiError:
    return ApiError(500, f"Internal server error. The server's log has the details under the id {error_id}.")
