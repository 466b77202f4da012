"""``logit_bias``: a number added to the logits of chosen tokens."""

from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Backend, LogitBias
from octavo.sampling.row import SampleRow


def bias_of(backend: Backend, rows: Sequence[SampleRow]) -> LogitBias | None:
    """What these rows of logits gain; None: nothing."""
    given = [row.params.logit_bias or {} for row in rows]
    if not any(given):
        return None
    return LogitBias(
        tokens=backend.tensor(np.array([token for bias in given for token in bias], np.int32)),
        values=backend.tensor(np.array([value for bias in given for value in bias.values()], np.float32)),
        starts=backend.tensor(np.cumsum([0, *map(len, given)]).astype(np.int32)),
    )
