"""Reasoning with a budget, and forms behind it, by a model that would never stop thinking: random weights, real engine."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.test_tools import TEMPLATE
from tests.server.test_tools_served import TOOLS, check
from tests.server.tiny import RunningServer, write_tiny_llama

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
FORM: dict[str, Any] = {"structured_outputs": {"regex": "yes|no, [a-z]{2,5}"}}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A KV cache too small for all requests at once: some are preempted and computed again."""
    directory = tmp_path_factory.mktemp("thinker")
    (directory / "template.jinja").write_text(TEMPLATE)
    model = write_tiny_llama(directory / "model")
    flags = ["--reasoning-parser", "qwen3", "--chat-template", str(directory / "template.jinja")]
    flags += ["--kv-cache-memory-bytes", "280000", "--preemption-mode", "recompute"]
    running = RunningServer(model, *flags).wait_ready()
    yield running
    running.kill()


def ask(server: RunningServer, *, thinks: bool = True, **fields: Any) -> list[dict[str, Any]]:
    fields = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": thinks}, "max_tokens": 60, "seed": 3, **fields}
    answer = httpx.post(f"{server.url}{CHAT}", json={**fields, "return_token_ids": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["choices"]
    return found


def streamed(server: RunningServer, *, thinks: bool = True, **fields: Any) -> tuple[str, str]:
    fields = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": thinks}, "max_tokens": 60, "seed": 3, **fields}
    reasoning = content = ""
    with httpx.stream("POST", f"{server.url}{CHAT}", json={**fields, "stream": True}, timeout=60) as stream:
        for line in stream.iter_lines():
            for one in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                reasoning += one["delta"].get("reasoning") or ""
                content += one["delta"].get("content") or ""
    return reasoning, content


def size(server: RunningServer, text: str) -> int:
    answer = httpx.post(f"{server.url}/tokenize", json={"prompt": text, "add_special_tokens": False})
    return int(answer.json()["count"])


@pytest.mark.parametrize("budget", [0, 1, 9])
def test_the_form_behind_a_budget(thinker: RunningServer, budget: int) -> None:
    choices = ask(thinker, **FORM, thinking_token_budget=budget, n=3)
    closing = size(thinker, "</think>")
    for choice in choices:
        message = choice["message"]
        assert re.fullmatch("yes|no, [a-z]{2,5}", message["content"]), message
        assert (message["reasoning"] is not None) == (budget > 0)
        answered = len(choice["token_ids"]) - budget - closing
        assert choice["finish_reason"] == "stop" and 1 <= answered <= 20
    assert streamed(thinker, **FORM, thinking_token_budget=budget) == (
        choices[0]["message"]["reasoning"] or "",
        choices[0]["message"]["content"],
    )


def test_thinking_that_the_template_rules_out(thinker: RunningServer) -> None:
    (choice,) = ask(thinker, thinks=False, **FORM, thinking_token_budget=9)
    assert re.fullmatch("yes|no, [a-z]{2,5}", choice["message"]["content"]) and choice["message"]["reasoning"] is None


def test_a_budget_alone(thinker: RunningServer) -> None:
    (free,) = ask(thinker, temperature=0)
    assert free["message"]["content"] is None and free["finish_reason"] == "length"
    (bounded,) = ask(thinker, temperature=0, thinking_token_budget=8)
    assert bounded["message"]["content"] and bounded["token_ids"][:8] == free["token_ids"][:8]
    assert free["message"]["reasoning"].startswith(bounded["message"]["reasoning"].rstrip("\ufffd"))


def test_calls_behind_a_budget(thinker: RunningServer) -> None:
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": "required",
        "max_tokens": 300,
        "parallel_tool_calls": False,
        "n": 2,
    }
    for choice in ask(thinker, **fields, temperature=1.0, thinking_token_budget=5):
        assert choice["message"]["reasoning"] and choice["finish_reason"] == "tool_calls"
        check(**choice["message"]["tool_calls"][0]["function"])


def test_the_same_in_company_that_preempts(thinker: RunningServer) -> None:
    wanted: list[dict[str, Any]] = [
        {"thinking_token_budget": budget, "seed": budget, **(FORM if budget % 2 else {}), "max_tokens": 150}
        for budget in range(20, 80, 3)
    ]
    alone = [ask(thinker, **fields) for fields in wanted]
    before = thinker.metric("octavo_preemptions_total")
    for _ in range(20):  # how many of them meet is up to the machine
        with ThreadPoolExecutor(len(wanted)) as pool:
            together = list(pool.map(lambda fields: ask(thinker, **fields), wanted))
        assert together == alone
        if thinker.metric("octavo_preemptions_total") > before:
            return
    pytest.fail("nothing was preempted")
