"""A model behind an OpenAI-compatible API, to talk to or to let go on with a text, with the standard library's HTTP."""

import contextlib
import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import msgspec

from octavo.bench.serve.events import Choice, decode_event, error_text
from octavo.config import ConfigError
from octavo.server_url import server_url

_TIMEOUT = 600.0


class RemotePartner:
    """``url`` is the API's base; without a path, ``/v1`` there. Without ``model``, the server's first is asked.

    Raises ``ConfigError`` when the server cannot be reached or refuses.
    """

    def __init__(self, url: str, *, api_key: str | None, model: str | None, fields: Mapping[str, Any]) -> None:
        self._parts = server_url(url, flag="--url", wanted="give it as http://HOST:PORT/v1")
        self._path = self._parts.path.rstrip("/") or "/v1"
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._fields = dict(fields)
        self._model = model or self._first_model()

    def answer(self, messages: list[dict[str, str]]) -> Iterator[str]:
        """The answer in pieces. Closing the iterator closes the connection, which ends the request on the server."""
        with contextlib.closing(self._choices("/chat/completions", {"messages": messages})) as choices:
            for choice in choices:
                if choice.delta is not None and choice.delta.content:
                    yield choice.delta.content

    def complete(self, prompt: str) -> Generator[str]:
        """The text that follows ``prompt`` in pieces, in the same way."""
        with contextlib.closing(self._choices("/completions", {"prompt": prompt})) as choices:
            for choice in choices:
                if choice.text:
                    yield choice.text

    def _choices(self, route: str, said: Mapping[str, Any]) -> Generator[Choice]:
        """Those of every event, as they come, until the server says that the answer is whole."""
        body = json.dumps({**self._fields, "model": self._model, **said, "stream": True})
        connection = self._connect()
        try:
            response = self._request(connection, "POST", route, body)
            for line in response:
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or not data:
                    continue
                if data == b"[DONE]":
                    return
                event = decode_event(data)
                if event.error is not None:
                    raise ConfigError(f"the server stopped: {error_text(data)}")
                yield from event.choices or ()
            raise ConfigError(f"the connection to {self._parts.netloc} broke before the end of the answer")
        except ConfigError:
            raise
        except (OSError, http.client.HTTPException, ValueError, msgspec.DecodeError) as error:
            raise ConfigError(f"the connection to {self._parts.netloc} broke: {error}") from None
        finally:
            connection.close()

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            models = json.loads(self._request(connection, "GET", "/models").read())
            return str(models["data"][0]["id"])
        except ConfigError:
            raise
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"--url: {self._parts.netloc} does not answer as an OpenAI API does: {error}") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=_TIMEOUT)

    def _request(
        self, connection: http.client.HTTPConnection, method: str, route: str, body: str | None = None
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._path + route, body, self._headers)
            response = connection.getresponse()
        except OSError as error:
            hint = "start a server with octavo serve MODEL, or give another --url"
            raise ConfigError(f"cannot reach {self._parts.netloc}: {error}; {hint}") from None
        if response.status != 200:
            hint = " (--api-key)" if response.status == 401 else ""
            raise ConfigError(f"{self._parts.netloc} answered {response.status}: {error_text(response.read())}{hint}")
        return response
