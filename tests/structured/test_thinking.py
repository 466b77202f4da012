"""Reasoning first, then the form: whatever the tokens are, and whoever draws them."""

import random
import re

import numpy as np
import pytest

from octavo.request import Thinking
from octavo.sampling_params import StructuredOutputsParams
from octavo.structured.matching import GrammarThread
from octavo.structured.reasoning import CLOSE, OPEN, STYLES, thinking_in
from octavo.structured.thinking import MAX_BLANKS, ThinkingGrammar
from octavo.structured.vocabulary import Vocabulary

PIECES = [b"</", b"think>", b">\n\n", b">a", b"<think>\n", b"</think>", b"</think>a", b"thi", b"nk", b"\n\n", b"  "]
BYTES = [bytes([i]) for i in range(256)]
END = len(BYTES) + len(PIECES)
WHOLE_TAGS = GrammarThread(lambda: Vocabulary([*BYTES, *PIECES, b"<end>"], [END], [END]))
BARE = GrammarThread(lambda: Vocabulary([*BYTES, b"<end>"], [256], [256]))
FORM = StructuredOutputsParams(regex="a[ab]{0,3}b")
OPENED = Thinking(opening=OPEN, closing=CLOSE, tagged=False, implied=True)
IMPLIED = thinking_in(STYLES["deepseek_r1"], inside=None)
MAYBE = thinking_in(STYLES["qwen3"], inside=None)
LIKELY = [b"<", b"/", b"t", b"h", b"i", b"n", b"k", b">", b"\n", b"a", b"b", *PIECES]


def begin(thread: GrammarThread, thinking: Thinking | None, *, budget: int | None, form: bool = True) -> ThinkingGrammar:
    wanted = FORM if form else None
    grammar = thread.compile(wanted, ends=True, thinking=thinking, budget=budget).result()
    assert isinstance(grammar, ThinkingGrammar)
    return grammar


def allowed(grammar: ThinkingGrammar) -> set[int]:
    if grammar.mask is None:
        grammar.compute_mask()
    assert grammar.mask is not None
    return set(np.flatnonzero(np.unpackbits(grammar.mask, bitorder="little")).tolist())


def is_open(grammar: ThinkingGrammar) -> bool:
    return grammar.is_open


def tokens_of(grammar: ThinkingGrammar) -> list[bytes]:
    return grammar._tables.tokens


def draw(grammar: ThinkingGrammar, seed: int, limit: int = 400) -> list[int] | None:
    """Tokens that the masks allow, those around tags rather; None when that does not end."""
    rng, found, tokens = random.Random(seed), list[int](), tokens_of(grammar)
    for _ in range(limit):
        may = allowed(grammar)
        assert may, "nothing may come next"
        likely = [token for token in may if tokens[token] in LIKELY]
        token = rng.choice(sorted(likely if likely and rng.random() < 0.95 else may))
        found.append(token)
        if token == len(tokens) - 1:
            return found
        grammar.advance(token)
    return None


def parts(text: bytes, *, opened: bool) -> tuple[bytes | None, bytes]:
    """Reasoning, None without any, and answer."""
    text = text if opened else text.lstrip()
    if not opened and not text.startswith(OPEN.encode()):
        return None, text
    before, closed, after = text.removeprefix(OPEN.encode()).partition(CLOSE.encode())
    assert closed, "the reasoning does not end"
    return before, after


@pytest.mark.parametrize("thread", [WHOLE_TAGS, BARE], ids=["tags in tokens", "bytes alone"])
@pytest.mark.parametrize("thinking", [OPENED, IMPLIED, MAYBE], ids=["opened", "implied", "maybe"])
@pytest.mark.parametrize("budget", [None, 0, 5])
def test_whatever_is_drawn_ends_in_the_form(thread: GrammarThread, thinking: Thinking, budget: int | None) -> None:
    ended = 0
    for seed in range(40):
        grammar = begin(thread, thinking, budget=budget)
        found = draw(grammar, seed)
        if found is None:
            assert budget is None
            continue
        ended += 1
        tokens = tokens_of(grammar)
        text = b"".join(tokens[token] for token in found[:-1])
        reasoning, answer = parts(text, opened=thinking.implied)
        assert re.fullmatch(rb"a[ab]{0,3}b", answer.lstrip(b" \t\r\n")), text
        assert len(answer) - len(answer.lstrip()) <= MAX_BLANKS + 2  # a token that closes may bring blanks of its own
        if reasoning is not None and budget is not None:
            assert spent(found, tokens, opened=thinking.implied) <= budget
    assert ended >= (40 if budget is not None else 5 if thread is WHOLE_TAGS else 0)


def spent(found: list[int], tokens: list[bytes], *, opened: bool) -> int:
    """Tokens that begin between the tags."""
    text = b"".join(tokens[token] for token in found)
    begun = len(text) - len(text.lstrip()) + len(OPEN) if text.lstrip().startswith(OPEN.encode()) else 0
    assert begun or opened
    closed, place, count = text.index(CLOSE.encode(), begun), 0, 0
    for token in found:
        first, place = place, place + len(tokens[token])
        count += begun <= first < closed
    return count


def test_the_budget_counts_tokens_and_closes_at_once() -> None:
    grammar = begin(WHOLE_TAGS, OPENED, budget=3)
    for _ in range(3):
        assert ord("x") in allowed(grammar)
        grammar.advance(ord("x"))
    assert allowed(grammar) == {256 + PIECES.index(b"</think>")}


def test_a_closing_tag_under_way_is_finished() -> None:
    grammar = begin(WHOLE_TAGS, OPENED, budget=2)
    grammar.advance(ord("x"))
    grammar.advance(256 + PIECES.index(b"</"))
    assert allowed(grammar) == {256 + PIECES.index(b"think>")}


def test_without_a_form_only_the_closing_is_forced() -> None:
    grammar = begin(WHOLE_TAGS, MAYBE, budget=1, form=False)
    assert is_open(grammar)
    grammar.advance(256 + PIECES.index(b"<think>\n"))
    grammar.advance(ord("x"))
    assert not is_open(grammar) and allowed(grammar) == {256 + PIECES.index(b"</think>")}
    grammar.advance(256 + PIECES.index(b"</think>"))
    assert is_open(grammar)
    without = begin(WHOLE_TAGS, MAYBE, budget=0, form=False)
    without.advance(ord("x"))
    without.advance(256 + PIECES.index(b"<think>\n"))  # it is said, not thought
    assert without.is_open


def test_no_end_and_nothing_beyond_the_tag_while_it_thinks() -> None:
    grammar = begin(WHOLE_TAGS, OPENED, budget=None)
    assert END not in allowed(grammar) and 256 + PIECES.index(b"</think>a") not in allowed(grammar)
    for byte in b"</think":
        grammar.advance(byte)
    may = allowed(grammar)
    assert 256 + PIECES.index(b">\n\n") in may and 256 + PIECES.index(b">a") not in may


def test_a_fork_goes_its_own_way() -> None:
    grammar = begin(WHOLE_TAGS, MAYBE, budget=4)
    grammar.advance(256 + PIECES.index(b"<think>\n"))
    other = grammar.fork()
    for _ in range(4):
        other.advance(ord("x"))
    assert len(allowed(other)) == 1 and len(allowed(grammar)) > 1
    grammar.advance(256 + PIECES.index(b"</think>"))
    assert ord("a") in allowed(grammar) and ord("x") not in allowed(grammar)


def test_an_answer_that_looks_like_the_tag_at_first() -> None:
    form = StructuredOutputsParams(choice=["<thing>", "<", "yes"])
    grammar = WHOLE_TAGS.compile(form, ends=True, thinking=MAYBE, budget=None).result()
    assert isinstance(grammar, ThinkingGrammar)
    for byte in b"<thin":
        assert byte in allowed(grammar)
        grammar.advance(byte)
    assert {ord("g"), ord("k")} <= allowed(grammar)
    other = grammar.fork()
    grammar.advance(ord("g"))
    assert allowed(grammar) == {ord(">")}
    grammar.advance(ord(">"))
    assert grammar.is_satisfied and allowed(grammar) == {END}
    for byte in b"k></think>":
        other.advance(byte)
    assert {ord("<"), ord("y")} <= allowed(other) and ord("x") not in allowed(other)


def test_blanks_do_not_lead_to_the_tag_alone() -> None:
    grammar = begin(WHOLE_TAGS, MAYBE, budget=None)
    assert not {ord(" "), ord("\n"), 256 + PIECES.index(b"  ")} & allowed(grammar)
    assert {ord("<"), ord("a"), 256 + PIECES.index(b"<think>\n")} <= allowed(grammar)
