"""``min_tokens``: until then, nothing that would end the sequence can be drawn."""

import numpy as np

from octavo.sampling.sample_row import SampleRow


class MinTokens:
    """``eos_token_ids`` are the model's own end-of-sequence tokens."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = eos_token_ids

    def wanted(self, row: SampleRow) -> bool:
        return row.num_output_tokens < row.params.min_tokens

    def apply(self, row: SampleRow, logits: np.ndarray) -> None:
        endings = [*(row.params.stop_token_ids or ()), *(() if row.params.ignore_eos else self._eos_token_ids)]
        logits[[token for token in endings if token < len(logits)]] = -np.inf
