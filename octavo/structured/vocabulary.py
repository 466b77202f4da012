"""``Vocabulary``: what a grammar must know of a model's tokens, as a value that can cross to another process.

Owns nothing else; knows neither models nor llguidance. The invariant: ``tokens`` has an entry for every id that logits have, an
empty one for ids that stand for no text.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import msgspec


class Vocabulary(msgspec.Struct, frozen=True):
    """``special_token_ids`` stand for themselves and never for their text; ``eos_token_ids`` end an output."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]


class TextTokenizer(Protocol):
    """As much of a tokenizer as a vocabulary is made from."""

    @property
    def token_bytes(self) -> Callable[[int], bytes]: ...

    @property
    def special_token_ids(self) -> Collection[int]: ...


def vocabulary_of(tokenizer: TextTokenizer, *, vocab_size: int, eos_token_ids: Iterable[int]) -> Vocabulary:
    """The vocabulary of a model with ``vocab_size`` logits."""
    ends = [token for token in eos_token_ids if 0 <= token < vocab_size]
    special = {token for token in tokenizer.special_token_ids if token < vocab_size} | set(ends)
    return Vocabulary([tokenizer.token_bytes(token) for token in range(vocab_size)], sorted(special), ends)
