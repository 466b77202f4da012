"""Speculative drafts: every position is drawn as it would be without them, and drafts are kept while they agree.

For greedy and for random draws alike the output is bit for bit what decoding token by token gives, because a draw depends
only on its own row of logits, its seed and its position. (Leviathan et al. 2023 accept more random drafts at the price of
other random numbers.)
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from octavo.sampling.row import SampleRow


def draft_rows(first: SampleRow, drafts: Sequence[int]) -> list[SampleRow]:
    """The k + 1 draws that verify k drafts. ``first`` is the draw before the first draft was known; the others follow on the
    next rows of logits, one position and one token of history further each."""
    history = None if first.history is None else np.concatenate([first.history, np.array(drafts, np.int32)])
    return [
        replace(
            first,
            logits_row=first.logits_row + i,
            position=first.position + i,
            num_output_tokens=first.num_output_tokens + i,
            history=None if history is None else history[: len(history) - len(drafts) + i],
        )
        for i in range(len(drafts) + 1)
    ]


def num_accepted(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """How many of the k + 1 draws count: up to and including the first that differs from its draft."""
    for i, draft in enumerate(drafts):
        if drawn[i] != draft:
            return i + 1
    return len(drafts) + 1
