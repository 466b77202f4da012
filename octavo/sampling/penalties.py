"""Repetition, frequency and presence penalties over the tokens so far.

Repetition (Keskar et al. 2019, section 4.1) looks at prompt and output; a positive logit is divided by it, a negative one
multiplied. Frequency and presence (OpenAI's API) look at the output alone.
"""

import numpy as np

from octavo.sampling.sample_row import SampleRow


class Penalties:
    def wanted(self, row: SampleRow) -> bool:
        params = row.params
        return bool(params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty)

    def apply(self, row: SampleRow, logits: np.ndarray) -> None:
        params = row.params
        history = np.array(row.history or (), np.int64)
        if params.repetition_penalty != 1.0:
            seen = np.unique(history)
            values, penalty = logits[seen], np.float32(params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if params.frequency_penalty or params.presence_penalty:
            tokens, counts = np.unique(history[row.prompt_len :], return_counts=True)
            logits[tokens] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
            logits[tokens] -= np.float32(params.presence_penalty)
