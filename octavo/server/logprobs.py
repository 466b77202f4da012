"""Log-probabilities in the three shapes that clients know: of completions, of chat, and of prompts."""

from collections.abc import Iterable
from typing import Any

import msgspec

from octavo.server.responses import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from octavo.step import TokenLogprobs
from octavo.tokenizer import Tokenizer

FLOOR = -9999.0
"""JSON has no infinity: a token that cannot be drawn gets this."""
_encode = msgspec.json.Encoder().encode


class LogprobFormat:
    """How tokens are written: as text, or as ``token_id:N``. ``top`` is how many alternatives the client asked for; with
    ``named`` they are tokens of its choice."""

    def __init__(self, tokenizer: Tokenizer, *, top: int, as_token_ids: bool, named: bool = False) -> None:
        self._named = named
        self._tokenizer = tokenizer
        self._top = top
        self._as_token_ids = as_token_ids

    def token(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_token_ids else self._tokenizer.token_text(token_id)

    def completion(self, entries: Iterable[TokenLogprobs], offset: int) -> CompletionLogprobs:
        """``offset`` is the length of the text before the first token, in characters."""
        shape = CompletionLogprobs([], [], [], [])
        for entry in entries:
            offset = self._append(shape, self.token(entry.token_id), offset, entry)
        return shape

    def echoed(self, first_token: int, entries: Iterable[TokenLogprobs]) -> CompletionLogprobs:
        """A prompt's: its first token has none."""
        shape = CompletionLogprobs([], [], [], [])
        offset = self._append(shape, self.token(first_token), 0, None)
        for entry in entries:
            offset = self._append(shape, self.token(entry.token_id), offset, entry)
        return shape

    def _append(self, shape: CompletionLogprobs, token: str, offset: int, entry: TokenLogprobs | None) -> int:
        shape.tokens.append(token)
        shape.text_offset.append(offset)
        shape.token_logprobs.append(None if entry is None else max(FLOOR, entry.logprob))
        shape.top_logprobs.append(None if entry is None else self._alternatives(entry))
        return offset + len(token)

    def _alternatives(self, entry: TokenLogprobs) -> msgspec.Raw:
        """The token itself first, then the likeliest; tokens that read the same keep the likelier one's value."""
        found = {self.token(entry.token_id): max(FLOOR, entry.logprob)}
        for token_id, logprob in zip(entry.top_ids[: self._top], entry.top_logprobs, strict=False):
            found.setdefault(self.token(token_id), max(FLOOR, logprob))
        return msgspec.Raw(_encode(found))

    def chat(self, entries: Iterable[TokenLogprobs]) -> ChatLogprobs:
        return ChatLogprobs([msgspec.Raw(_encode(self._chat_entry(entry))) for entry in entries])

    def _chat_entry(self, entry: TokenLogprobs) -> ChatLogprob:
        token_id = entry.token_id
        reported = dict(zip(entry.top_ids[: self._top], entry.top_logprobs, strict=False))
        if self._named:
            reported = {token_id: entry.logprob, **reported}
        top = [TopLogprob(self.token(i), max(FLOOR, logprob), self._bytes(i)) for i, logprob in reported.items()]
        return ChatLogprob(self.token(token_id), max(FLOOR, entry.logprob), self._bytes(token_id), top)

    def _bytes(self, token_id: int) -> list[int]:
        return list(self._tokenizer.token_bytes(token_id))

    def prompt(self, entries: Iterable[TokenLogprobs]) -> msgspec.Raw:
        """A list with one object a token, keyed by token id; null for the first. Written entry by entry, as JSON: all of a long
        prompt's at once would be objects without number, and nobody else would get a turn while they are encoded and freed."""
        return msgspec.Raw(b"[%b]" % b",".join([b"null", *(_encode(self._prompt_entry(entry)) for entry in entries)]))

    def _prompt_entry(self, entry: TokenLogprobs) -> dict[str, Any]:
        found = {str(entry.token_id): self._ranked(entry.token_id, entry.logprob, entry.rank)}
        for rank, (token_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=False), 1):
            found.setdefault(str(token_id), self._ranked(token_id, logprob, rank))
        return found

    def _ranked(self, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": max(FLOOR, logprob), "rank": rank, "decoded_token": self._tokenizer.token_text(token_id)}
