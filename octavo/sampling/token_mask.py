"""``token_mask``: only the tokens that a grammar allows.

Added to the logits eight at a time from a table of 256 rows: 0 where the bit is set, minus infinity where it is not.
"""

import numpy as np

from octavo.sampling.row import SampleRow

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED = np.where(_BITS == 1, np.float32(-0.0), np.float32(-np.inf))  # x + -0.0 is x, for every x
_ADDED.flags.writeable = False


class TokenMask:
    def wanted(self, row: SampleRow) -> bool:
        return row.token_mask is not None

    def apply(self, logits: np.ndarray, row: SampleRow) -> None:
        mask = np.asarray(row.token_mask)[: (len(logits) + 7) // 8]
        masked = min(len(mask) * 8, len(logits))
        logits[:masked] += _ADDED.take(mask, axis=0).reshape(-1)[:masked]
        logits[masked:] = -np.inf
