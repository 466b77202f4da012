"""When a sequence ends: end-of-sequence token, stop token, length. Stop strings belong to the API, which has the text."""

from octavo.engine.sequence import Sequence, SequenceGroup
from octavo.outputs import FinishReason


def finish_reason(
    group: SequenceGroup, seq: Sequence, num_tokens: int, eos_token_ids: frozenset[int]
) -> tuple[FinishReason | None, int | None]:
    """Whether ``seq`` ends with its token number ``num_tokens`` (prompt included), and the stop token if one was the cause.

    A token below zero means that the worker could not draw one from this sequence's logits.
    """
    params = group.params
    token = seq.token_ids[num_tokens - 1]
    if token < 0:
        return "error", None
    if num_tokens - seq.prompt_len >= params.min_tokens:
        if not params.ignore_eos and token in eos_token_ids:
            return "stop", None
        if params.stop_token_ids and token in params.stop_token_ids:
            return "stop", token
    if num_tokens >= group.max_tokens_total:
        return "length", None
    return None, None
