"""The two messages of a step: ``SchedulerOutput`` says everything the worker needs, ``ModelOutput`` everything it produced.

Both are values: built once, never changed, equal in meaning on every worker that receives them.
"""

from typing import Any

import msgspec

from octavo.sampling_params import SamplingParams

PENDING = -1
"""In ``ScheduledSequence.token_ids``: the row's last sampled token, which only the device knows yet."""


class ScheduledSequence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tokens ``[start, start + len(token_ids))`` of one sequence, to be computed in this step.

    ``row`` indexes the worker's ``last_token`` and is unique among running sequences. The last ``num_drafts`` of
    ``token_ids`` are guesses to verify. ``sample_rows`` are the rows that receive one draw each from the logits of the last
    token (several when n branches part here); empty when the prompt goes on in a later step. ``seeds`` has one seed for each.
    ``history`` (int32[*], all tokens before the draw) and ``prompt_len`` are there only for parameters that need them.
    ``num_prompt_logprobs`` asks for the log-probabilities of ``prompt_targets``, the tokens that follow the computed ones.
    ``num_candidates``, of a beam, asks for that many likely next tokens in the place of a draw. ``token_mask``, uint8[*] with a
    bit for each token id, lowest first, is what the request and its grammar allow to be drawn.
    """

    seq_id: int
    row: int
    start: int
    token_ids: list[int]
    prompt_len: int
    num_drafts: int = 0
    sample_rows: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    params: SamplingParams | None = None
    num_logprobs: int | None = None
    history: Any = None  # np.ndarray, int32
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    num_prompt_logprobs: int | None = None
    prompt_targets: list[int] | None = None
    num_candidates: int = 0
    token_mask: Any = None  # np.ndarray, uint8


class BlockCopies(msgspec.Struct, frozen=True):
    """Block copies that come before the forward, executed in this order. Each pair is (source block, target block)."""

    swap_out: list[tuple[int, int]]
    """device -> host"""
    swap_in: list[tuple[int, int]]
    """host -> device"""
    copy: list[tuple[int, int]]
    """device -> device: copy-on-write"""

    def __bool__(self) -> bool:
        return bool(self.swap_out or self.swap_in or self.copy)


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One step: what to copy, what to compute. ``block_tables`` is int32[len(sequences), width], row i for sequence i."""

    step_id: int
    sequences: list[ScheduledSequence]
    block_tables: Any  # np.ndarray, int32
    copies: BlockCopies

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.sequences)


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probabilities at one position: of the token that stands there, its rank (1 = most likely), and of the likeliest, or
    of those that the request names, in its order."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """What may follow one beam: tokens and their log-probabilities after all of the request's features, likeliest first, lower
    id first among equals; nothing impossible is among them. ``details`` run beside them where the plan asked for
    log-probabilities. Not ``sound``: the logits hold NaN or infinity, and nothing can be said."""

    token_ids: list[int]
    logprobs: list[float]
    details: list[TokenLogprobs] | None = None
    sound: bool = True


class StepTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds a worker spent on one step."""

    copies: float = 0.0
    forward: float = 0.0
    sampling: float = 0.0


class ModelOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a step, aligned with ``SchedulerOutput.sequences``.

    ``token_ids[i]`` has one token for each of sequence i's ``sample_rows``; with drafts, the accepted drafts and one token
    more; of a beam it is empty and ``candidates[i]`` is set. ``logprobs[i]`` runs beside the tokens where the plan asked.
    ``prompt_logprobs[i]`` has one entry for each prompt target. ``errors[i]`` says why sequence i could not be computed; the
    rest is then empty for it, and its request ends.
    """

    step_id: int
    token_ids: list[list[int]]
    logprobs: list[list[TokenLogprobs] | None] | None = None
    prompt_logprobs: list[list[TokenLogprobs] | None] | None = None
    candidates: list[Candidates | None] | None = None
    timings: StepTimings = StepTimings()
    errors: list[str | None] | None = None
