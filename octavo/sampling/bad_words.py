"""``bad_words``: a token that would complete a banned sequence is impossible."""

import numpy as np

from octavo.sampling.sample_row import SampleRow


class BadWords:
    def wanted(self, row: SampleRow) -> bool:
        return bool(row.bad_words_token_ids)

    def apply(self, row: SampleRow, logits: np.ndarray) -> None:
        # A word that begins in the prompt is the prompt's own doing: only what was generated counts, as in vLLM.
        generated = (row.history or [])[row.prompt_len :]
        for word in row.bad_words_token_ids:
            begun = len(word) - 1
            if begun <= len(generated) and tuple(generated[len(generated) - begun :]) == word[:-1]:
                logits[word[-1]] = -np.inf
