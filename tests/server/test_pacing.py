"""``stream_interval``: chunks of several tokens, the first token and the end at once, and nothing lost."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.output_processor import ChoiceUpdate
from octavo.outputs import TokenDelta
from octavo.request import Request
from octavo.server.engine_client import Mailbox
from octavo.server.pacing import Pacer
from octavo.step import TokenLogprobs
from tests.server.fakes import Bench
from tests.server.tiny import RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SUBJECT: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "one"}, CHAT: {"messages": [{"role": "user", "content": "one"}]}}


def update(index: int, tokens: list[int], *, last: bool) -> ChoiceUpdate:
    return ChoiceUpdate(
        index=index,
        text="".join(map(chr, tokens)),
        token_ids=tokens,
        logprobs=[TokenLogprobs(token, -1.0, 1, [], []) for token in tokens],
        finish_reason="stop" if last else None,
    )


@given(
    sizes=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=30),
    interval=st.integers(1, 7),
    at_once=st.integers(1, 5),
)
def test_what_leaves_joined_is_what_came(sizes: list[tuple[int, int]], interval: int, at_once: int) -> None:
    came = [update(index, [65 + place % 26] * size, last=False) for place, (index, size) in enumerate(sizes)]
    came += [update(index, [], last=True) for index in (0, 1)]
    pacer, left = Pacer(interval), list[ChoiceUpdate]()
    for begin in range(0, len(came), at_once):
        left += pacer.take(came[begin : begin + at_once])
    for index in (0, 1):
        mine, given_ = [u for u in left if u.index == index], [u for u in came if u.index == index]
        assert "".join(u.text for u in mine) == "".join(u.text for u in given_)
        assert [t for u in mine for t in u.token_ids] == [t for u in given_ for t in u.token_ids]
        assert [e.token_id for u in mine for e in u.logprobs or ()] == [t for u in given_ for t in u.token_ids]
        assert mine[-1].finish_reason == "stop"
        if interval > 1:
            assert all(len(u.token_ids) >= interval for u in mine[1:-1])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("interval", [None, 1, 4, 100])
def test_chunks_of_a_stream(server: RunningServer, path: str, interval: int | None) -> None:
    fields = {**SUBJECT[path], "temperature": 0, "max_tokens": 14, "ignore_eos": True, "return_token_ids": True}
    (whole,) = httpx.post(server.url + path, json={**fields, "stream_interval": interval}, timeout=60).json()["choices"]
    body = {**fields, "stream": True, "stream_interval": interval}
    with httpx.stream("POST", server.url + path, json=body, timeout=60) as stream:
        chunks = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    sizes = [len(choice["token_ids"]) for choice in choices if choice.get("token_ids")]
    assert sizes == {None: [1] * 14, 1: [1] * 14, 4: [1, 4, 4, 4, 1], 100: [1, 13]}[interval]
    assert [token for choice in choices for token in choice.get("token_ids") or ()] == whole["token_ids"]
    if path == COMPLETIONS:
        assert "".join(choice["text"] for choice in choices) == whole["text"]
    else:
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == whole["message"]["content"]
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("interval", [0, -3, 1.5, "a", True])
def test_intervals_that_are_none(bench: Bench, interval: Any) -> None:
    error = bench.error(COMPLETIONS, prompt="hi", stream=True, stream_interval=interval)
    assert error["param"] == "stream_interval" and "stream_interval" in error["message"]


def test_what_is_held_back_is_there_when_nothing_more_comes() -> None:
    pacer = Pacer(4)
    left = pacer.take([update(index, [65], last=False) for index in (1, 0)])
    left += pacer.take([update(index, [66 + index], last=False) for index in (1, 0)])
    assert [(u.index, u.text) for u in left] == [(1, "A"), (0, "A")]
    assert [(u.index, u.text) for u in pacer.rest()] == [(0, "B"), (1, "C")]
    assert pacer.rest() == []


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("interval", [1, 2, 100])
@pytest.mark.parametrize("at_once", [False, True])
def test_what_came_before_a_failure_is_sent_before_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str, interval: int, at_once: bool
) -> None:
    whole = bench.engine.token_ids[:3]

    def submit(request: Request, mailbox: Mailbox) -> None:
        deltas = [TokenDelta(request_id=request.id, branch=0, token_ids=[token]) for token in whole]
        deltas.append(TokenDelta(request_id=request.id, branch=0, token_ids=[], error="broken"))
        mailbox.expect_account()
        mailbox.put_account(None)
        loop = asyncio.get_running_loop()
        for number, delta in enumerate(deltas):
            loop.call_later(0.0 if at_once else 0.01 * number, mailbox.put, delta)

    monkeypatch.setattr(bench.engine, "submit", submit)
    fields = {**SUBJECT[path], "stream": True, "stream_interval": interval, "return_token_ids": True}
    status, _, body = bench.call("POST", path, fields)
    events = [line.removeprefix("data: ") for line in body.decode().splitlines() if line]
    assert status == 200 and events.pop() == "[DONE]"
    assert json.loads(events.pop())["error"]["code"] == 500
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids") or ()] == whole
