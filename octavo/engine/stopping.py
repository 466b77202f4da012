"""When a sequence ends: end-of-sequence token, stop token, length, repetition. Stop strings belong to the API, which has the
text."""

from octavo.engine.sequence import Sequence, SequenceGroup
from octavo.outputs import FinishReason
from octavo.sampling_params import SamplingParams


def finish_reason(
    group: SequenceGroup, seq: Sequence, num_tokens: int, eos_token_ids: frozenset[int]
) -> tuple[FinishReason | None, int | str | None]:
    """Whether ``seq`` ends with its token number ``num_tokens`` (prompt included), and the stop token if one was the cause.
    Asked once for each token, in order.

    A token below zero means that the worker could not draw one from this sequence's logits: an error, unless the sequence's
    grammar is satisfied and it was the request that left no token to end with.
    """
    params = group.params
    token = seq.token_ids[num_tokens - 1]
    if token < 0:
        satisfied = seq.grammar is not None and seq.grammar.is_satisfied
        return ("stop" if satisfied and not _may_end(params, num_tokens - seq.prompt_len - 1, eos_token_ids) else "error"), None
    repeats = seq.repetition is not None and seq.repetition.push(token)
    may_stop = num_tokens - seq.prompt_len >= params.min_tokens
    if may_stop:
        if not params.ignore_eos and token in eos_token_ids:
            return "stop", None
        if token in group.stop_token_ids:
            return "stop", token
    if num_tokens >= group.max_len:
        return "length", None
    return ("repetition", "repetition_detected") if repeats and may_stop else (None, None)


def ends_with_grammar(group: SequenceGroup, seq: Sequence, token: int, eos_token_ids: frozenset[int]) -> bool:
    """Take a token that did not end ``seq`` to its grammar. A complete text is ended by an end-of-sequence token in the next
    step; at once, True, where none may be drawn."""
    if seq.grammar is None or not seq.grammar.advance(token):
        return False
    return not _may_end(group.params, seq.num_output_tokens, eos_token_ids)


def _may_end(params: SamplingParams, num_output_tokens: int, eos_token_ids: frozenset[int]) -> bool:
    """Whether an end-of-sequence token may be drawn after that many tokens, as far as the request's parameters go."""
    if params.ignore_eos or num_output_tokens < params.min_tokens:
        return False
    return bool(eos_token_ids) and (params.allowed_token_ids is None or not eos_token_ids.isdisjoint(params.allowed_token_ids))
