"""The stream of text: what comes out is the decoded output cut at the first stop string, however the tokens arrive."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.detokenizer import TextStream, _StopString
from octavo.sampling_params import SamplingParams
from octavo.tokenizer import Tokenizer
from tests.tokenizer.small import byte_level_metadata, sentencepiece_metadata

KINDS = ("byte-level", "sentencepiece")


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata() if kind == "byte-level" else sentencepiece_metadata())


def ids_of(kind: str) -> st.SearchStrategy[list[int]]:
    """Random ids, and encodings of random text, so that both rubbish and sense come up."""
    tokenizer = tokenizer_of(kind)
    anything = st.integers(-1, tokenizer.vocab_size + 1)
    few = st.sampled_from([*range(3), *tokenizer.encode("abab ab a b é世🙂", add_special_tokens=False)])
    encoded = st.text(max_size=12).filter(lambda t: t.isprintable()).map(tokenizer.encode)
    return st.one_of(st.lists(anything, max_size=30), st.lists(few, max_size=30), encoded)


def chunks(draw: st.DrawFn, ids: list[int]) -> list[list[int]]:
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, list[int], list[list[int]]]:
    kind = draw(st.sampled_from(KINDS))
    ids = draw(ids_of(kind))
    return kind, ids, chunks(draw, ids)


@settings(max_examples=600)
@given(stream=streams(), skip=st.booleans())
def test_without_stop_strings_the_pieces_are_the_decoded_ids(
    stream: tuple[str, list[int], list[list[int]]], skip: bool
) -> None:
    kind, ids, parts = stream
    tokenizer = tokenizer_of(kind)
    text = TextStream(tokenizer, SamplingParams(skip_special_tokens=skip))
    pieces = [text.push(part) for part in parts] + [text.finish()]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert text.num_tokens == len(ids)
    assert text.stopped is None


@settings(max_examples=300)
@given(stream=streams(), data=st.data())
def test_after_a_prompt_the_output_is_what_the_prompt_did_not_say(
    stream: tuple[str, list[int], list[list[int]]], data: st.DataObject
) -> None:
    kind, prompt, _ = stream
    tokenizer = tokenizer_of(kind)
    ids = data.draw(ids_of(kind))
    text = TextStream(tokenizer, SamplingParams(), prompt)
    output = "".join([text.push([i]) for i in ids]) + text.finish()
    together = tokenizer.decode([*prompt, *ids])
    assert together.endswith(output)
    said = together.removesuffix(output) if output else together
    # The prompt's own text is all there but for a last incomplete character, which the output completes.
    assert tokenizer.decode(prompt).rstrip("\ufffd") == said.rstrip("\ufffd")


def reference_cut(
    tokenizer: Tokenizer, ids: list[int], stops: list[str], min_tokens: int, include: bool
) -> tuple[str, str | None, int]:
    """By brute force: decode ever longer prefixes, and cut at the stop string that ends first past min_tokens."""
    whole = tokenizer.decode(ids)
    ends = []
    for count in range(1, len(ids) + 1):
        # a character belongs to the token that completes it: an unfinished one at the end is not there yet
        ends.append(len(whole) if count == len(ids) else common_length(tokenizer, ids, count, whole))
    for end in range(1, len(whole) + 1):
        token = next(i for i, e in enumerate(ends) if e >= end)
        matching = [s for s in stops if whole[:end].endswith(s)]
        if matching and token + 1 > min_tokens:
            stop = max(matching, key=len)
            return whole[: end if include else end - len(stop)], stop, token + 1
    return whole, None, len(ids)


def common_length(tokenizer: Tokenizer, ids: list[int], count: int, whole: str) -> int:
    """How much of ``whole`` is settled after ``count`` tokens: what every continuation begins with."""
    head = ids[:count]
    continued = [tokenizer.decode(head + probe) for probe in probes(tokenizer)]
    length = 0
    while length < len(whole) and all(len(t) > length and t[length] == whole[length] for t in continued):
        length += 1
    return length


@cache
def _probes(tokenizer_id: int) -> tuple[list[int], ...]:
    tokenizer = next(t for t in map(tokenizer_of, KINDS) if id(t) == tokenizer_id)
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    continuations = [bytes([b]) + b"\x80" * more for b in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF) for more in range(3)]
    return tuple([by_bytes[bytes([b])] for b in probe] for probe in (b"A", b"\xc3", *continuations))


def probes(tokenizer: Tokenizer) -> list[list[int]]:
    return list(_probes(id(tokenizer)))


STOPS = ["a", "b", "ab", "ba", "abab", "aab", " a", " ", "é", "世", "b é", "xyz", "\ufffd", "aaa", "user"]


@settings(max_examples=600)
@given(
    stream=streams(),
    stops=st.lists(st.sampled_from(STOPS), min_size=1, max_size=4, unique=True),
    min_tokens=st.integers(0, 6),
    include=st.booleans(),
)
def test_with_stop_strings_the_text_is_cut_whatever_the_chunks(
    stream: tuple[str, list[int], list[list[int]]], stops: list[str], min_tokens: int, include: bool
) -> None:
    kind, ids, parts = stream
    tokenizer = tokenizer_of(kind)
    params = SamplingParams(stop=stops, min_tokens=min_tokens, max_tokens=None, include_stop_str_in_output=include)
    expected, stopped, num_tokens = reference_cut(tokenizer, ids, stops, min_tokens, include)
    for pushes in (parts, [[i] for i in ids], [ids]):
        text = TextStream(tokenizer, params)
        pieces = []
        for push in pushes:
            pieces.append(text.push(push))
            assert expected.startswith("".join(pieces)), "a stop string began to show"
        pieces.append(text.finish())
        assert "".join(pieces) == expected
        assert (text.stopped, text.num_tokens) == (stopped, num_tokens)
        assert text.push(ids) == "" or stopped is None


def test_only_what_could_become_a_stop_string_is_held_back() -> None:
    tokenizer = tokenizer_of("byte-level")
    text = TextStream(tokenizer, SamplingParams(stop=["STOP", "OPQ"]))
    shown = [text.push(tokenizer.encode(c)) for c in "xSTOxSTOPQ"]
    assert shown == ["x", "", "", "", "STOx", "", "", "", "", ""]
    assert (text.stopped, text.num_tokens, text.finish()) == ("STOP", 9, "")
    open_end = TextStream(tokenizer, SamplingParams(stop=["STOP"]))
    assert [open_end.push(tokenizer.encode(c)) for c in "aST"] == ["a", "", ""]
    assert open_end.finish() == "ST"


def test_an_incomplete_character_waits() -> None:
    tokenizer = tokenizer_of("sentencepiece")
    ids = tokenizer.encode("x\U0010abcdy", add_special_tokens=False)
    text = TextStream(tokenizer, SamplingParams())
    assert [text.push([i]) for i in ids] == ["x", "", "", "", "\U0010abcd", "y"]
    cut = TextStream(tokenizer, SamplingParams())
    assert cut.push(ids[:3]) == "x"
    assert cut.finish() == "\ufffd"


def test_the_leading_space_stays_after_a_prompt_with_text() -> None:
    tokenizer = tokenizer_of("sentencepiece")
    ids = tokenizer.encode("the", add_special_tokens=False)
    assert TextStream(tokenizer, SamplingParams(), []).push(ids) == "the"
    assert TextStream(tokenizer, SamplingParams(), [1]).push(ids) == "the"
    assert TextStream(tokenizer, SamplingParams(), [1, *ids]).push(ids) == " the"


@pytest.mark.parametrize(("include", "expected"), [(False, "a"), (True, "ab")])
def test_the_token_that_stopped_shows_only_when_asked(include: bool, expected: str) -> None:
    tokenizer = tokenizer_of("byte-level")
    a, b = tokenizer.encode("a")[0], tokenizer.encode("b")[0]
    text = TextStream(tokenizer, SamplingParams(stop_token_ids=[b], include_stop_str_in_output=include))
    assert text.push([a, b], ends_with_stop_token=True) + text.finish() == expected
    assert text.num_tokens == 2


def test_without_detokenization_there_is_no_text() -> None:
    text = TextStream(tokenizer_of("byte-level"), SamplingParams(detokenize=False))
    assert text.push([5, 6]) + text.finish() == ""
    assert text.num_tokens == 2


def test_a_token_costs_its_own_text_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: how many bytes are looked at grows with the output, not with its square."""
    tokenizer = tokenizer_of("byte-level")
    ids = tokenizer.encode("ab " * 3000)
    seen = 0
    real = tokenizer.token_bytes

    class Counting:
        def __call__(self, token_id: int) -> bytes:
            nonlocal seen
            seen += 1
            return real(token_id)

    monkeypatch.setattr(tokenizer, "token_bytes", Counting())
    text = TextStream(tokenizer, SamplingParams(stop=["never there"]), ids)
    begun = seen
    for i in ids:
        text.push([i])
    assert seen - begun == len(ids)
    assert begun < 10
    held: Any = text._held
    assert len(held) < len("never there")


@pytest.mark.parametrize("stop", ["a", "ab", "aab", "abab", "aaba", "abaab", "bbb"])
def test_every_short_text_is_searched_like_find(stop: str) -> None:
    """All texts of eight letters a and b, letter by letter and in two halves."""
    for number in range(2**8):
        text = f"{number:08b}".replace("0", "a").replace("1", "b")
        expected = text.find(stop) + len(stop) if stop in text else None
        for parts in (list(text), [text[:3], text[3:]], [text]):
            finder, before, found = _StopString(stop), 0, None
            for part in parts:
                end = finder.feed(part, report=True)
                if end is not None:
                    found = before + end
                    break
                before += len(part)
            assert found == expected


def test_a_character_that_the_prompt_began_is_completed() -> None:
    tokenizer = tokenizer_of("sentencepiece")
    ids = tokenizer.encode("x\U0010abcd", add_special_tokens=False)
    for cut in (1, 2, 3):
        text = TextStream(tokenizer, SamplingParams(), [*ids[:-cut], tokenizer.eos_token_id or 0])
        assert text.push(ids[-cut:]) == "\U0010abcd"
