"""Log-probabilities in the three shapes that clients know: of completions, of chat, and of prompts."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from octavo.detokenizer import TextStream
from octavo.sampling_params import SamplingParams
from octavo.server import params
from octavo.server.protocol import ChatRequest, CompletionRequest
from octavo.server.responses import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from octavo.step import TokenLogprobs
from octavo.tokenizer import Tokenizer

FLOOR = -9999.0
"""JSON has no infinity: a token that cannot be drawn gets this."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_encode = msgspec.json.Encoder().encode


class TextPlaces:
    """Where in a text its tokens begin, asked token by token. One that completes no character takes no room, nor does one that
    the text leaves out."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, after: Sequence[int] = (), at: int = 0) -> None:
        self._stream = TextStream(tokenizer, SamplingParams(skip_special_tokens=skip_special_tokens), after)
        self.at = at

    def next(self, token_id: int) -> int:
        at = self.at
        self.at += len(self._stream.push([token_id]))
        return at


def _begins(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Where tokens begin in the text that was cut into them: what no token stands for, as a space before a word, is the next
    one's, and one that stands for nothing is where the one before ended."""
    begins, end = [], 0
    for begin, after in spans:
        begins.append(min(begin, end) if after > begin else end)
        end = max(end, after)
    return begins


class LogprobFormat:
    """How tokens are written: as text, or as ``token_id:N``. ``top`` is how many alternatives the client asked for; with
    ``named`` they are tokens of its choice."""

    def __init__(self, tokenizer: Tokenizer, *, top: int, as_token_ids: bool, named: bool = False) -> None:
        self._named = named
        self._tokenizer = tokenizer
        self._top = top
        self._as_token_ids = as_token_ids

    @staticmethod
    def of(request: CompletionRequest | ChatRequest, tokenizer: Tokenizer) -> "LogprobFormat":
        return LogprobFormat(
            tokenizer,
            top=params.num_alternatives(request),
            as_token_ids=bool(request.return_tokens_as_token_ids),
            named=bool(request.logprob_token_ids),
        )

    def token(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_token_ids else self._tokenizer.token_text(token_id)

    def places(self, prompt: Sequence[int], *, at: int, skip_special_tokens: bool) -> TextPlaces:
        """Those of what follows a prompt, in a text that it is from ``at`` on."""
        return TextPlaces(self._tokenizer, skip_special_tokens=skip_special_tokens, after=prompt, at=at)

    def completion(self, entries: Iterable[TokenLogprobs], places: TextPlaces, *, after: CompletionLogprobs) -> None:
        """Appends what was generated to ``after``."""
        for entry in entries:
            self._append(after, entry.token_id, places.next(entry.token_id), entry)

    def echoed(
        self, token_ids: Sequence[int], entries: Iterable[TokenLogprobs], spans: Sequence[tuple[int, int]] | None
    ) -> CompletionLogprobs:
        """A prompt's: its first token has no log-probability. ``spans``: the characters of each token in the text; None where
        the text is that of the tokens."""
        shape = CompletionLogprobs([], [], [], [])
        if spans is None:
            places = TextPlaces(self._tokenizer, skip_special_tokens=True)
            offsets = [places.next(token_id) for token_id in token_ids]
        else:
            offsets = _begins(spans)
        for token_id, offset, entry in zip(token_ids, offsets, itertools.chain([None], entries), strict=False):
            self._append(shape, token_id, offset, entry)
        return shape

    def _append(self, shape: CompletionLogprobs, token_id: int, offset: int, entry: TokenLogprobs | None) -> None:
        shape.tokens.append(self._told_apart(token_id))
        shape.text_offset.append(offset)
        shape.token_logprobs.append(None if entry is None else max(FLOOR, entry.logprob))
        shape.top_logprobs.append(None if entry is None else self._alternatives(entry))

    def _alternatives(self, entry: TokenLogprobs) -> msgspec.Raw:
        """The token itself first, then the likeliest; tokens that read the same keep the likelier one's value."""
        found = {self._told_apart(entry.token_id): max(FLOOR, entry.logprob)}
        for token_id, logprob in zip(entry.top_ids[: self._top], entry.top_logprobs, strict=False):
            found.setdefault(self._told_apart(token_id), max(FLOOR, logprob))
        return msgspec.Raw(_encode(found))

    def _told_apart(self, token_id: int) -> str:
        """The token where its text is all that tells it from others: parts of characters are written as OpenAI's API does."""
        token = self.token(token_id)
        if REPLACEMENT not in token:
            return token
        value = self._tokenizer.token_bytes(token_id)
        return token if value == token.encode() else "bytes:" + "".join(f"\\x{byte:02x}" for byte in value)

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
