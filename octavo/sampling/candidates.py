"""Beams: logits -> the likeliest next tokens of each, after the request's wishes.

Here wishes change log-probabilities and not logits, as in ``transformers``: a penalty divides what is never positive. Rows
without wishes never leave the device. The invariant is the sampler's: a row's candidates depend on that row alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.backends.base import Array, Backend
from octavo.sampling.logit_bias import bias_of
from octavo.sampling.penalties import penalties_of
from octavo.sampling.row import SampleRow
from octavo.sampling.token_mask import allowed_tokens, impossible_tokens
from octavo.step import Candidates, TokenLogprobs


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """``num`` candidates from one row of logits. ``row`` says what shapes them; its seed means nothing here."""

    row: SampleRow
    num: int


class CandidateFinder:
    def __init__(self, backend: Backend, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._backend, self._vocab_size, self._eos_token_ids = backend, vocab_size, eos_token_ids

    def __call__(self, logits: Array, wanted: Sequence[CandidateRow]) -> list[Candidates]:
        """The candidates of each of ``wanted``, from float32[R, V] ``logits``."""
        if not wanted:
            return []
        chosen = self._rows(logits, [one.row.logits_row for one in wanted])
        best: list[int] = self._on_host(self._backend.ops.argmax(chosen)).tolist()
        sound = [i for i, token in enumerate(best) if token >= 0]
        found = [Candidates([], [], sound=False) for _ in wanted]
        plain = [i for i in sound if not self._is_shaped(wanted[i].row)]
        if plain:
            targets = self._backend.tensor(np.array([best[i] for i in plain], np.int32))
            some = [wanted[i] for i in plain]
            likeliest = self._likeliest(chosen if len(plain) == len(wanted) else self._rows(chosen, plain), targets, some)
            for i, candidates in zip(plain, likeliest, strict=True):
                found[i] = candidates
        shaped = sorted(set(sound) - set(plain))
        if shaped:
            own = self._on_host(self._rows(chosen, shaped))
            for i, values in zip(shaped, own, strict=True):
                found[i] = self._shaped(values, wanted[i])
        return found

    def _is_shaped(self, row: SampleRow) -> bool:
        params = row.params
        wishes = params.has_penalties or params.logit_bias or row.token_mask is not None or self._impossible(row)
        return _temperature(row) != 1.0 or bool(wishes)

    def _impossible(self, row: SampleRow) -> list[int]:
        """As the sampler's, but that end-of-sequence is a token like any other where it is ignored."""
        return impossible_tokens(row, () if row.params.ignore_eos else self._eos_token_ids)

    def _likeliest(self, logits: Array, targets: Array, wanted: Sequence[CandidateRow]) -> list[Candidates]:
        most = max(max(one.num, one.row.num_logprobs or 0) for one in wanted)
        answers = self._backend.ops.top_logprobs(logits, targets, min(most, logits.shape[1]))
        _, _, all_ids, all_values = (self._on_host(answer).tolist() for answer in answers)
        found: list[Candidates] = []
        for one, ids, values in zip(wanted, all_ids, all_values, strict=True):
            possible = sum(value > -np.inf for value in values[: one.num])
            details = None
            if one.row.num_logprobs is not None:
                top = ids[: one.row.num_logprobs], values[: one.row.num_logprobs]
                details = [TokenLogprobs(ids[k], values[k], k + 1, *top) for k in range(possible)]
            found.append(Candidates(ids[:possible], values[:possible], details))
        return found

    def _shaped(self, logits: np.ndarray, wanted: CandidateRow) -> Candidates:
        row, temperature = wanted.row, _temperature(wanted.row)
        raw = _log_softmax(logits)
        values = raw if temperature == 1.0 else _log_softmax(logits / np.float32(temperature))
        allowed = allowed_tokens([row.token_mask], [self._impossible(row)], self._vocab_size)
        adjusted = self._backend.ops.adjust(
            self._backend.tensor(values[None]),
            allowed=None if allowed is None else self._backend.tensor(allowed),
            bias=bias_of(self._backend, [row]),
            penalties=penalties_of(self._backend, [row]),
        )
        values = self._on_host(adjusted)[0]
        ids = [token for token in _top(values, wanted.num) if values[token] > -np.inf]
        details = None
        if row.num_logprobs is not None:
            likeliest = _top(raw, row.num_logprobs)
            top = likeliest, [float(raw[token]) for token in likeliest]
            details = [TokenLogprobs(token, float(raw[token]), _rank(raw, token), *top) for token in ids]
        return Candidates(ids, [float(values[token]) for token in ids], details)

    def _rows(self, logits: Array, indices: list[int]) -> Array:
        return self._backend.ops.gather_rows(logits, self._backend.tensor(np.array(indices, np.int32)))

    def _on_host(self, array: Array) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else self._backend.to_host(array)


def _temperature(row: SampleRow) -> float:
    """What logits are divided by: nothing is drawn, so that 0 asks for no more than 1 does."""
    return 1.0 if row.params.greedy else row.params.temperature


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """float32[V] -> float32[V], summed in float64."""
    shifted = logits.astype(np.float64) - float(logits.max())
    result: np.ndarray = (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)
    return result


def _top(values: np.ndarray, num: int) -> list[int]:
    """The indices of the ``num`` largest, largest first, lowest index first among equals."""
    num = min(num, len(values))
    if num == 0:
        return []
    smallest = np.partition(values, len(values) - num)[len(values) - num]
    reached = np.flatnonzero(values >= smallest)
    ids: list[int] = reached[np.argsort(-values[reached], kind="stable")][:num].tolist()
    return ids


def _rank(values: np.ndarray, index: int) -> int:
    """1 for the largest; lowest index first among equals."""
    value = values[index]
    return 1 + int((values > value).sum()) + int((values[:index] == value).sum())
