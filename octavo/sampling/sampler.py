"""Logits to tokens, for a whole step at once.

Owns the order of the features: allowed ids, bad words, minimum length, bias, penalties, then temperature, top-k, top-p and
min-p in ``Ops.sample``. The row contract holds here too: a draw depends on its own row alone, whatever the batch.
"""

import numpy as np

from octavo.backends.base import Array, Backend
from octavo.sampling.allowed_tokens import AllowedTokens
from octavo.sampling.bad_words import BadWords
from octavo.sampling.logit_bias import LogitBias
from octavo.sampling.min_tokens import MinTokens
from octavo.sampling.penalties import Penalties
from octavo.sampling.sample_row import Filter, SampleRow
from octavo.step import TokenLogprobs

__all__ = ["NO_TOKEN", "SampleRow", "Sampler"]

NO_TOKEN = -1
"""Drawn where a row has no possible token: every logit is NaN or minus infinity, by computation or by the request's filters."""


class Sampler:
    """``eos_token_ids`` are the model's own end-of-sequence tokens."""

    def __init__(self, backend: Backend, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._filters: tuple[Filter, ...] = (AllowedTokens(), BadWords(), MinTokens(eos_token_ids), LogitBias(), Penalties())

    def __call__(self, logits: Array, rows: list[SampleRow]) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Draw one token for each of ``rows`` from float32[R, V] logits, which stay as they are.

        Returns the tokens (``NO_TOKEN`` where none is possible) and, for rows that want them, log-probabilities of the raw
        logits, before any filter.
        """
        changes = [(i, f) for i, row in enumerate(rows) for f in self._filters if f.wanted(row)]
        one_to_one = len(rows) == len(logits) and all(row.logits_row == i for i, row in enumerate(rows))
        work = logits if one_to_one and not changes else self._gather(logits, rows)
        for i, feature in changes:
            feature.apply(rows[i], work[i])
        tokens = self._draw(work, rows)
        return tokens, self._logprobs(logits, rows, tokens)

    def _gather(self, logits: Array, rows: list[SampleRow]) -> Array:
        indices = np.array([row.logits_row for row in rows], np.int32)
        return self._backend.ops.gather_rows(logits, self._backend.tensor(indices))

    def _draw(self, work: Array, rows: list[SampleRow]) -> list[int]:
        ops, params = self._backend.ops, [row.params for row in rows]
        if all(p.greedy for p in params):
            drawn = ops.argmax(work)
        else:
            drawn = ops.sample(
                work,
                temperature=np.array([p.temperature for p in params], np.float32),
                top_k=np.array([p.top_k for p in params], np.int32),
                top_p=np.array([p.top_p for p in params], np.float32),
                min_p=np.array([p.min_p for p in params], np.float32),
                seeds=np.array([row.seed for row in rows], np.uint64),
                positions=np.array([row.position for row in rows], np.int64),
            )
        tokens = self._backend.to_host(drawn)
        possible = np.isfinite(work[np.arange(len(rows)), tokens])
        result: list[int] = np.where(possible, tokens, NO_TOKEN).tolist()
        return result

    def _logprobs(self, logits: Array, rows: list[SampleRow], tokens: list[int]) -> list[TokenLogprobs | None]:
        result: list[TokenLogprobs | None] = [None] * len(rows)
        wanting = [i for i, row in enumerate(rows) if row.num_logprobs is not None and tokens[i] != NO_TOKEN]
        if wanting:
            raw = self._gather(logits, [rows[i] for i in wanting])
            counts = [rows[i].num_logprobs or 0 for i in wanting]
            for i, entry in zip(wanting, self._describe(raw, [tokens[i] for i in wanting], counts), strict=True):
                result[i] = entry
        return result

    def prompt_logprobs(self, logits: Array, targets: list[int], num: int) -> list[TokenLogprobs]:
        """Row i of ``logits`` float32[R, V] predicted ``targets[i]``: how likely was it, and what was likeliest?"""
        return self._describe(logits, targets, [num] * len(targets))

    def _describe(self, logits: Array, chosen: list[int], counts: list[int]) -> list[TokenLogprobs]:
        backend = self._backend
        most = min(max(1, *counts), self._vocab_size)
        found = backend.ops.top_logprobs(logits, backend.tensor(np.array(chosen, np.int32)), most)
        logprobs, ranks, ids, values = (backend.to_host(array).tolist() for array in found)
        return [
            TokenLogprobs(chosen[i], logprobs[i], ranks[i], ids[i][: counts[i]], values[i][: counts[i]])
            for i in range(len(chosen))
        ]
