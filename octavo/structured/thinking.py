"""Where one sequence stands in its reasoning: free until the closing tag, within a budget, then confined as the answer is.

Owns what tokens do to the two tags, byte by byte, so that neither how a tag is cut into tokens nor a token that goes beyond it
matters. Knows the grammar of the answer by its protocol alone. Invariant: the answer's grammar sees every token of the answer,
from its first byte on, and no other; blanks between the closing tag and the answer belong to neither.
"""

from copy import copy
from enum import Enum
from typing import Protocol

import numpy as np

BLANKS = b" \t\r\n"
MAX_BLANKS = 8
"""Bytes between the closing tag and the answer."""

_UNREAD = np.zeros(0, np.uint8)
"""The mask where any token may come: computed, and never looked at."""


class AnswerGrammar(Protocol):
    """``octavo.engine.grammar.Grammar``, which this package does not import."""

    @property
    def mask(self) -> np.ndarray | None: ...

    @property
    def mask_seconds(self) -> float: ...

    @property
    def is_satisfied(self) -> bool: ...

    def compute_mask(self) -> None: ...

    def advance(self, token: int) -> bool: ...

    def fork(self) -> "AnswerGrammar": ...


class _Tag:
    """Finds one text in bytes that come in pieces (Knuth, Morris and Pratt 1977). A state is how many bytes of it match."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._fallback = [0]
        for byte in text[1:]:
            self._fallback.append(self._next(self._fallback[-1], byte))

    def _next(self, state: int, byte: int) -> int:
        while state and byte != self.text[state]:
            state = self._fallback[state - 1]
        return state + (byte == self.text[state])

    def feed(self, state: int, data: bytes) -> tuple[int, int | None]:
        """The state after ``data``, and the index in it just past the first whole match, where the search ends."""
        for index, byte in enumerate(data):
            state = self._next(state, byte)
            if state == len(self.text):
                return 0, index + 1
        return state, None


class TagTables:
    """What the tokens of one vocabulary do to one pair of tags, as masks, each made when it is first needed.

    ``end_ids`` are the end-of-sequence tokens; masks have ``mask_bytes`` bytes.
    """

    def __init__(self, tokens: list[bytes], end_ids: list[int], *, opening: str, closing: str, mask_bytes: int) -> None:
        self.tokens = tokens
        self.opening = opening.encode()
        self.closing = _Tag(closing.encode())
        self._mask_bytes = mask_bytes
        self._end_ids = end_ids
        last = self.closing.text[-1]
        self._can_close = [i for i, data in enumerate(tokens) if last in data]
        self._can_open = [i for i, data in enumerate(tokens) if self._touches_opening(data)]
        self._all_blank = [i for i, data in enumerate(tokens) if data and data.isspace() and not data.strip(BLANKS)]
        self._steps = {data: i for i, data in enumerate(tokens) if data and data in self.closing.text}
        self._thinking: dict[int, np.ndarray] = {}
        self._opening: dict[int, np.ndarray] = {}
        self._blank: dict[int, np.ndarray] = {}

    def _touches_opening(self, data: bytes) -> bool:
        """Whether it could stand for some of the opening tag's bytes, the last of them perhaps with more behind."""
        text = data.lstrip(BLANKS)
        return bool(text) and (
            text in self.opening or text.startswith(tuple(self.opening[i:] for i in range(len(self.opening))))
        )

    def pack(self, token_ids: list[int]) -> np.ndarray:
        bits = np.zeros(self._mask_bytes * 8, np.uint8)
        bits[token_ids] = 1
        return np.packbits(bits, bitorder="little")

    def thinking(self, state: int) -> np.ndarray:
        """Everything but an end, and but tokens that close the reasoning and go on with something else than blanks."""
        if state not in self._thinking:
            bits = np.zeros(self._mask_bytes * 8, np.uint8)
            bits[: len(self.tokens)] = 1
            bits[self._end_ids] = 0
            bits[[i for i in self._can_close if self._goes_beyond(state, self.tokens[i])]] = 0
            self._thinking[state] = np.packbits(bits, bitorder="little")
        return self._thinking[state]

    def _goes_beyond(self, state: int, data: bytes) -> bool:
        end = self.closing.feed(state, data)[1]
        return end is not None and bool(data[end:].strip(BLANKS))

    def closing_step(self, state: int) -> np.ndarray:
        """The one token that brings the closing tag, of which ``state`` bytes stand, furthest; nothing if there is none."""
        rest = self.closing.text[state:]
        sizes = [size for size in range(len(rest), 0, -1) if rest[:size] in self._steps]
        return self.pack([self._steps[rest[: sizes[0]]]] if sizes else [])

    def opens(self, matched: int) -> np.ndarray:
        """Tokens that go on with the opening tag, of which ``matched`` bytes stand, and at the most with blanks around it."""
        if matched not in self._opening:
            rest = self.opening[matched:]
            found = []
            for i in self._can_open:
                data = self.tokens[i] if matched else self.tokens[i].lstrip(BLANKS)
                if data and (rest.startswith(data) or (data.startswith(rest) and not data[len(rest) :].strip(BLANKS))):
                    found.append(i)
            self._opening[matched] = self.pack(found)
        return self._opening[matched]

    def blanks(self, most: int) -> np.ndarray:
        """Tokens of nothing but blanks, at most that many bytes."""
        if most not in self._blank:
            self._blank[most] = self.pack([i for i in self._all_blank if len(self.tokens[i]) <= most])
        return self._blank[most]


class _Stage(Enum):
    OPENING = "opening"
    THINKING = "thinking"
    GAP = "gap"
    ANSWER = "answer"


class ThinkingGrammar:
    """One sequence's. ``answer``, at its beginning, confines what follows the reasoning; None: nothing does. ``tagged`` and
    ``implied`` are those of ``octavo.request.Thinking``. ``budget`` tokens may be spent between the tags; then the closing one
    is the only way on. An answer that is confined cannot be left out: the reasoning does not end the output.
    """

    def __init__(
        self, tables: TagTables, answer: AnswerGrammar | None, *, tagged: bool, implied: bool, budget: int | None
    ) -> None:
        self._tables = tables
        self._answer = answer
        self._implied = implied
        self._budget = budget
        self._stage = _Stage.OPENING if tagged else _Stage.THINKING
        self._unopened = answer.fork() if answer is not None and tagged and not implied else None
        """The answer's grammar in case that all of this is the answer already."""
        self._opened = 0
        self._closed = 0
        self._blanks = 0
        self._spent = 0
        self.mask: np.ndarray | None = None
        self.compute_mask()

    def fork(self) -> "ThinkingGrammar":
        other = copy(self)
        other._answer = self._answer.fork() if self._answer is not None else None
        other._unopened = self._unopened.fork() if self._unopened is not None else None
        return other

    @property
    def mask_seconds(self) -> float:
        return self._answer.mask_seconds if self._answer is not None else 0.0

    @property
    def is_satisfied(self) -> bool:
        if self._stage is _Stage.OPENING:
            return self._unopened is not None and self._unopened.is_satisfied
        return self._stage is not _Stage.THINKING and self._answer is not None and self._answer.is_satisfied

    @property
    def is_open(self) -> bool:
        return self._answer is None and not self._must_close

    @property
    def _must_close(self) -> bool:
        if self._budget is None or self._spent < self._budget:
            return False
        return self._stage is _Stage.THINKING or (self._stage is _Stage.OPENING and self._implied)

    def compute_mask(self) -> None:
        tables = self._tables
        if self.is_open:
            self.mask = _UNREAD
        elif self._must_close:
            self.mask = tables.closing_step(self._closed)
        elif self._stage is _Stage.THINKING or (self._stage is _Stage.OPENING and self._implied):
            self.mask = tables.thinking(self._closed)
        elif self._stage is _Stage.OPENING:
            self.mask = tables.opens(self._opened)
            if self._unopened is not None:
                self.mask = self.mask | _mask_of(self._unopened)
        elif self._answer is not None:
            self.mask = _mask_of(self._answer)
            if self._stage is _Stage.GAP:
                self.mask = self.mask | tables.blanks(MAX_BLANKS - self._blanks)

    def advance(self, token: int) -> bool:
        data = self._tables.tokens[token]
        complete = False
        if self._stage is _Stage.OPENING:
            complete = self._open(token, data)
        elif self._stage is _Stage.THINKING:
            self._think(data)
        elif self._answer is not None:
            complete = self._say(token, data, self._answer)
        self.mask = None
        if self._stage is _Stage.THINKING or self._answer is None:  # the mask costs nothing
            self.compute_mask()
        return complete

    def _open(self, token: int, data: bytes) -> bool:
        """A token while it is not clear whether the output begins with the opening tag."""
        tag = self._tables.opening
        seen = data if self._opened else data.lstrip(BLANKS)
        rest = tag[self._opened :]
        if seen.startswith(rest):
            self._stage, self._spent, self._closed, self._unopened = _Stage.THINKING, 0, 0, None
            if (beyond := seen[len(rest) :]).strip(BLANKS):
                self._think(beyond)
        elif self._implied:
            self._think(data)
            if self._stage is _Stage.THINKING and rest.startswith(seen):
                self._stage = _Stage.OPENING
        elif not rest.startswith(seen):
            return self._begin_answer(token)
        else:
            self._follow(token)
        self._opened += len(seen)
        return False

    def _follow(self, token: int) -> None:
        """The tag goes on; so does what the output is if the tag never comes, as long as its grammar allows."""
        if self._unopened is not None:
            if _allows(self._unopened, token):
                self._unopened.advance(token)
            else:
                self._unopened = None

    def _begin_answer(self, token: int) -> bool:
        self._stage = _Stage.ANSWER
        if self._unopened is None:
            return False
        self._answer, self._unopened = self._unopened, None
        return self._answer.advance(token)

    def _think(self, data: bytes) -> None:
        self._stage = _Stage.THINKING
        self._spent += 1
        self._closed, end = self._tables.closing.feed(self._closed, data)
        if end is not None:
            self._stage = _Stage.GAP if self._answer is not None else _Stage.ANSWER
            self._blanks = len(data) - end

    def _say(self, token: int, data: bytes, answer: AnswerGrammar) -> bool:
        blank = bool(data) and not data.strip(BLANKS)
        if self._stage is _Stage.GAP and blank and self._blanks + len(data) <= MAX_BLANKS:
            self._blanks += len(data)
            return False
        self._stage = _Stage.ANSWER
        return answer.advance(token)


def _mask_of(grammar: AnswerGrammar) -> np.ndarray:
    if grammar.mask is None:
        grammar.compute_mask()
    return np.zeros(0, np.uint8) if grammar.mask is None else grammar.mask


def _allows(grammar: AnswerGrammar, token: int) -> bool:
    mask = _mask_of(grammar)
    return token // 8 < len(mask) and bool(mask[token // 8] >> (token % 8) & 1)
