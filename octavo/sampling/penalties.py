"""``repetition_penalty`` (Keskar et al. 2019, over prompt and output), ``frequency_penalty`` and ``presence_penalty``
(OpenAI's definitions, over the output): ``Ops.adjust`` says what they do.
"""

from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Array, Backend, Penalties
from octavo.sampling.row import SampleRow, history_of

_NO_TOKENS = np.zeros(0, np.int32)


def penalties_of(backend: Backend, rows: Sequence[SampleRow]) -> Penalties | None:
    """What these rows of logits lose; None: nothing."""
    params = [row.params for row in rows]
    if not any(p.has_penalties for p in params):
        return None
    tokens = [history_of(row) if row.params.has_penalties else _NO_TOKENS for row in rows]
    starts = np.cumsum([0, *map(len, tokens)])
    prompts = [min(row.prompt_len, len(own)) for row, own in zip(rows, tokens, strict=True)]
    return Penalties(
        repetition=_floats(backend, [p.repetition_penalty for p in params]),
        frequency=_floats(backend, [p.frequency_penalty for p in params]),
        presence=_floats(backend, [p.presence_penalty for p in params]),
        tokens=backend.tensor(np.concatenate(tokens)),
        starts=backend.tensor(starts.astype(np.int32)),
        outputs=backend.tensor((starts[:-1] + prompts).astype(np.int32)),
    )


def _floats(backend: Backend, values: list[float]) -> Array:
    return backend.tensor(np.array(values, np.float32))
