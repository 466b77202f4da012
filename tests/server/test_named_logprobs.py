"""``logprob_token_ids`` over HTTP: both shapes, whole and streamed, on a real engine, and what it cannot be combined with."""

import json
from typing import Any

import httpx
import pytest

from tests.server.fakes import Bench
from tests.server.tiny import RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SUBJECT: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "one two"},
    CHAT: {"messages": [{"role": "user", "content": "one two"}]},
}
NAMED = [300, 7, 300, 64]
COMMON: dict[str, Any] = {"temperature": 0, "max_tokens": 5, "ignore_eos": True, "return_tokens_as_token_ids": True}


def whole(server: RunningServer, path: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(server.url + path, json={**SUBJECT[path], **COMMON, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]["logprobs"]
    return found


def streamed(server: RunningServer, path: str, **fields: Any) -> list[dict[str, Any]]:
    body = {**SUBJECT[path], **COMMON, **fields, "stream": True}
    with httpx.stream("POST", server.url + path, json=body, timeout=60) as stream:
        chunks = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    return [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]


@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_completions(server: RunningServer, logprobs: int | None) -> None:
    found = whole(server, COMPLETIONS, logprobs=logprobs, logprob_token_ids=NAMED)
    everything = whole(server, COMPLETIONS, logprobs=20)
    assert found["tokens"] == everything["tokens"] and found["token_logprobs"] == everything["token_logprobs"]
    for token, logprob, top, likely in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], everything["top_logprobs"], strict=True
    ):
        assert list(top) == list(dict.fromkeys([token, "token_id:300", "token_id:7", "token_id:64"])) and top[token] == logprob
        for name in set(top) & set(likely):
            assert top[name] == pytest.approx(likely[name], abs=1e-5)
    pieces = streamed(server, COMPLETIONS, logprobs=logprobs, logprob_token_ids=NAMED)
    assert {key: [one for piece in pieces for one in piece[key]] for key in found} == found


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
def test_chat(server: RunningServer, fields: dict[str, Any]) -> None:
    found = whole(server, CHAT, **fields, logprob_token_ids=NAMED)["content"]
    assert len(found) == 5
    for entry in found:
        names = [top["token"] for top in entry["top_logprobs"]]
        assert names == list(dict.fromkeys([entry["token"], "token_id:300", "token_id:7", "token_id:64"]))
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
    pieces = streamed(server, CHAT, **fields, logprob_token_ids=NAMED)
    assert [entry for piece in pieces for entry in piece["content"]] == found


def test_an_empty_list_names_nothing(server: RunningServer) -> None:
    assert whole(server, COMPLETIONS, logprobs=2, logprob_token_ids=[]) == whole(server, COMPLETIONS, logprobs=2)
    assert whole(server, COMPLETIONS, logprob_token_ids=[]) is None


def test_the_best_of_several(server: RunningServer) -> None:
    fields = {"temperature": 1.0, "seed": 4, "best_of": 3, "n": 2, "logprob_token_ids": [7]}
    for top in whole(server, COMPLETIONS, **fields)["top_logprobs"]:
        assert "token_id:7" in top and len(top) in (1, 2)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"logprob_token_ids": [10**6]}, "out-of-vocab"),
        ({"logprob_token_ids": [-1]}, "negative"),
        ({"logprob_token_ids": list(range(129))}, "at most 128"),
        ({"logprob_token_ids": ["a"]}, "int"),
        ({"logprob_token_ids": 5}, "array"),
        ({"logprob_token_ids": [5], "use_beam_search": True, "n": 2}, "beam search"),
        ({"logprob_token_ids": [5], "echo": True, "max_tokens": 0}, "generated"),
    ],
)
def test_what_is_refused(bench: Bench, fields: dict[str, Any], complaint: str) -> None:
    error = bench.error(COMPLETIONS, prompt="hi", **fields)
    assert complaint in error["message"] and error["param"].startswith("logprob_token_ids"), error
