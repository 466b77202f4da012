"""What grows with a request or an answer does not run on the event loop; what is small does, because a thread costs more."""

import asyncio
import json
import threading
from typing import Any

import pytest

from octavo.server import body, chat, completions, exposition, params, tokenization
from octavo.server.aside import MANY_BYTES, MANY_ENTRIES
from octavo.server.invocations import Invocations
from octavo.server.items import conversation
from octavo.server.options import ServerOptions
from tests.server.fakes import Bench, Exchange

MANY_IDS = [5] * (MANY_ENTRIES + 1)
TOOL = {"type": "function", "function": {"name": "f", "description": "x" * MANY_BYTES, "parameters": {"type": "object"}}}
TOOLS = {"tools": [TOOL], "tool_choice": "none"}
BIAS = {str(i): 1 for i in range(64)}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def bench(tmp_path: Any) -> Bench:
    return Bench(tmp_path / "tokenizer", ServerOptions(max_num_queued_tokens=1 << 20), context=1 << 20)


@pytest.mark.parametrize(
    ("module", "name", "path", "small", "large"),
    [
        (tokenization, "_tokenized", "/tokenize", {"prompt": "a"}, {"prompt": "a " * MANY_ENTRIES}),
        (tokenization, "_detokenized", "/detokenize", {"tokens": [5]}, {"tokens": MANY_IDS}),
        (completions, "split_prompts", "/v1/completions", {"prompt": [5]}, {"prompt": MANY_IDS}),
        (completions, "split_prompts", "/v1/completions", {"prompt": [[5], [6]]}, {"prompt": [MANY_IDS, [6]]}),
        (completions, "_decode", "/v1/completions", {"prompt": [5], "echo": True}, {"prompt": MANY_IDS, "echo": True}),
        (params, "build", "/v1/completions", {"prompt": "a"}, {"prompt": "a", "bad_words": [f"w{i}" for i in range(64)]}),
        (
            params,
            "build",
            "/v1/completions",
            {"prompt": "a"},
            {"prompt": ["a"] * 64, "logit_bias": BIAS},
        ),
        (body, "_decode_pieces", "/v1/completions", {"prompt": "a"}, {"prompt": "a " * MANY_BYTES}),
        (body, "_decode_pieces", "/invocations", {"prompt": "a"}, {"prompt": "a " * MANY_BYTES}),
        (Invocations, "_choose", "/invocations", {"prompt": "a"}, {"prompt": "a " * MANY_BYTES}),
        (
            conversation,
            "chat_request",
            "/v1/responses",
            {"input": "hi"},
            {"input": [{"role": "user", "content": "hi"}] * 1000},
        ),
        (chat, "read_tools", "/v1/chat/completions", {"messages": MESSAGES}, {"messages": MESSAGES, **TOOLS}),
    ],
)
def test_much_work_is_done_on_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, path: str, small: Any, large: Any
) -> None:
    work, threads = getattr(module, name), set[threading.Thread]()

    def watched(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread())
        return work(*args, **kwargs)

    monkeypatch.setattr(module, name, watched)
    assert bench.post(path, **small)[0] == 200
    assert threads == {threading.main_thread()}
    threads.clear()
    assert bench.post(path, **large)[0] == 200
    assert threads and threading.main_thread() not in threads


def test_an_answer_with_many_log_probabilities_is_made_on_a_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    whole = completions.CompletionAnswer.whole

    def watched(answer: completions.CompletionAnswer) -> Any:
        threads.append(threading.current_thread())
        return whole(answer)

    monkeypatch.setattr(completions.CompletionAnswer, "whole", watched)
    for prompt in ([5] * 10, [5] * (MANY_ENTRIES // 4)):
        assert bench.post("/v1/completions", prompt=prompt, max_tokens=2, prompt_logprobs=5)[0] == 200
    assert threads[0] is threading.main_thread() and threads[1] is not threading.main_thread()


def test_a_scrape_is_written_on_a_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    render, threads = exposition.render, []

    def watched(families: exposition.Families) -> bytes:
        threads.append(threading.current_thread())
        return render(families)

    monkeypatch.setattr(exposition, "render", watched)
    status, _, text = bench.call("GET", "/metrics")
    assert status == 200 and b"octavo_requests_running" in text
    assert threads and threads[0] is not threading.main_thread()


@pytest.mark.parametrize("path", ["/v1/completions", "/invocations"])
def test_a_body_may_come_in_pieces(bench: Bench, path: str) -> None:
    whole = json.dumps({"prompt": "one two " * 3000, "max_tokens": 2, "echo": True}).encode()
    answers = []
    for size in (len(whole), 1000, 65536):
        exchange = Exchange(bench.app, "POST", path)
        left = [whole[begin : begin + size] for begin in range(0, len(whole), size)]

        async def receive(exchange: Exchange = exchange, left: list[bytes] = left) -> dict[str, Any]:
            if left:
                return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}
            await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        exchange._receive = receive  # type: ignore[method-assign]
        asyncio.run(exchange.run())
        assert exchange.status == 200
        answers.append(json.loads(exchange.body)["choices"][0]["text"])
    assert len(set(answers)) == 1 and answers[0].startswith("one two one")


def test_errors_come_back_from_the_thread(bench: Bench) -> None:
    error = bench.error("/detokenize", tokens=[*MANY_IDS, 1 << 30])
    assert "out of vocabulary" in error["message"]
