"""``allowed_token_ids``: everything else is impossible."""

import numpy as np

from octavo.sampling.sample_row import SampleRow


class AllowedTokens:
    def wanted(self, row: SampleRow) -> bool:
        return bool(row.params.allowed_token_ids)

    def apply(self, row: SampleRow, logits: np.ndarray) -> None:
        allowed = np.array(row.params.allowed_token_ids, np.int64)
        kept = logits[allowed]
        logits.fill(-np.inf)
        logits[allowed] = kept
