"""``SampleRow``: everything that one draw depends on. ``Filter``: what a sampling feature implements."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One draw, from row ``logits_row`` of the logits.

    ``position`` is the index that the drawn token will have in its sequence; with ``seed`` (uint64) it keys the random number.
    ``history`` holds every token before it, prompt included, where the parameters need it.
    """

    logits_row: int
    params: SamplingParams
    seed: int
    position: int
    num_output_tokens: int
    prompt_len: int
    history: list[int] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    num_logprobs: int | None = None


class Filter(Protocol):
    """One feature that changes logits before the draw. A feature that no row wants costs one look at each row."""

    def wanted(self, row: SampleRow) -> bool: ...

    def apply(self, row: SampleRow, logits: np.ndarray) -> None:
        """Change ``logits`` float32[V] of this row in place. Looks at nothing but this row."""
        ...
