"""``bad_words``: the last token of a banned sequence becomes impossible where the tokens before it already stand."""

import numpy as np

from octavo.sampling.row import SampleRow, history_of


class BadWords:
    def wanted(self, row: SampleRow) -> bool:
        return bool(row.bad_words_token_ids)

    def apply(self, logits: np.ndarray, row: SampleRow) -> None:
        for sequence in row.bad_words_token_ids:
            last = sequence[-1] if sequence else -1
            if 0 <= last < len(logits) and _ends_with(row, sequence[:-1]):
                logits[last] = -np.inf


def _ends_with(row: SampleRow, tokens: tuple[int, ...]) -> bool:
    return not tokens or tuple(history_of(row)[-len(tokens) :].tolist()) == tokens
