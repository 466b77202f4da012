"""``vllm bench serve``: the requests that it really sends (see ``vllm_bench.py``), and in the answers what it reads."""

import json
from collections import defaultdict
from typing import Any

import httpx
import pytest

from tests.clients.conftest import KEY
from tests.clients.vllm_bench import WAYS, recorded
from tests.server.tiny import RunningServer

BY_WAY: dict[str, list[dict[str, Any]]] = defaultdict(list)
for request in recorded():
    BY_WAY[request["way"]].append(request)


def test_every_way_is_recorded() -> None:
    assert list(BY_WAY) == list(WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_its_requests_are_answered_as_it_reads_them(keyed_server: RunningServer, way: str) -> None:
    streams = 0
    for request in BY_WAY[way]:
        headers = request["headers"] | {"authorization": f"Bearer {KEY}"}
        url = f"{keyed_server.url}{request['path']}"
        with httpx.stream(request["method"], url, json=request["body"], headers=headers) as response:
            assert response.status_code == 200, response.read()
            if not (request["body"] or {}).get("stream"):
                continue
            streams += 1
            assert response.headers["content-type"].startswith("text/event-stream")
            asked = headers.get("x-request-id")
            assert asked is None or response.headers["x-request-id"] == asked
            check = _check_items if request["path"] == "/v1/responses" else _check_stream
            check(request["body"], "".join(response.iter_text()))
    assert streams >= 2


def _check_stream(body: dict[str, Any], text: str) -> None:
    """Chunks that each hold choices or, the last, the usage; ``ignore_eos`` gives exactly the tokens asked for."""
    *messages, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    *chunks, last = (json.loads(message.removeprefix("data: ")) for message in messages)
    assert chunks and all(chunk["choices"] for chunk in chunks) and not last["choices"]
    most = body.get("max_tokens", body.get("max_completion_tokens"))
    counted = last["usage"]["completion_tokens"]
    assert counted == most if body.get("ignore_eos") else 0 < counted <= most
    assert last["usage"]["prompt_tokens"] > 0
    chosen = [chunk["choices"][0] for chunk in chunks]
    texts = [choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in chosen]
    assert all(isinstance(piece, str) for piece in texts)
    if body.get("logprobs"):
        assert any(choice["logprobs"] for choice in chosen)


def _check_items(body: dict[str, Any], text: str) -> None:
    """Events with their names, some of text, the last with the usage."""
    events = [json.loads(message.split("\ndata: ")[1]) for message in text.removesuffix("\n\n").split("\n\n")]
    assert any(event["type"] == "response.output_text.delta" for event in events)
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    usage = events[-1]["response"]["usage"]
    assert usage["output_tokens"] == body["max_output_tokens"] and usage["input_tokens"] > 0
