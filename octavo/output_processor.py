"""From the engine's token deltas to text: detokenize, find stop strings, count, choose the best of several.

One ``OutputProcessor`` for one engine request, with one ``TextStream`` for each of its branches. It decides only what text can
decide, where a stop string ended a branch, and then says that the engine is to be told. When more branches are drawn than
returned, nothing is final before all have ended: then the best come as one update each, best first.
"""

from collections.abc import Sequence

import msgspec

from octavo.detokenizer import TextStream
from octavo.outputs import BeamState, FinishReason, TokenDelta, best_branches
from octavo.request import Request
from octavo.step import TokenLogprobs
from octavo.tokenizer import Tokenizer


class BeamText(msgspec.Struct, gc=False):
    """One beam of a search that goes on, as text."""

    text: str
    token_ids: list[int]
    cumulative_logprob: float


class ChoiceUpdate(msgspec.Struct, kw_only=True, gc=False):
    """What is new in one choice. ``num_tokens`` and ``cumulative_logprob`` are of all its tokens so far, the latter known where
    log-probabilities are and of returned beams. ``num_discarded`` counts the tokens of branches that were drawn and not chosen.
    With ``beams`` it brings nothing but the running beams of the search whose first choice has this index."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_tokens: int = 0
    cumulative_logprob: float | None = None
    num_discarded: int = 0
    cached_tokens: int = 0
    prompt_logprobs: Sequence[TokenLogprobs] | None = None
    beams: list[BeamText] | None = None


class Processed(msgspec.Struct):
    """What came of a delta. ``abort``: its branch is complete, but the engine does not know it yet."""

    updates: list[ChoiceUpdate]
    abort: bool = False


class _Branch:
    """``parts`` are its updates, kept when the best branches are to be chosen."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self.text = TextStream(tokenizer, request.params, request.prompt_token_ids)
        self.finish_reason: FinishReason | None = None
        self.cumulative_logprob: float | None = None
        self.parts: list[ChoiceUpdate] = []


class OutputProcessor:
    """``first_index`` is the number of the request's first choice among all that are asked for together."""

    def __init__(self, request: Request, tokenizer: Tokenizer, *, first_index: int = 0) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._first_index = first_index
        self._branches = [_Branch(tokenizer, request) for _ in range(request.params.num_outputs)]
        self._unfinished = len(self._branches)

    @property
    def finished(self) -> bool:
        return self._unfinished == 0

    def process(self, delta: TokenDelta) -> Processed:
        """What ``delta`` adds: nothing for a branch that is already complete."""
        branch = self._branches[delta.branch]
        if branch.finish_reason is not None:
            return Processed([])
        update = self._update(branch, delta)
        abort = update.finish_reason is not None and delta.finish_reason is None
        if update.finish_reason is not None:
            branch.finish_reason = update.finish_reason
            self._unfinished -= 1
        if not self._request.params.selects:
            return Processed([update], abort)
        branch.parts.append(update)
        return Processed(self._best() if self.finished else [], abort)

    def _update(self, branch: _Branch, delta: TokenDelta) -> ChoiceUpdate:
        stream, before = branch.text, branch.text.num_tokens
        on_stop_token = delta.finish_reason == "stop" and bool(delta.token_ids)
        text = stream.push(delta.token_ids, ends_with_stop_token=on_stop_token)
        if delta.finish_reason is not None:
            text += stream.finish()
        kept = stream.num_tokens - before
        logprobs = None if delta.logprobs is None else delta.logprobs[:kept]
        if self._request.params.beam is not None:  # its log-probabilities are those after penalties and biases
            branch.cumulative_logprob = delta.cumulative_logprob
        elif logprobs is not None:
            branch.cumulative_logprob = (branch.cumulative_logprob or 0.0) + sum(entry.logprob for entry in logprobs)
        update = ChoiceUpdate(
            index=self._first_index + delta.branch,
            text=text,
            token_ids=delta.token_ids[:kept],
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            num_tokens=stream.num_tokens,
            cumulative_logprob=branch.cumulative_logprob,
            cached_tokens=delta.num_cached_tokens,
            prompt_logprobs=delta.prompt_logprobs,
            beams=None if delta.beams is None else [self._beam_text(beam) for beam in delta.beams],
        )
        if stream.stopped is not None:
            update.finish_reason, update.stop_reason = "stop", stream.stopped
        return update

    def _beam_text(self, beam: BeamState) -> BeamText:
        """A beam from its first token on: from one report to the next it may be another."""
        stream = TextStream(self._tokenizer, self._request.params, self._request.prompt_token_ids)
        return BeamText(stream.push(beam.token_ids), beam.token_ids, beam.cumulative_logprob)

    def _best(self) -> list[ChoiceUpdate]:
        """The chosen branches as if each had come at once. What is said once for the request is on the first."""
        chosen = best_branches(self._branches, self._request.params.n)
        updates = [self._whole(self._branches[i], self._first_index + place) for place, i in enumerate(chosen)]
        first, everything = updates[0], [part for branch in self._branches for part in branch.parts]
        first.prompt_logprobs = next((p.prompt_logprobs for p in everything if p.prompt_logprobs is not None), None)
        drawn = sum(branch.text.num_tokens for branch in self._branches)
        first.num_discarded = drawn - sum(update.num_tokens for update in updates)
        return updates

    def _whole(self, branch: _Branch, index: int) -> ChoiceUpdate:
        parts, last = branch.parts, branch.parts[-1]
        wanted = self._request.params.num_logprobs is not None
        return ChoiceUpdate(
            index=index,
            text="".join(part.text for part in parts),
            token_ids=[token for part in parts for token in part.token_ids],
            logprobs=[entry for part in parts for entry in part.logprobs or []] if wanted else None,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            num_tokens=last.num_tokens,
            cumulative_logprob=branch.cumulative_logprob,
            cached_tokens=last.cached_tokens,
        )
