"""One draw, written down plainly: each feature as its definition says, one float32 at a time, then ``ops.sample`` for one row.

Shares no code with octavo.sampling.
"""

import math
from collections import Counter
from typing import Any

import numpy as np

from octavo.sampling.sampler import INVALID_TOKEN, SampleRow


def shaped_logits(logits: np.ndarray, row: SampleRow, eos_token_ids: tuple[int, ...]) -> list[np.float32]:
    """The row's logits as temperature finds them."""
    params, values = row.params, [np.float32(v) for v in logits]
    minus_infinity = np.float32(-math.inf)
    history = [] if row.history is None else row.history.tolist()
    output = Counter(history[row.prompt_len :])
    for token in range(len(values)):
        value = values[token]
        if row.token_mask is not None and not _bit(row.token_mask, token):
            value = minus_infinity
        for banned in row.bad_words_token_ids:
            prefix = list(banned[:-1])
            if banned[-1] == token and history[len(history) - len(prefix) :] == prefix:
                value = minus_infinity
        if row.num_output_tokens < params.min_tokens and token in (*eos_token_ids, *(params.stop_token_ids or ())):
            value = minus_infinity
        value += np.float32((params.logit_bias or {}).get(token, 0.0))
        if token in history:
            penalty = np.float32(params.repetition_penalty)
            value = value / penalty if value > 0 else value * penalty
        if token in output:
            value -= np.float32(params.frequency_penalty) * np.float32(output[token])
            value -= np.float32(params.presence_penalty)
        values[token] = value
    return values


def _bit(mask: np.ndarray, index: int) -> bool:
    return index // 8 < len(mask) and bool(int(mask[index // 8]) >> (index % 8) & 1)


def expected_token(backend: Any, logits: np.ndarray, row: SampleRow, eos_token_ids: tuple[int, ...]) -> int:
    """The one right answer for this row alone."""
    raw = logits[row.logits_row]
    if np.isnan(raw).any() or np.isinf(raw.max()):
        return INVALID_TOKEN
    shaped = np.array([shaped_logits(raw, row, eos_token_ids)], np.float32)
    if shaped.max() == -np.inf:
        return INVALID_TOKEN
    params = row.params
    drawn = backend.ops.sample(
        shaped,
        temperature=np.array([params.temperature], np.float32),
        top_k=np.array([params.top_k], np.int32),
        top_p=np.array([params.top_p], np.float32),
        min_p=np.array([params.min_p], np.float32),
        seeds=np.array([row.seed], np.uint64),
        positions=np.array([row.position], np.int64),
    )
    return int(backend.to_host(drawn)[0])
