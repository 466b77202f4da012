"""A scripted engine at the joint, and an ASGI client that can stop reading, hang up and count."""

import asyncio
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from octavo import build
from octavo.config import EngineConfig, ModelConfig
from octavo.metrics import EngineStats
from octavo.outputs import BeamState, RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.server.app import build_app
from octavo.server.engine_client import Mailbox
from octavo.server.names import ModelNames
from octavo.server.options import ServerOptions
from octavo.server.request_log import Log
from octavo.server.service import ServedModel, Service
from octavo.server.status import Status
from octavo.step import TokenLogprobs
from octavo.tokenizer import Tokenizer

EOS = 2
SHARING = {"blocks_allocated": 5, "blocks_shared": 3, "copy_on_writes": 1}


class FakeEngine:
    """Answers every request with ``text``, a token at a time, or not at all (``silent``).

    ``refuse`` is raised through the mailbox instead. ``requests`` and ``aborted`` are what it was asked. When more branches are
    drawn than returned, branch b begins at its token number b and has the log-probability ``scores[b]`` a token. Beam b of a
    search also begins there, and its log-probability is minus b and a tenth for each token. ``generated`` is how many tokens it
    says that a request's were, ``account_delay`` the seconds until it tells what an aborted one cost, and ``first_token_time``
    those until a request had its first token.
    """

    scores = (-0.5, -0.9, -0.1, -0.3)

    def __init__(self, tokenizer: Tokenizer, text: str = "one two three") -> None:
        self.token_ids = tokenizer.encode(text, add_special_tokens=False)
        self.silent = False
        self.generated = 0
        self.account_delay = 0.0
        self.first_token_time: float | None = None
        self.refuse: Exception | None = None
        self.reject: Exception | None = None
        self.stats = EngineStats(blocks_total=8, blocks_used=2, blocks_shared=1, blocks_cached=1, blocks_free=5)
        self.pending = self.pending_tokens = 0
        self.requests: list[Request] = []
        self.aborted: list[tuple[str, int | None]] = []
        self.mailboxes: dict[str, Mailbox] = {}
        self.open: dict[str, set[int]] = {}

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        if self.reject is not None:
            raise self.reject
        self.requests.append(request)
        self.mailboxes[request.id] = mailbox
        self.open[request.id] = set(range(request.params.num_outputs))
        mailbox.expect_account()
        if self.refuse is not None:
            asyncio.get_running_loop().call_soon(mailbox.fail, self.refuse)
        elif not self.silent:
            for delta in self.deltas(request):
                asyncio.get_running_loop().call_soon(self._put, mailbox, delta)

    def abort(self, request_id: str, branch: int | None = None) -> None:
        self.aborted.append((request_id, branch))
        if request_id in self.open:
            self.open[request_id] -= self.open[request_id] if branch is None else {branch}
            if not self.open[request_id]:
                self._settle(request_id)

    def _put(self, mailbox: Mailbox, delta: TokenDelta) -> None:
        if delta.request_id in self.open:
            mailbox.put(delta)
            if delta.metrics is not None:
                self._settle(delta.request_id)

    def _settle(self, request_id: str) -> None:
        del self.open[request_id]
        metrics = msgspec.structs.replace(self._metrics(), queue_time=0.25, num_preemptions=1, num_swaps=2)
        asyncio.get_running_loop().call_later(self.account_delay, self.mailboxes[request_id].put_account, metrics)

    def deltas(self, request: Request) -> list[TokenDelta]:
        params, found = request.params, []
        if params.beam is not None:
            return self.beam_deltas(request)
        if params.selects:
            return [delta for branch in range(params.num_branches) for delta in self.branch_deltas(request, branch)]
        produced = self.token_ids[: params.max_tokens]
        ended = len(self.token_ids) < (params.max_tokens or 0)
        tokens = [*produced, EOS] if ended else produced
        for i, token in enumerate(tokens):
            last = i == len(tokens) - 1
            for branch in range(params.n):
                found.append(
                    TokenDelta(
                        request_id=request.id,
                        branch=branch,
                        token_ids=[token],
                        logprobs=None if params.logprobs is None else [logprobs_of(token, params.logprobs)],
                        prompt_logprobs=self._prompt_logprobs(request) if i == branch == 0 else None,
                        finish_reason=("stop" if ended else "length") if last else None,
                        num_cached_tokens=3,
                        metrics=msgspec.structs.replace(self._metrics(), queue_time=0.25, num_preemptions=1)
                        if last and branch == params.n - 1
                        else None,
                    )
                )
        return found

    def branch_deltas(self, request: Request, branch: int) -> list[TokenDelta]:
        """A branch of several, to choose from."""
        k = request.params.logprobs or 0
        tokens = [*self.token_ids[branch:], EOS]
        return [
            TokenDelta(
                request_id=request.id,
                branch=branch,
                token_ids=[token],
                logprobs=[msgspec.structs.replace(logprobs_of(token, k), logprob=self.scores[branch])],
                prompt_logprobs=self._prompt_logprobs(request) if i == branch == 0 else None,
                finish_reason="stop" if token == EOS else None,
                num_cached_tokens=3,
                metrics=self._metrics() if token == EOS and branch == request.params.num_branches - 1 else None,
            )
            for i, token in enumerate(tokens)
        ]

    def beam_deltas(self, request: Request) -> list[TokenDelta]:
        params, found = request.params, []
        for length in range(1, len(self.token_ids) + 1) if params.beam and params.beam.report else ():
            beams = [BeamState(self.token_ids[b : b + length], -b - 0.1 * length) for b in range(request.params.num_branches)]
            found.append(TokenDelta(request_id=request.id, branch=0, token_ids=[], beams=beams))
        for branch in range(params.num_outputs):
            tokens = [*self.token_ids[branch:], EOS]
            found.append(
                TokenDelta(
                    request_id=request.id,
                    branch=branch,
                    token_ids=tokens,
                    logprobs=None if params.logprobs is None else [logprobs_of(token, params.logprobs) for token in tokens],
                    cumulative_logprob=-branch - 0.1 * len(tokens),
                    finish_reason="stop",
                    num_cached_tokens=3,
                    metrics=self._metrics() if branch == params.num_outputs - 1 else None,
                )
            )
        return found

    def _metrics(self) -> RequestMetrics:
        return RequestMetrics(
            arrival_time=0.0, first_token_time=self.first_token_time, num_generated_tokens=self.generated, **SHARING
        )

    def _prompt_logprobs(self, request: Request) -> list[TokenLogprobs] | None:
        asked = request.params.prompt_logprobs
        return None if asked is None else [logprobs_of(token, asked) for token in request.prompt_token_ids[1:]]


def logprobs_of(token: int, k: int) -> TokenLogprobs:
    """The token itself is the likeliest, the ones after it follow."""
    return TokenLogprobs(token, -0.5, 1, [token, *range(5, 5 + k)][:k], [-0.5, *(-1.0 - i for i in range(k))][:k])


MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=902,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    default_sampling={"temperature": 0.6, "top_k": 20},
)


class Bench:
    """A whole server but for the engine. ``log`` is what it would have written."""

    def __init__(
        self,
        directory: Path,
        options: ServerOptions | None = None,
        *,
        template: str | None = None,
        context: int = 64,
        **config: Any,
    ) -> None:
        from tests.server.tiny import TEMPLATE, vocab_size
        from tests.tokenizer.small import byte_level_directory

        self.tokenizer = Tokenizer.from_directory(byte_level_directory(directory, chat_template=template or TEMPLATE))
        self.engine = FakeEngine(self.tokenizer)
        self.status = Status()
        self.status.up()
        self.status.text_ready()
        self.log = io.StringIO()
        model = msgspec.structs.replace(MODEL, vocab_size=vocab_size())
        front = build.Frontend(self.tokenizer, model, context, model.vocab_size)
        served = ServedModel.build(front, EngineConfig(model="tiny", **config))
        self.served = msgspec.structs.replace(served, fingerprint="octavo-test")
        self.service = Service(
            options=options or ServerOptions(),
            names=ModelNames(("tiny", "alias"), frozenset({"/secret/tiny"})),
            client=self.engine,
            status=self.status,
            log=Log(self.log, as_json=True),
            served=self.served,
        )
        self.app = build_app(self.service)

    def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request. ``body`` is bytes, or is sent as JSON."""
        exchange = Exchange(self.app, method, path, body, headers=headers)
        asyncio.run(exchange.run())
        return exchange.status or 0, exchange.headers, bytes(exchange.body)

    def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        """A JSON answer to JSON."""
        status, _, body = self.call("POST", path, fields)
        return status, json.loads(body)

    def error(self, path: str, **fields: Any) -> dict[str, Any]:
        """The error that ``fields`` get, its shape and status checked."""
        status, _, body = self.call("POST", path, fields)
        return error_of(status, body)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


def error_of(status: int, body: bytes) -> dict[str, Any]:
    answer = json.loads(body)
    assert list(answer) == ["error"] and list(answer["error"]) == ["message", "type", "param", "code"], answer
    assert answer["error"]["code"] == status
    error: dict[str, Any] = answer["error"]
    return error


class Exchange:
    """One request over ASGI. ``on_body`` sees every piece of the answer; ``hang_up`` is the client leaving."""

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        on_body: Callable[[bytes], Any] | None = None,
    ) -> None:
        self._app = app
        self._content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json", **(headers or {})}
        path, _, query = path.partition("?")
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
            "state": {},
        }
        self._on_body = on_body
        self._gone = asyncio.Event()
        self._sent = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()

    async def run(self) -> None:
        await self._app(self.scope, self._receive, self._send)

    def hang_up(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.body += message.get("body", b"")
        if self._on_body is not None:
            result = self._on_body(message.get("body", b""))
            if asyncio.iscoroutine(result):
                await result


def stable(text: bytes) -> str:
    """An answer with its time of creation left out."""
    return re.sub(r'"created":\d+', '"created":0', text.decode())
