"""``SampleRow``: one draw to make. Everything it depends on is in its row, so that no draw depends on the batch around it."""

import msgspec
import numpy as np

from octavo.sampling_params import SamplingParams


class SampleRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One draw. Several may be made from the same row of logits, each with its own seed (n branches of one prompt).

    ``position`` is the index in the sequence of the token about to be drawn; with ``seed`` (uint64) it is all the randomness
    there is. ``history``, int32[*], holds every token before the draw, ``prompt_len`` of them the prompt's; it may be None
    where ``params.needs_history`` is false. ``num_logprobs`` None: no log-probabilities; k: the drawn token's and the k
    likeliest. ``token_mask``, uint8[*], has a bit for each token id, lowest first: 0 makes the token impossible.
    """

    logits_row: int
    params: SamplingParams
    seed: int
    position: int
    num_output_tokens: int = 0
    history: np.ndarray | None = None
    prompt_len: int = 0
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    num_logprobs: int | None = None
    token_mask: np.ndarray | None = None


def history_of(row: SampleRow) -> np.ndarray:
    """The row's history, which its parameters need. Raises ValueError if the plan left it out."""
    if row.history is None:
        raise ValueError("these sampling parameters need the tokens before the draw, but the plan did not send them")
    return row.history
