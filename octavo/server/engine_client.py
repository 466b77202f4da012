"""The joint between HTTP and the engine: submit a request, read its deltas from a mailbox, abort.

``EngineClient`` is the protocol that the HTTP side sees; the supervisor implements it over a socket, tests over a script.
``RequestTable`` knows which requests are with the engine and which of them have had a token: exactly what decides, when an
engine dies, who is told and who is sent again. Every request ends in its mailbox with a last delta or an exception.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from typing import Protocol

import msgspec

from octavo.metrics import EngineStats
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.server.packed_logprobs import PackedLogprobs
from octavo.server.wire import PromptPiece

_DRAIN_WINDOW = 30.0
_MAX_SUBMISSIONS = 2
_DELTAS_AT_ONCE = 64


class Mailbox:
    """Deltas on their way to one consumer. Never blocks the producer; holds at most what its requests may generate."""

    def __init__(self) -> None:
        self._deltas: list[TokenDelta] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._accounts: list[RequestMetrics] = []
        self._accounts_due = 0
        self._settled = asyncio.Event()
        self._settled.set()

    def put(self, delta: TokenDelta) -> None:
        """Of a search's running beams only the latest are kept: all of them would grow with the square of the output."""
        if delta.beams is not None:
            self._deltas = [old for old in self._deltas if not _is_outdone(old, delta)]
        self._deltas.append(delta)
        self._wake()

    def fail(self, error: Exception) -> None:
        """The consumer gets ``error`` after the deltas before it; the first failure counts."""
        self._failure = self._failure or error
        self._wake()

    async def wait(self) -> None:
        """Returns when there is something to get. Raises the failure if that is what there is."""
        while not self._deltas:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def get(self) -> list[TokenDelta]:
        """The deltas that have come, at least one, in order. Of very many the first: others get a turn before the rest."""
        if self._deltas:
            await asyncio.sleep(0)
        else:
            await self.wait()
        deltas, self._deltas = self._deltas[:_DELTAS_AT_ONCE], self._deltas[_DELTAS_AT_ONCE:]
        return deltas

    def expect_account(self) -> None:
        """One more request will end in an account of what it cost."""
        self._accounts_due += 1
        self._settled.clear()

    def put_account(self, metrics: RequestMetrics | None) -> None:
        """A request has ended in the engine; None when nobody is left to say what it cost."""
        if metrics is not None:
            self._accounts.append(metrics)
        self._accounts_due -= 1
        if self._accounts_due <= 0:
            self._settled.set()

    async def accounts(self, timeout: float) -> list[RequestMetrics]:
        """What each request cost, as far as it has become known within ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._settled.wait()
        return self._accounts

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _is_outdone(old: TokenDelta, new: TokenDelta) -> bool:
    return old.beams is not None and old.request_id == new.request_id and old.prompt_logprobs is None


class EngineClient(Protocol):
    """What the HTTP side may do with an engine, wherever it runs."""

    @property
    def stats(self) -> EngineStats:
        """The latest the engine has said about itself, its counters continued over restarts."""

    @property
    def pending(self) -> int:
        """Requests that have not had a token."""

    @property
    def pending_tokens(self) -> int:
        """Tokens of their prompts."""

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        """Queues ``request``; its deltas go to ``mailbox``. Raises ``ApiError`` when it is full or has no engine."""

    def abort(self, request_id: str, branch: int | None = None) -> None:
        """Ends a request, or one branch of it; unknown ids are ignored. No delta of an aborted request follows."""


class _Entry(msgspec.Struct, gc=False):
    request: Request
    mailbox: Mailbox
    open_branches: set[int]
    started: bool = False
    submissions: int = 1
    prompt_pieces: list[PromptPiece] = []


class RequestTable:
    """The requests that an engine holds, by id, in order of arrival.

    A request may end here before it ends in the engine; until then its mailbox is kept for the account of what it cost.
    ``pending`` of them have not had a token; ``pending_tokens`` are the tokens of their prompts.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._unsettled: dict[str, Mailbox] = {}
        self.pending = 0
        self.pending_tokens = 0
        self._waiting_since = 0.0
        self._started: deque[tuple[float, int]] = deque(maxlen=4096)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, request: Request, mailbox: Mailbox) -> None:
        """Raises ``ValueError`` for an id that is here already."""
        if request.id in self._unsettled:
            raise ValueError(f"request id {request.id} is in use")
        self._unsettled[request.id] = mailbox
        mailbox.expect_account()
        self._entries[request.id] = _Entry(
            request=request, mailbox=mailbox, open_branches=set(range(request.params.num_outputs))
        )
        if not self.pending:
            self._waiting_since = time.monotonic()
        self.pending += 1
        self.pending_tokens += len(request.prompt_token_ids)

    def deliver(self, delta: TokenDelta) -> None:
        """Hands a delta to its mailbox. Deltas of requests and branches that have ended are dropped, but for the account."""
        if delta.metrics is not None:
            self.settle(delta.request_id, delta.metrics)
        entry = self._entries.get(delta.request_id)
        if entry is None or delta.branch not in entry.open_branches:
            return
        if not entry.started:
            entry.started = True
            self._leave_queue(entry)
            self._started.append((time.monotonic(), len(entry.request.prompt_token_ids)))
        if entry.prompt_pieces and delta.prompt_logprobs is not None:
            delta = _with_pieces(delta, entry.prompt_pieces)
            entry.prompt_pieces = []
        if delta.finish_reason is not None:
            entry.open_branches.discard(delta.branch)
            if not entry.open_branches:
                del self._entries[delta.request_id]
        entry.mailbox.put(delta)

    def keep(self, piece: PromptPiece) -> None:
        """A piece of what the next delta of its request brings; dropped when that has ended."""
        entry = self._entries.get(piece.request_id)
        if entry is not None:
            entry.prompt_pieces.append(piece)

    def refuse(self, request_id: str, error: Exception) -> None:
        entry = self._remove(request_id)
        if entry is not None:
            entry.mailbox.fail(error)
        self.settle(request_id, None)

    def settle(self, request_id: str, metrics: RequestMetrics | None) -> None:
        """The engine holds nothing of a request any more, and this is what it cost."""
        mailbox = self._unsettled.pop(request_id, None)
        if mailbox is not None:
            mailbox.put_account(metrics)

    def abort(self, request_id: str, branch: int | None) -> bool:
        """Forgets a request, or one branch of it. Returns whether the engine has to be told."""
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        if branch is not None:
            entry.open_branches.discard(branch)
        if branch is None or not entry.open_branches:
            self._remove(request_id)
        return True

    def engine_lost(self, error: Exception) -> None:
        """Fails every request that has had a token, and those that were with two engines when they died."""
        for request_id, entry in list(self._entries.items()):
            if entry.started or entry.submissions >= _MAX_SUBMISSIONS:
                self.refuse(request_id, error)
        for request_id in self._unsettled.keys() - self._entries.keys():
            self.settle(request_id, None)

    def resubmit(self) -> list[Request]:
        """The requests that a new engine is to be given."""
        for entry in self._entries.values():
            entry.submissions += 1
            entry.prompt_pieces = []
        return [entry.request for entry in self._entries.values()]

    def fail_all(self, error: Exception) -> None:
        for request_id in list(self._unsettled):
            self.refuse(request_id, error)

    def retry_after(self) -> int:
        """Seconds until the queue would be empty at the rate at which requests, or the tokens of their prompts, have lately
        left it while it was not, whichever takes longer; in [1, 60]."""
        now = time.monotonic()
        begin = max(now - _DRAIN_WINDOW, self._waiting_since)
        recent = [tokens for at, tokens in self._started if at >= begin]
        if not recent:
            return 5
        window = max(1.0, now - begin)
        windows = max(self.pending / len(recent), self.pending_tokens / sum(recent))
        return min(60, max(1, math.ceil(windows * window)))

    def _remove(self, request_id: str) -> _Entry | None:
        entry = self._entries.pop(request_id, None)
        if entry is not None and not entry.started:
            self._leave_queue(entry)
        return entry

    def _leave_queue(self, entry: _Entry) -> None:
        self.pending -= 1
        self.pending_tokens -= len(entry.request.prompt_token_ids)


def _with_pieces(delta: TokenDelta, pieces: list[PromptPiece]) -> TokenDelta:
    packed = PackedLogprobs([piece.packed for piece in pieces], sum(piece.count for piece in pieces))
    return msgspec.structs.replace(delta, prompt_logprobs=packed)
