"""Grammars over the fake vocabulary: what may follow depends on every token so far, and some texts are complete at a length."""

import random
from concurrent.futures import Future
from typing import Any

import numpy as np

from octavo.request import Request, Thinking
from octavo.sampling_params import StructuredOutputsParams
from octavo.structured.reasoning import CLOSE, OPEN
from octavo.structured.thinking import TagTables, ThinkingGrammar

EOS, VOCABULARY = 0, 23
TOKENS = [b"", b"<", b"think", b">", b"/", b"</", b"<think>", b"</think>", b">\n", b"\n", b" ", b">x", b"thi", b"nk>"]
TOKENS += [bytes([65 + i]) for i in range(VOCABULARY - len(TOKENS))]
TABLES = TagTables(TOKENS, [EOS], opening=OPEN, closing=CLOSE, mask_bytes=(VOCABULARY + 7) // 8)


class FakeGrammar:
    """Allows a third to all of the tokens; after ``length`` of them nothing but an end. ``rule`` tells grammars apart."""

    mask_seconds = 0.0
    is_open = False

    def __init__(self, rule: int, length: int, *, ends: bool, digest: int = 1, produced: int = 0) -> None:
        self.rule, self.length, self.ends, self.digest, self.produced = rule, length, ends, digest, produced
        self.mask: np.ndarray | None = None

    @property
    def is_satisfied(self) -> bool:
        return self.produced >= self.length

    def allowed(self) -> list[int]:
        if self.is_satisfied:
            return [EOS] if self.ends else []
        kept = [t for t in range(1, VOCABULARY) if (t * 7 + self.digest + self.rule) % 3 == 0]
        return [*kept, EOS] if self.ends and self.digest % 5 == 0 else kept

    def compute_mask(self) -> None:
        bits = np.zeros(VOCABULARY, np.uint8)
        bits[self.allowed()] = 1
        self.mask = np.packbits(bits, bitorder="little")

    def advance(self, token: int) -> bool:
        assert token in self.allowed(), "a token that the mask forbids"
        self.digest = (self.digest * 31 + token) % 1009
        self.produced += 1
        self.mask = None
        return self.is_satisfied

    def fork(self) -> "FakeGrammar":
        copy = FakeGrammar(self.rule, self.length, ends=self.ends, digest=self.digest, produced=self.produced)
        copy.mask = self.mask
        return copy


def fake_thinking(rng: random.Random) -> Thinking:
    implied = rng.random() < 0.5
    return Thinking(opening=OPEN, closing=CLOSE, tagged=rng.random() < 0.5 or not implied, implied=implied)


def fake_form(rng: random.Random) -> StructuredOutputsParams:
    """A request for such a grammar: "rule length" in the place of a regex."""
    return StructuredOutputsParams(regex=f"{rng.randrange(9)} {rng.randint(1, 16)}")


def begin(
    wanted: StructuredOutputsParams | None, *, ends: bool, thinking: Thinking | None, budget: int | None
) -> FakeGrammar | ThinkingGrammar:
    answer = None
    if wanted is not None:
        rule, length = map(int, (wanted.regex or "").split())
        answer = FakeGrammar(rule, length, ends=ends)
        answer.compute_mask()
    if thinking is not None:
        return ThinkingGrammar(TABLES, answer, tagged=thinking.tagged, implied=thinking.implied, budget=budget)
    assert answer is not None
    return answer


def begin_for(request: Request) -> FakeGrammar | ThinkingGrammar | None:
    params = request.params
    if not params.is_confined:
        return None
    ends, budget = not params.ignore_eos, params.thinking_token_budget
    return begin(params.structured_outputs, ends=ends, thinking=request.thinking, budget=budget)


class FakeGrammars:
    """Compiles at once, or whenever ``tick`` decides."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pending: list[tuple[Future[Any], FakeGrammar | ThinkingGrammar]] = []

    def compile(
        self,
        wanted: StructuredOutputsParams | None,
        *,
        ends: bool,
        thinking: Thinking | None = None,
        budget: int | None = None,
    ) -> "Future[Any]":
        future: Future[Any] = Future()
        self._pending.append((future, begin(wanted, ends=ends, thinking=thinking, budget=budget)))
        if self._rng.random() < 0.5:
            self.tick(1.0)
        return future

    def tick(self, likely: float = 0.3) -> None:
        waiting = []
        for future, grammar in self._pending:
            if self._rng.random() > likely:
                waiting.append((future, grammar))
            elif future.set_running_or_notify_cancel():
                future.set_result(grammar)
        self._pending = waiting


def pick(number: int, mask: np.ndarray | None) -> int:
    """A token for a random number: of the whole vocabulary, or of what a mask allows; -1 if that is nothing."""
    if mask is None:
        return number % VOCABULARY
    allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:VOCABULARY]).tolist()
    return allowed[number % len(allowed)] if allowed else -1
