"""What comes out: ``TokenDelta`` from the engine to the API, ``RequestOutput`` to the user."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from octavo.step import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One request's times in seconds since its arrival, and what its KV cache cost.

    ``queue_time`` ends when its first token was scheduled, ``first_token_time`` (TTFT) and ``finished_time`` when the first and
    the last token were known. ``mean_itl`` is the mean time between tokens of one branch (inter-token latency).
    ``num_generated_tokens`` are those of all that was drawn, chosen or not; branches that are equal were drawn once.
    """

    arrival_time: float
    queue_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    mean_itl: float | None = None
    num_preemptions: int = 0
    num_swaps: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    blocks_allocated: int = 0
    blocks_shared: int = 0
    copy_on_writes: int = 0


class BeamState(msgspec.Struct, frozen=True, gc=False):
    """One beam of a search that goes on: its output so far and the sum of its log-probabilities."""

    token_ids: list[int]
    cumulative_logprob: float


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """New tokens of one branch of one request. The branch's last delta has a ``finish_reason``, the request's last ``metrics``.

    ``stop_reason`` is the id of the stop token that ended the branch (not set for the model's own end-of-sequence token), or
    for the reason "repetition" the text "repetition_detected".
    ``prompt_logprobs`` comes once, on the request's first delta, and begins with the prompt's second token.

    Of a beam search there is one delta for each returned beam, best first, when the search ends; before that, if asked for,
    deltas of branch 0 without tokens that bring ``beams``, the running ones, best first.
    """

    request_id: str
    branch: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: Sequence[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    beams: list[BeamState] | None = None
    error: str | None = None


class Ranked(Protocol):
    """A finished branch, as far as choosing among branches goes."""

    @property
    def finish_reason(self) -> FinishReason | None: ...

    @property
    def cumulative_logprob(self) -> float | None: ...


def best_branches(branches: Sequence[Ranked], n: int) -> list[int]:
    """The indices of the ``n`` branches of highest cumulative log-probability, best first, lower index first among equals. One
    that ended in an error comes after all that did not."""

    def rank(index: int) -> tuple[bool, float]:
        branch = branches[index]
        return branch.finish_reason == "error", -(branch.cumulative_logprob or 0.0)

    return sorted(range(len(branches)), key=rank)[:n]


class Logprob(msgspec.Struct, frozen=True):
    """One token's log-probability, its rank in the vocabulary (1 = most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One generated sequence. ``stop_reason`` is the stop string or stop token id that ended it, or
    "repetition_detected", else None."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class RequestOutput(msgspec.Struct, kw_only=True):
    """A request's prompt, its n outputs and its metrics."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0


class BeamSearchSequence(msgspec.Struct, kw_only=True):
    """One returned beam. ``tokens`` and ``text`` begin with the prompt; ``logprobs`` are those of the output alone.
    ``score`` is ``cum_logprob`` over the output's length to the power of the length penalty."""

    tokens: list[int]
    text: str
    cum_logprob: float
    score: float
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class BeamSearchOutput(msgspec.Struct, kw_only=True):
    """The beams of one prompt, best first: fewer than were asked for if no more exist."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sequences: list[BeamSearchSequence]
    metrics: RequestMetrics | None = None
