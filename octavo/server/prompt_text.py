"""From prompt texts to token ids without holding up the event loop, and not at all for texts that cannot fit.

Short texts are encoded where they are, long ones on a thread and without the interpreter's lock. Few are at once, so that
threads are left for whatever else needs one, and in lanes, so that none waits for texts that are much longer.
"""

import asyncio
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from octavo.server import errors
from octavo.server.errors import ApiError
from octavo.tokenizer import Tokenizer

_INLINE_CHARACTERS = 2048
"""Prompts up to this length are tokenized on the event loop; a thread costs more than it saves."""
_LANES = ((1 << 14, 2), (1 << 18, 1), (math.inf, 1))
"""Up to how many characters, and how many at once: together fewer than the event loop has threads on one core."""
_NORMALIZATION = 2
"""Normal forms shorten a text, composed characters by a half at the most."""

T = TypeVar("T")


class TextEncoder:
    """One tokenizer's."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lanes = [(longest, asyncio.Semaphore(at_once)) for longest, at_once in _LANES]

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool, limit: int | None = None) -> list[list[int]]:
        """Token ids of each text. Raises ``ApiError`` 400 for one that is sure to have more than ``limit`` tokens."""
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            return [self._tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]
        encode = functools.partial(self._encode_long, texts, add_special_tokens=add_special_tokens, limit=limit)
        return await self._on_thread(texts, encode)

    async def offsets(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[tuple[int, int]]]:
        """For each token of each text its characters. Only for texts that have been encoded, and are not too long."""

        def found() -> list[list[tuple[int, int]]]:
            return [self._tokenizer.offsets(text, add_special_tokens=add_special_tokens) for text in texts]

        return found() if sum(map(len, texts)) <= _INLINE_CHARACTERS else await self._on_thread(texts, found)

    async def _on_thread(self, texts: Sequence[str], work: Callable[[], T]) -> T:
        """What ``work`` on ``texts`` returns or raises."""
        size = sum(map(len, texts))
        async with next(turns for longest, turns in self._lanes if size <= longest):
            return await asyncio.to_thread(work)

    def _encode_long(self, texts: Sequence[str], *, add_special_tokens: bool, limit: int | None) -> list[list[int]]:
        longest = max(map(len, texts))
        if limit is not None and longest > limit and longest > (bound := limit * self._characters_per_token):
            raise _too_long(longest, bound, limit)
        # A batch of one would be encoded like a short text, under the interpreter's lock.
        return self._tokenizer.encode_batch([*texts, ""], add_special_tokens=add_special_tokens)[:-1]

    @functools.cached_property
    def _characters_per_token(self) -> int:
        """No token stands for more characters of a prompt than this. Looks at the whole vocabulary, when first needed."""
        longest = max(len(self._tokenizer.token_bytes(i)) for i in range(self._tokenizer.vocab_size))
        return _NORMALIZATION * longest


def _too_long(characters: int, bound: int, limit: int) -> ApiError:
    return errors.invalid(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {characters} characters "
        f"(more than {bound} characters, which is the upper bound for {limit} input tokens). "
        "Please reduce the length of the input prompt.",
        "input_text",
    )
