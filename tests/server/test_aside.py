"""What grows with a request or an answer does not run on the event loop; what is small does, because a thread costs more."""

import threading
from typing import Any

import pytest

from octavo.server import chat, completions, params, tokenization
from octavo.server.aside import MANY_BYTES, MANY_ENTRIES
from octavo.server.options import ServerOptions
from tests.server.fakes import Bench

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


def test_errors_come_back_from_the_thread(bench: Bench) -> None:
    error = bench.error("/detokenize", tokens=[*MANY_IDS, 1 << 30])
    assert "out of vocabulary" in error["message"]
