"""From the engine's token deltas to a client's text: detokenize, find stop strings, count.

One ``OutputProcessor`` for one engine request, with one ``TextStream`` for each of its branches. It decides only what text can
decide, where a stop string ended a branch, and then says that the engine is to be told.
"""

import msgspec

from octavo.detokenizer import TextStream
from octavo.outputs import FinishReason, TokenDelta
from octavo.request import Request
from octavo.step import TokenLogprobs
from octavo.tokenizer import Tokenizer


class ChoiceUpdate(msgspec.Struct, kw_only=True, gc=False):
    """What is new in one choice. ``abort``: the choice is complete, but the engine does not know it yet."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_tokens: int = 0
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None
    abort: bool = False


class _Branch:
    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self.text = TextStream(tokenizer, request.params, request.prompt_token_ids)
        self.finished = False


class OutputProcessor:
    """``first_index`` is the number of the request's first choice among all choices of the client's request."""

    def __init__(self, request: Request, tokenizer: Tokenizer, *, first_index: int) -> None:
        self._first_index = first_index
        self._branches = [_Branch(tokenizer, request) for _ in range(request.params.n)]
        self._unfinished = request.params.n

    @property
    def finished(self) -> bool:
        return self._unfinished == 0

    def process(self, delta: TokenDelta) -> ChoiceUpdate | None:
        """What ``delta`` adds; None for a branch that is already complete."""
        branch = self._branches[delta.branch]
        if branch.finished:
            return None
        stream, before = branch.text, branch.text.num_tokens
        on_stop_token = delta.finish_reason == "stop" and bool(delta.token_ids)
        text = stream.push(delta.token_ids, ends_with_stop_token=on_stop_token)
        if delta.finish_reason is not None:
            text += stream.finish()
        kept = stream.num_tokens - before
        update = ChoiceUpdate(
            index=self._first_index + delta.branch,
            text=text,
            token_ids=delta.token_ids[:kept],
            logprobs=None if delta.logprobs is None else delta.logprobs[:kept],
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            num_tokens=stream.num_tokens,
            cached_tokens=delta.num_cached_tokens,
            prompt_logprobs=delta.prompt_logprobs,
        )
        if stream.stopped is not None:
            update.finish_reason, update.stop_reason = "stop", stream.stopped
            update.abort = delta.finish_reason is None
        if update.finish_reason is not None:
            branch.finished = True
            self._unfinished -= 1
        return update
