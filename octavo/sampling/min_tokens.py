"""``min_tokens``: nothing that would end the output can be drawn before it has that many tokens."""

import numpy as np

from octavo.sampling.row import SampleRow, ids_within


class MinTokens:
    """``eos_token_ids`` are the model's own ends; a request's ``stop_token_ids`` come on top."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = eos_token_ids

    def wanted(self, row: SampleRow) -> bool:
        return row.num_output_tokens < row.params.min_tokens

    def apply(self, logits: np.ndarray, row: SampleRow) -> None:
        ends = (*self._eos_token_ids, *(row.params.stop_token_ids or ()))
        logits[ids_within(ends, len(logits))] = -np.inf
