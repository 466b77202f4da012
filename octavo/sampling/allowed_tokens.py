"""``allowed_token_ids``: every other token becomes impossible."""

import numpy as np

from octavo.sampling.row import SampleRow, ids_within


class AllowedTokens:
    def wanted(self, row: SampleRow) -> bool:
        return row.params.allowed_token_ids is not None

    def apply(self, logits: np.ndarray, row: SampleRow) -> None:
        allowed = ids_within(tuple(row.params.allowed_token_ids or ()), len(logits))
        kept = logits[allowed]
        logits.fill(-np.inf)
        logits[allowed] = kept
