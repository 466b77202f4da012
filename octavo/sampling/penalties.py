"""``repetition_penalty`` (Keskar et al. 2019, over prompt and output), ``frequency_penalty`` and ``presence_penalty``
(OpenAI's definitions, over the output).

logit = (logit / r if logit > 0 else logit * r) if the token occurred at all; then minus f times its count in the output and
minus p if that count is not zero. All in float32.
"""

import numpy as np

from octavo.sampling.row import SampleRow, history_of, ids_within


class Penalties:
    def wanted(self, row: SampleRow) -> bool:
        params = row.params
        return bool(params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty)

    def apply(self, logits: np.ndarray, row: SampleRow) -> None:
        params, history = row.params, history_of(row)
        # Repeated ids in an index are harmless below: each assigns the same value, computed from the logit read before.
        if params.repetition_penalty != 1.0:
            seen, penalty = ids_within(history, len(logits)), np.float32(params.repetition_penalty)
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if params.frequency_penalty or params.presence_penalty:
            drawn = ids_within(history[row.prompt_len :], len(logits))
            counts = np.bincount(drawn)[drawn].astype(np.float32) if len(drawn) else np.empty(0, np.float32)
            values = logits[drawn] - np.float32(params.frequency_penalty) * counts
            logits[drawn] = values - np.float32(params.presence_penalty)
