"""Forced calls by a model that knows nothing of tools: random weights, real engine, real grammar."""

import json
from typing import Any

import httpx
import pytest

from tests.server.tiny import RunningServer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "parameters": {
                "type": "object",
                "properties": {"to": {"enum": ["left", "right"]}, "fast": {"type": "boolean"}},
                "required": ["to", "fast"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
CHAT = {"messages": [{"role": "user", "content": "go"}], "tools": TOOLS, "max_tokens": 300, "parallel_tool_calls": False}


def check(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    if name == "stop":
        assert value == {}
    else:
        assert name == "move" and value.keys() == {"to", "fast"}
        assert value["to"] in ("left", "right") and isinstance(value["fast"], bool)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "move"}}])
def test_forced_calls_are_valid(server: RunningServer, choice: Any) -> None:
    fields = {**CHAT, "tool_choice": choice, "temperature": 1.0, "seed": 7, "n": 4}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=fields, timeout=60).json()
    whole = []
    for one in answer["choices"]:
        assert one["finish_reason"] == ("tool_calls" if choice == "required" else "stop"), one
        (call,) = one["message"]["tool_calls"]
        check(**call["function"])
        whole.append(call["function"])
    streamed: list[dict[str, str]] = [{"name": "", "arguments": ""} for _ in whole]
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**fields, "stream": True}, timeout=60) as stream:
        for line in stream.iter_lines():
            for one in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                for call in one["delta"].get("tool_calls", ()):
                    streamed[one["index"]]["name"] += call["function"].get("name", "")
                    streamed[one["index"]]["arguments"] += call["function"]["arguments"]
    assert streamed == whole
