"""``Sampler``: logits -> tokens, for any mix of requests in one call.

Owns which ops a step's wishes need, so that a feature nobody wants costs nothing. Knows nothing of sequences. The order is that
of vLLM: what is impossible, then what is shifted, then what is damped; temperature and the rest follow. The invariant: a draw
depends on its own ``SampleRow`` and its own row of logits, never on the rest of the batch, bit for bit. Log-probabilities come
from the model's logits as they were before any feature. A row that cannot be drawn from gives ``INVALID_TOKEN`` and harms no
other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.backends.base import Array, Backend, LogitBias, Penalties
from octavo.sampling.candidates import CandidateFinder, CandidateRow
from octavo.sampling.logit_bias import bias_of
from octavo.sampling.penalties import penalties_of
from octavo.sampling.row import SampleRow
from octavo.sampling.token_mask import allowed_tokens, impossible_tokens
from octavo.step import Candidates, TokenLogprobs

__all__ = ["INVALID_TOKEN", "CandidateRow", "SampleRow", "Sampler"]

INVALID_TOKEN = -1
"""Instead of a token, as ops say it: the row's logits hold NaN or infinity, or the request's own parameters leave it no token
at all. The sequence should end with finish reason "error"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws to make in one call: ``Ops.sample`` says what the arrays are, one entry for each row."""

    rows: Sequence[SampleRow]
    logits_rows: list[int]
    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    seeds: np.ndarray
    positions: np.ndarray
    allowed: Array | None
    bias: LogitBias | None
    penalties: Penalties | None

    @property
    def are_argmax(self) -> bool:
        plain = self.allowed is None and self.bias is None and self.penalties is None
        return plain and all(row.params.greedy for row in self.rows)


class Sampler:
    """``eos_token_ids`` are the model's, for ``min_tokens``."""

    def __init__(self, backend: Backend, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._candidates = CandidateFinder(backend, vocab_size, eos_token_ids)

    def prepare(self, rows: Sequence[SampleRow]) -> Draws:
        """What can be done before the logits are there. Raises ``ValueError`` for a row that lacks what its parameters need."""
        params = [row.params for row in rows]
        return Draws(
            rows=rows,
            logits_rows=[row.logits_row for row in rows],
            temperature=np.array([p.temperature for p in params], np.float32),
            top_k=np.array([p.top_k for p in params], np.int32),
            top_p=np.array([p.top_p for p in params], np.float32),
            min_p=np.array([p.min_p for p in params], np.float32),
            seeds=np.array([row.seed for row in rows], np.uint64),
            positions=np.array([row.position for row in rows], np.int64),
            allowed=self.allowed([row.token_mask for row in rows], [self.impossible(row) for row in rows]),
            bias=bias_of(self._backend, rows),
            penalties=penalties_of(self._backend, rows),
        )

    def __call__(self, logits: Array, draws: Draws) -> tuple[list[int], list[TokenLogprobs | None]]:
        """One token for each row, drawn from float32[R, V] ``logits``, and its log-probabilities where asked for."""
        tokens = self._draw(logits, draws) if draws.rows else []
        return tokens, self._logprobs(logits, draws.rows, tokens)

    def argmax(self, logits: Array) -> list[int]:
        """What every row of float32[R, V] gives under parameters that are ``plain_greedy``, without a ``SampleRow``."""
        best: list[int] = self._on_host(self._backend.ops.argmax(logits)).tolist()
        return best

    def impossible(self, row: SampleRow) -> list[int]:
        """``impossible_tokens`` of this model."""
        return impossible_tokens(row, self._eos_token_ids)

    def allowed(self, masks: Sequence[np.ndarray | None], impossible: Sequence[Sequence[int]]) -> Array | None:
        """What may be drawn from so many rows, as ops take it; None where that is everything."""
        words = allowed_tokens(masks, impossible, self._vocab_size)
        return None if words is None else self._backend.tensor(words)

    def candidates(self, logits: Array, wanted: Sequence[CandidateRow]) -> list[Candidates]:
        """What may follow each beam, instead of a draw."""
        return self._candidates(logits, wanted)

    def prompt_logprobs(self, logits: Array, targets: Sequence[int], num: int) -> list[TokenLogprobs]:
        """For row i of float32[R, V] the log-probability and rank of ``targets[i]``, and the ``num`` likeliest tokens.

        Rows that hold NaN or infinity give log-probability -inf and no likeliest tokens.
        """
        sound = self._sound_rows(logits)
        found = [TokenLogprobs(target, -np.inf, self._vocab_size, [], []) for target in targets]
        good = [i for i in range(len(targets)) if sound[i]]
        for i, entry in zip(good, self._top(logits, good, [targets[i] for i in good], num), strict=True):
            found[i] = entry
        return found

    def _sound_rows(self, logits: Array) -> list[bool]:
        """Rows from which a token can be drawn."""
        return [token >= 0 for token in self.argmax(logits)]

    def _draw(self, logits: Array, draws: Draws) -> list[int]:
        if draws.are_argmax:
            # Branches that share a row of logits share its one argmax.
            best = self.argmax(logits)
            return [best[row] for row in draws.logits_rows]
        drawn = self._backend.ops.sample(
            self._select(logits, draws.logits_rows),
            temperature=draws.temperature,
            top_k=draws.top_k,
            top_p=draws.top_p,
            min_p=draws.min_p,
            seeds=draws.seeds,
            positions=draws.positions,
            allowed=draws.allowed,
            bias=draws.bias,
            penalties=draws.penalties,
        )
        tokens: list[int] = self._on_host(drawn).tolist()
        return tokens

    def _logprobs(self, logits: Array, rows: Sequence[SampleRow], tokens: list[int]) -> list[TokenLogprobs | None]:
        found: list[TokenLogprobs | None] = [None] * len(rows)
        asked = [i for i, row in enumerate(rows) if row.num_logprobs is not None and tokens[i] != INVALID_TOKEN]
        if not asked:
            return found
        most = max(1 if rows[i].params.logprob_token_ids else rows[i].num_logprobs or 0 for i in asked)
        entries = self._top(logits, [rows[i].logits_row for i in asked], [tokens[i] for i in asked], most)
        for i, entry in zip(asked, entries, strict=True):
            num = rows[i].num_logprobs or 0
            if (named := rows[i].params.logprob_token_ids) is not None:
                top = self._named(logits, rows[i].logits_row, entry, named)
            else:
                top = entry.top_ids[:num], entry.top_logprobs[:num]
            found[i] = TokenLogprobs(entry.token_id, entry.logprob, entry.rank, *top)
        return found

    def _named(self, logits: Array, index: int, entry: TokenLogprobs, named: Sequence[int]) -> tuple[list[int], list[float]]:
        """The log-probabilities of these tokens, from that of the likeliest and their distance to it."""
        ids = [token for token in named if token < self._vocab_size]
        values = self._on_host(self._gather(logits, [index]))[0].astype(np.float64)
        shifted = values[ids] - values[entry.top_ids[0]] + entry.top_logprobs[0]
        return ids, np.where(np.isnan(shifted), -np.inf, shifted).astype(np.float32).tolist()

    def _top(self, logits: Array, indices: list[int], chosen: list[int], num: int) -> list[TokenLogprobs]:
        if not indices:
            return []
        num = min(num, logits.shape[1])
        targets = self._backend.tensor(np.array(chosen, np.int32))
        answers = self._backend.ops.top_logprobs(self._select(logits, indices), targets, num)
        logprobs, ranks, ids, values = (self._on_host(answer).tolist() for answer in answers)
        return [TokenLogprobs(*entry) for entry in zip(chosen, logprobs, ranks, ids, values, strict=True)]

    def _select(self, logits: Array, indices: list[int]) -> Array:
        """These rows, to be read only: all of them in order are the logits themselves."""
        return logits if indices == list(range(len(logits))) else self._gather(logits, indices)

    def _gather(self, logits: Array, indices: list[int]) -> Array:
        return self._backend.ops.gather_rows(logits, self._backend.tensor(np.array(indices, np.int32)))

    def _on_host(self, array: Array) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else self._backend.to_host(array)
