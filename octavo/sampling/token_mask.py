"""Which tokens a draw may give: those of ``token_mask``, which the request and its grammar allow, without those that
``bad_words`` and ``min_tokens`` rule out.
"""

from collections.abc import Sequence

import numpy as np

from octavo.sampling.bad_words import banned
from octavo.sampling.min_tokens import ends_too_early
from octavo.sampling.row import SampleRow


def impossible_tokens(row: SampleRow, eos_token_ids: tuple[int, ...]) -> list[int]:
    """The tokens that cannot be drawn, beside those that ``row.token_mask`` rules out."""
    return [*banned(row), *ends_too_early(row, eos_token_ids)]


def allowed_tokens(
    masks: Sequence[np.ndarray | None], impossible: Sequence[Sequence[int]], vocab_size: int
) -> np.ndarray | None:
    """What the masks allow, without the ``impossible`` ids of each row, as ops take it: int32[rows, ceil(vocab_size / 32)];
    None where all rows may have every token. What is beyond a mask's end is not allowed. Ids outside the vocabulary are
    ignored."""
    if all(mask is None for mask in masks) and not any(impossible):
        return None
    words = np.full((len(masks), (vocab_size + 31) // 32), -1, "<i4")
    for allowed, mask, ids in zip(words.view(np.uint8), masks, impossible, strict=True):
        if mask is not None:
            given = mask[: len(allowed)]
            allowed[: len(given)] = given
            allowed[len(given) :] = 0
        for token in ids:
            if 0 <= token < vocab_size:
                allowed[token // 8] &= ~(1 << token % 8) & 0xFF
    return words
