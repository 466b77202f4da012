"""``token_mask``: only the tokens that the request and its grammar allow.

A draw takes it as it is, in words. Candidates of beams are found on the host: there it is added to the logits eight at a time
from a table of 256 rows, 0 where the bit is set, minus infinity where it is not.
"""

from collections.abc import Sequence

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


def allowed_tokens(masks: Sequence[np.ndarray | None], vocab_size: int) -> np.ndarray | None:
    """The masks of so many rows as ops take them, int32[len(masks), ceil(vocab_size / 32)]; None where there are none. What is
    beyond a mask's end is not allowed."""
    if all(mask is None for mask in masks):
        return None
    words = np.full((len(masks), (vocab_size + 31) // 32), -1, "<i4")
    for allowed, mask in zip(words.view(np.uint8), masks, strict=True):
        if mask is not None:
            given = mask[: len(allowed)]
            allowed[: len(given)] = given
            allowed[len(given) :] = 0
    return words
