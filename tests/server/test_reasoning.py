"""Reasoning apart from content, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.reasoning import ReasoningSplitter
from octavo.structured.reasoning import STYLES, prompt_leaves_open


def split(style: str, pieces: list[str], *, inside: bool | None = None) -> tuple[str, str]:
    splitter = ReasoningSplitter(STYLES[style], inside=inside)
    parts = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


CASES = [
    ("qwen3", None, "<think>\nhm, so\n</think>\n\nYes.", "hm, so", "Yes."),
    ("qwen3", None, "\n<think></think>Yes.", "", "Yes."),
    ("qwen3", None, " Yes. <think> is a tag.", "", " Yes. <think> is a tag."),
    ("qwen3", None, "<thi", "", "<thi"),
    ("qwen3", None, "<think>cut </thi", "cut </thi", ""),
    ("qwen3", True, "hm\n</think>\nYes.\n", "hm", "Yes.\n"),
    ("qwen3", True, "<think>hm</think>Yes", "hm", "Yes"),
    ("qwen3", False, "\n\nYes. </think>", "", "Yes. </think>"),
    ("deepseek_r1", None, "hm</think>Yes", "hm", "Yes"),
    ("deepseek_r1", None, "<think>\nhm</think> Yes </think> no", "hm", "Yes </think> no"),
    ("deepseek_r1", None, "never ends <th", "never ends <th", ""),
    ("deepseek_r1", False, "Yes", "", "Yes"),
    ("deepseek_r1", None, "", "", ""),
]


@pytest.mark.parametrize(("style", "inside", "text", "reasoning", "content"), CASES)
def test_split(style: str, inside: bool | None, text: str, reasoning: str, content: str) -> None:
    assert split(style, [text], inside=inside) == (reasoning, content)
    assert split(style, list(text), inside=inside) == (reasoning, content)


@given(
    style=st.sampled_from(sorted(STYLES)),
    inside=st.sampled_from([None, True, False]),
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "thi", "nk>", " ", "\n", "x", "ä", "</"]), max_size=12),
)
def test_pieces_joined_are_the_whole(style: str, inside: bool | None, pieces: list[str]) -> None:
    assert split(style, pieces, inside=inside) == split(style, ["".join(pieces)], inside=inside)


def test_where_the_prompt_leaves_the_model() -> None:
    assert prompt_leaves_open("user: what is <think>?\nassistant:", "") is None
    assert prompt_leaves_open("assistant: <think>\n", "") is True
    assert prompt_leaves_open("assistant: <think>\n\n</think>\n\n", "") is False
    assert prompt_leaves_open("assistant: <think> so far", "<think> so far") is True
    assert prompt_leaves_open("assistant: <think> so </think> it", "<think> so </think> it") is False
