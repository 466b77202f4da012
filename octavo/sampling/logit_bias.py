"""``logit_bias``: a number added to the logits of chosen tokens."""

import numpy as np

from octavo.sampling.row import SampleRow


class LogitBias:
    def wanted(self, row: SampleRow) -> bool:
        return bool(row.params.logit_bias)

    def apply(self, logits: np.ndarray, row: SampleRow) -> None:
        for token_id, bias in (row.params.logit_bias or {}).items():
            if 0 <= token_id < len(logits):
                logits[token_id] += np.float32(bias)
