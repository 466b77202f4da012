"""What the engine tells clients: new tokens of a branch, and a request's metrics when it ends. Pure functions of a group."""

from octavo.engine.beam import BeamSearchState, Finished
from octavo.engine.sequence import Sequence, SequenceGroup
from octavo.outputs import FinishReason, RequestMetrics, TokenDelta
from octavo.step import TokenLogprobs


def deltas_of(
    group: SequenceGroup,
    seq: Sequence,
    tokens: list[int],
    logprobs: list[TokenLogprobs] | None,
    reason: FinishReason | None,
    stop_reason: int | str | None,
    metrics: RequestMetrics | None,
) -> list[TokenDelta]:
    """One delta for each branch that ``seq`` stands for: its own, or all that were not aborted when they are equal. What is
    said once for a request is on the first (prompt log-probabilities) or the last (metrics)."""
    mirrored = group.num_branches > group.num_sequences
    branches = [b for b in range(group.num_branches) if b not in group.silenced] if mirrored else [seq.branch]
    return [
        TokenDelta(
            request_id=group.request.id,
            branch=branch,
            token_ids=tokens,
            logprobs=logprobs,
            prompt_logprobs=group.prompt_logprobs if branch == branches[0] else None,
            cumulative_logprob=seq.cumulative_logprob,
            finish_reason=reason,
            stop_reason=stop_reason,
            num_cached_tokens=group.num_cached_tokens,
            metrics=metrics if branch == branches[-1] else None,
        )
        for branch in branches
    ]


def beam_deltas(group: SequenceGroup, search: BeamSearchState, metrics: RequestMetrics | None) -> list[TokenDelta]:
    """After a round of a search: its running beams if they are to be told, or at its end one delta for each returned beam.
    Should fewer beams exist than were asked for, the others are empty; without any the request has failed."""
    if not search.done:
        if not search.params.report or 0 in group.silenced:
            return []
        told = TokenDelta(
            request_id=group.request.id,
            branch=0,
            token_ids=[],
            prompt_logprobs=group.prompt_logprobs,
            num_cached_tokens=group.num_cached_tokens,
            beams=search.report(),
        )
        group.prompt_logprobs = None
        return [told]
    branches = [b for b in range(group.num_branches) if b not in group.silenced]
    return [
        _returned_beam(
            group,
            branch,
            search.finished[branch] if branch < len(search.finished) else None,
            prompt_logprobs=group.prompt_logprobs if branch == branches[0] else None,
            metrics=metrics if branch == branches[-1] else None,
        )
        for branch in branches
    ]


def _returned_beam(
    group: SequenceGroup,
    branch: int,
    beam: Finished | None,
    *,
    prompt_logprobs: list[TokenLogprobs] | None,
    metrics: RequestMetrics | None,
) -> TokenDelta:
    path = beam.hypothesis.path() if beam else []
    missing: FinishReason = "stop" if group.search is not None and group.search.finished else "error"
    return TokenDelta(
        request_id=group.request.id,
        branch=branch,
        token_ids=[node.token_id for node in path],
        logprobs=[node.detail for node in path if node.detail is not None] if group.params.logprobs is not None else None,
        prompt_logprobs=prompt_logprobs,
        cumulative_logprob=beam.hypothesis.total if beam else None,
        finish_reason=beam.reason if beam else missing,
        stop_reason=beam.stop_reason if beam else None,
        num_cached_tokens=group.num_cached_tokens,
        metrics=metrics,
    )


def open_branches(group: SequenceGroup) -> list[int]:
    """The branches whose end the client has not been told and has not asked for."""
    each_its_own = group.forked and group.search is None and group.num_branches == group.num_sequences
    branches = [seq.branch for seq in group.live] if each_its_own else range(group.num_branches)
    return [branch for branch in branches if branch not in group.silenced]


def error_deltas(group: SequenceGroup, branches: list[int], error: str) -> list[TokenDelta]:
    """The last delta of each of ``branches`` of a request that has failed; ``error`` is for the log."""
    return [
        TokenDelta(
            request_id=group.request.id,
            branch=branch,
            token_ids=[],
            finish_reason="error",
            num_cached_tokens=group.num_cached_tokens,
            metrics=request_metrics(group) if branch == branches[-1] else None,
            error=error,
        )
        for branch in branches
    ]


def request_metrics(group: SequenceGroup) -> RequestMetrics:
    """Times and costs of a request, as far as they are known."""
    arrival, times, usage = group.request.arrival_time, group.timings, group.usage
    longest = group.search.num_rounds if group.search else max(seq.num_output_tokens for seq in group.sequences)
    return RequestMetrics(
        arrival_time=arrival,
        queue_time=times.first_scheduled - arrival if times.first_scheduled else None,
        first_token_time=times.first_token - arrival if times.first_token else None,
        finished_time=times.last_token - arrival if times.last_token else None,
        mean_itl=(times.last_token - times.first_token) / (longest - 1) if longest > 1 else None,
        num_preemptions=group.num_preemptions,
        num_swaps=group.num_swaps,
        num_cached_tokens=group.num_cached_tokens,
        num_generated_tokens=group.num_generated,
        blocks_allocated=usage.allocated,
        blocks_shared=usage.shared,
        copy_on_writes=usage.copy_on_writes,
    )
