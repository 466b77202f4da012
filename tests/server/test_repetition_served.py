"""Outputs that repeat themselves end, over HTTP: on a real engine, whole and streamed."""

import json
from typing import Any

import httpx
import pytest

from tests.server.fakes import Bench
from tests.server.tiny import RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SUBJECT: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
ONE_TOKEN: dict[str, Any] = {"allowed_token_ids": [300], "max_tokens": 30, "return_token_ids": True, "n": 2, "temperature": 1}
WATCHED = {"repetition_detection": {"max_pattern_size": 2, "min_count": 3}}


def ask(server: RunningServer, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = httpx.post(server.url + path, json={**SUBJECT[path], **ONE_TOKEN, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["choices"]
    return found


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("watched", "fields", "length"),
    [
        ({"max_pattern_size": 2, "min_count": 3}, {}, 3),
        ({"max_pattern_size": 2, "min_pattern_size": 2, "min_count": 3}, {}, 6),
        ({"max_pattern_size": 1, "min_count": 3}, {"min_tokens": 9}, 9),
    ],
)
def test_an_output_that_repeats_itself_ends(
    server: RunningServer, path: str, watched: dict[str, int], fields: dict[str, Any], length: int
) -> None:
    for choice in ask(server, path, repetition_detection=watched, **fields):
        assert choice["token_ids"] == [300] * length
        assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")


def test_the_stream_says_the_same(server: RunningServer) -> None:
    body = {**SUBJECT[CHAT], **ONE_TOKEN, **WATCHED, "stream": True}
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=60) as stream:
        chunks = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    pieces = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == 1]
    assert [token for piece in pieces for token in piece.get("token_ids") or ()] == [300] * 3
    assert (pieces[-1]["finish_reason"], pieces[-1]["stop_reason"]) == ("repetition", "repetition_detected")


@pytest.mark.parametrize("watched", [None, {}, {"max_pattern_size": 0}, {"max_pattern_size": 3, "min_count": 31}])
def test_what_does_not_repeat_often_enough(server: RunningServer, watched: Any) -> None:
    (choice, _) = ask(server, COMPLETIONS, repetition_detection=watched)
    assert choice["finish_reason"] == "length" and len(choice["token_ids"]) == 30


@pytest.mark.parametrize(
    ("watched", "param", "complaint"),
    [
        ({"max_pattern_size": 2}, ".min_count", "at least 2"),
        ({"max_pattern_size": 2, "min_count": 1}, ".min_count", "at least 2"),
        ({"max_pattern_size": -1, "min_count": 2}, ".max_pattern_size", "between 0"),
        ({"max_pattern_size": 5000, "min_count": 2}, ".max_pattern_size", "4096"),
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, ".min_pattern_size", "max_pattern_size=2"),
        ({"max_pattern_size": "a"}, ".max_pattern_size", "int"),
        ({"max_pattern_size": 2, "more": 1}, "", "more"),
        (True, "", "object"),
    ],
)
def test_what_is_refused(bench: Bench, watched: Any, param: str, complaint: str) -> None:
    error = bench.error(CHAT, messages=SUBJECT[CHAT]["messages"], repetition_detection=watched)
    assert error["param"] == f"repetition_detection{param}" and complaint in error["message"], error


def test_beams_are_not_watched(bench: Bench) -> None:
    error = bench.error(COMPLETIONS, prompt="hi", n=2, use_beam_search=True, **WATCHED)
    assert error["param"] == "repetition_detection" and "beam search" in error["message"]
