"""``logit_bias``: a number added to the logits of some tokens."""

import numpy as np

from octavo.sampling.sample_row import SampleRow


class LogitBias:
    def wanted(self, row: SampleRow) -> bool:
        return bool(row.params.logit_bias)

    def apply(self, row: SampleRow, logits: np.ndarray) -> None:
        bias = row.params.logit_bias or {}
        logits[np.fromiter(bias.keys(), np.int64, len(bias))] += np.fromiter(bias.values(), np.float32, len(bias))
