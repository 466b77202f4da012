"""Turns one branch's token ids into text while they come: whole characters only, and never part of a stop string.

Owns the undecided tail: bytes that are not yet a character, and text that may yet turn out to begin a stop string. Knows
nothing of requests and streams. The invariant: the pieces returned by ``push`` and ``finish``, joined, are the decoded output
cut at the first stop string, whatever the sizes of the pushes; a token costs time in proportion to its own text.
"""

import codecs
from collections.abc import Sequence

from octavo.sampling_params import SamplingParams
from octavo.tokenizer import Tokenizer, strip_lead


class TextStream:
    """The text of one branch of one request.

    ``prompt_token_ids`` decide how the output begins: after a prompt its leading space stays, and a character that the prompt's
    last token began is completed here.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt_token_ids: Sequence[int] = ()) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._hidden: frozenset[int] = tokenizer.special_token_ids if params.skip_special_tokens else frozenset()
        self._detokenize = params.detokenize
        self._keeps_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lead_character = tokenizer.decoding.lead_character
        self._lead = tokenizer.decoding.lead
        self._stops = [_StopString(stop) for stop in params.stop or ()]
        self._held = ""
        self.num_tokens = 0
        """Tokens that belong to the output: all pushed ones, or up to the one whose text completed a stop string. Cut token ids
        and log-probabilities here."""
        self.stopped: str | None = None
        """The stop string that ended the output."""
        if self._detokenize:
            self._begin_after(prompt_token_ids)

    def push(self, token_ids: Sequence[int], *, ends_with_stop_token: bool = False) -> str:
        """Take the next tokens; returns the text that is final now. Tokens after a stop string are ignored.

        ``ends_with_stop_token``: the last of them is the stop or end-of-sequence token, which is part of the output but shows
        in the text only with ``include_stop_str_in_output``.
        """
        shown = len(token_ids) - (ends_with_stop_token and not self._keeps_stop)
        fresh = []
        for i, token_id in enumerate(token_ids):
            if self.stopped is not None:
                break
            self.num_tokens += 1
            if i < shown and self._detokenize and token_id not in self._hidden:
                fresh.append(self._accept(self._decoder.decode(self._bytes_of(token_id))))
        return "".join(fresh)

    def finish(self) -> str:
        """The output is over: returns what was held back. An incomplete character becomes U+FFFD, as in ``decode``."""
        if self.stopped is not None:
            return ""
        fresh = self._accept(self._decoder.decode(b"", True))
        if self.stopped is None:
            fresh, self._held = fresh + self._held, ""
        return fresh

    def _accept(self, text: str) -> str:
        """Add decoded text of the newest token to the tail; returns the part of the tail that is final."""
        if self._lead and text:
            text, self._lead = strip_lead(text, self._lead_character, self._lead)
        if not text or not self._stops:
            return text
        ends = self._scan(text)
        tail = self._held + text
        if ends is not None:
            end, stop = ends
            end += len(self._held)
            self.stopped, self._held = stop, ""
            return tail[:end] if self._keeps_stop else tail[: end - len(stop)]
        pending = 0 if self._keeps_stop else max(stop.matched for stop in self._stops)
        final = len(tail) - pending
        self._held = tail[final:]
        return tail[:final]

    def _scan(self, text: str) -> tuple[int, str] | None:
        """Where in ``text`` a stop string ends first (of several that end there, the longest), or None."""
        checked = self.num_tokens > self._min_tokens
        best: tuple[int, str] | None = None
        for stop in self._stops:
            end = stop.feed(text, report=checked)
            if end is not None and (best is None or (end, -len(stop.text)) < (best[0], -len(best[1]))):
                best = end, stop.text
        return best

    def _begin_after(self, prompt_token_ids: Sequence[int]) -> None:
        """Come to where the prompt ended: past the leading space if it had any text, inside a character if it ended in one."""
        shown = (self._bytes_of(i) for i in prompt_token_ids if i not in self._hidden)
        if self._lead:
            self._lead = 0 if any(shown) else self._lead
        tail = b""
        for token_id in reversed(prompt_token_ids):
            if len(tail) >= 3:  # an incomplete character has at most three bytes
                break
            if token_id not in self._hidden:
                tail = self._bytes_of(token_id) + tail
        self._decoder.decode(tail)


class _StopString:
    """Finds one string in text that comes in pieces (Knuth, Morris and Pratt 1977). ``matched``: how many of its characters the
    text so far ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = [0]
        length = 0
        for character in text[1:]:
            while length and character != text[length]:
                length = self._fallback[length - 1]
            length += character == text[length]
            self._fallback.append(length)

    def feed(self, text: str, *, report: bool) -> int | None:
        """Go on with ``text``. Returns the index in it just past the first match; ``report=False`` passes over matches."""
        stop, matched, i = self.text, self.matched, 0
        while i < len(text):
            if not matched:  # nothing under way: jump to where the string could begin
                i = text.find(stop[0], i)
                if i < 0:
                    break
            while matched and text[i] != stop[matched]:
                matched = self._fallback[matched - 1]
            matched += text[i] == stop[matched]
            i += 1
            if matched == len(stop):
                if report:
                    self.matched = matched
                    return i
                matched = self._fallback[matched - 1]
        self.matched = matched
        return None
