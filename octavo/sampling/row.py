"""``SampleRow``: one draw to make, and the ``Feature`` protocol by which a request's wishes change its row of logits.

Everything a draw depends on is in its row, which is why no draw depends on the batch around it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
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


class Feature(Protocol):
    """Something a request can ask for that changes logits before the draw."""

    def wanted(self, row: SampleRow) -> bool:
        """Whether this draw needs ``apply``. Cheap: asked for every row of every step."""
        ...

    def apply(self, logits: np.ndarray, row: SampleRow) -> None:
        """Change float32[V], the row's own copy of the logits, in place. Token ids outside the vocabulary are ignored."""
        ...


def ids_within(ids: tuple[int, ...] | list[int], vocab_size: int) -> np.ndarray:
    """Those of ``ids`` that are token ids of a vocabulary of this size, as int64[*]."""
    array = np.fromiter(ids, np.int64, len(ids))
    inside: np.ndarray = array[(array >= 0) & (array < vocab_size)]
    return inside


def history_of(row: SampleRow) -> np.ndarray:
    """The row's history, which its parameters need. Raises ValueError if the plan left it out."""
    if row.history is None:
        raise ValueError("these sampling parameters need the tokens before the draw, but the plan did not send them")
    return row.history
