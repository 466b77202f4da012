"""Who counts tokens while prompts are made: a tokenizer here, or the server's own /tokenize and /detokenize.

Asked before the measurement begins, and by plain blocking calls: nothing of it runs beside what is measured.
"""

import contextlib
import http.client
import json
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from octavo.bench.serve.client import tls
from octavo.bench.serve.events import error_text
from octavo.config import ConfigError, EngineConfig

_TIMEOUT = 60.0
_WAIT_HINT = "--ready-check-timeout-sec waits for one that is starting"
_UNAVAILABLE = {401: "--api-key", 503: _WAIT_HINT}


class UnavailableError(ConfigError):
    """Nobody answers, or not yet, or not to us."""


class TokenCounter(Protocol):
    """Text to ids and back."""

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ServerApi:
    """The routes of a server beside the measured one. Raises ``ConfigError`` for whatever goes wrong."""

    def __init__(self, url: str, *, headers: Mapping[str, str], insecure: bool = False) -> None:
        self._parts = urllib.parse.urlsplit(url)
        self._headers = {"content-type": "application/json", **headers}
        self._tls = tls(insecure) if self._parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def wait_ready(self, seconds: float) -> None:
        """Until the server lists its models."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(ConfigError):
                self.first_model()
                return
            time.sleep(min(1.0, seconds))

    def first_model(self) -> str:
        """The first name that the server calls its model."""
        return self.models()[0]

    def models(self) -> list[str]:
        """The names that the server calls its models, one at least."""
        answer = self.call("GET", "/v1/models")
        try:
            found = [str(model["id"]) for model in answer["data"]]
        except (LookupError, TypeError):
            found = []
        if not found:
            raise ConfigError(f"{self._parts.netloc} names no model under /v1/models: give --model")
        return found

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """JSON there and back."""
        data = None if body is None else json.dumps(body).encode()
        try:
            status, answer = self._exchange(method, path, data)
        except (OSError, http.client.HTTPException) as error:
            hint = f"start a server with octavo serve MODEL, or give another --base-url; {_WAIT_HINT}"
            raise UnavailableError(f"cannot reach {self._parts.netloc}: {error}; {hint}") from None
        if status != 200:
            message = f"{self._parts.netloc} answered {status} to {path}: {error_text(answer)}"
            if status in _UNAVAILABLE:
                raise UnavailableError(f"{message} ({_UNAVAILABLE[status]})")
            raise ConfigError(message)
        try:
            return json.loads(answer)
        except ValueError:
            raise ConfigError(f"{self._parts.netloc} did not answer {path} with JSON") from None

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """A connection that was closed meanwhile is opened anew."""
        if self._connection is not None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self._on(self._connection, method, path, data)
        self._connection = self._connect()
        return self._on(self._connection, method, path, data)

    def _on(self, connection: http.client.HTTPConnection, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        try:
            connection.request(method, self._parts.path + path, data, self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        host = self._parts.hostname or ""
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, self._parts.port, timeout=_TIMEOUT, context=self._tls)
        return http.client.HTTPConnection(host, self._parts.port, timeout=_TIMEOUT)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ServerTokens:
    """The server's own tokenizer, by /tokenize and /detokenize."""

    def __init__(self, api: ServerApi, model: str) -> None:
        self._api = api
        self._model = model

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        return [self._encode(text, add_special_tokens) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._ask("/detokenize", {"model": self._model, "tokens": list(ids)}, "prompt"))

    def _encode(self, text: str, special: bool) -> list[int]:
        if not text:
            return []
        found = self._ask("/tokenize", {"model": self._model, "prompt": text, "add_special_tokens": special}, "tokens")
        return list(map(int, found))

    def _ask(self, path: str, body: Any, key: str) -> Any:
        try:
            return self._api.call("POST", path, body)[key]
        except UnavailableError:
            raise
        except (ConfigError, LookupError, TypeError) as error:
            self._check_model()
            raise ConfigError(f"the server cannot count tokens ({error}): give --tokenizer") from None

    def _check_model(self) -> None:
        """Raises ``ConfigError`` when the server has no such model."""
        try:
            names = self._api.models()
        except ConfigError:
            return
        if self._model not in names:
            raise ConfigError(f"the server has no model {self._model!r}, but {', '.join(names)}: see --model") from None


def open_tokens(tokenizer: str | None, api: ServerApi, model: str) -> TokenCounter:
    """The counter of ``--tokenizer``, or the server. Raises ``ConfigError``."""
    if tokenizer is None:
        return ServerTokens(api, model)
    from octavo.build import open_frontend

    found: TokenCounter = open_frontend(EngineConfig(model=tokenizer)).tokenizer
    return found
