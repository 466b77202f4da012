"""Tools and reasoning over HTTP: what is asked of the model, and what comes of what it says, whole and streamed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.request import Thinking
from octavo.server.call_grammar import forced_schema
from octavo.server.chat_text import ChatText, TextPlan
from octavo.server.options import ServerOptions
from octavo.server.reasoning import ReasoningSplitter
from octavo.server.tool_choice import Function, Tools
from octavo.server.tools import PARSERS
from octavo.server.tools.forced import RequiredParser
from octavo.structured.reasoning import STYLES
from tests.server.fakes import Bench

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    '<tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_call_id is defined %}{{ m.tool_call_id }}: {% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined %}"
    "{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
HELLO = [{"role": "user", "content": "How is the weather in Köln?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def make(directory: Path, *, template: str = TEMPLATE, **options: Any) -> Bench:
    return Bench(directory / "tokenizer", ServerOptions(**options), template=template, context=4096)


@pytest.fixture
def tooled(tmp_path: Path) -> Bench:
    return make(tmp_path)


def say(bench: Bench, text: str) -> None:
    bench.engine.token_ids = bench.tokenizer.encode(text, add_special_tokens=False)


def streamed(bench: Bench, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a stream, joined as clients join them, in the form of whole ones."""
    status, _, body = bench.call("POST", CHAT, {**fields, "stream": True})
    assert status == 200, body
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            joined = choices.setdefault(choice["index"], {"content": "", "reasoning": "", "calls": [], "logprobs": []})
            delta = choice["delta"]
            joined["content"] += delta.get("content") or ""
            joined["reasoning"] += delta.get("reasoning") or ""
            joined["logprobs"] += (choice["logprobs"] or {}).get("content", [])
            for call in delta.get("tool_calls", []):
                if call["index"] == len(joined["calls"]):
                    assert call["type"] == "function" and call["id"]
                    joined["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                joined["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            joined["finish_reason"] = choice["finish_reason"]
    return [choices[i] for i in sorted(choices)]


def whole(bench: Bench, **fields: Any) -> list[dict[str, Any]]:
    status, answer = bench.post(CHAT, **fields)
    assert status == 200, answer
    return [
        {
            "content": choice["message"]["content"] or "",
            "reasoning": choice["message"]["reasoning"] or "",
            "calls": [{"id": call["id"], **call["function"]} for call in choice["message"].get("tool_calls", [])],
            "logprobs": (choice["logprobs"] or {}).get("content", []),
            "finish_reason": choice["finish_reason"],
        }
        for choice in answer["choices"]
    ]


def without_ids(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every answer has ids of its own."""
    for choice in choices:
        for call in choice["calls"]:
            assert re.fullmatch(r"chatcmpl-tool-[0-9a-f]{32}|[a-zA-Z0-9]{9}", call.pop("id"))
    return choices


def both(bench: Bench, **fields: Any) -> dict[str, Any]:
    """The first choice, the same streamed and whole."""
    fields = {"messages": HELLO, **fields}
    choices = without_ids(whole(bench, **fields))
    assert without_ids(streamed(bench, **fields)) == choices
    return choices[0]


def test_a_call_that_the_model_decides_on(tooled: Bench) -> None:
    say(tooled, f"I will look.\n{CALL}\n{CALL.replace('Köln', 'Rom')}")
    assert both(tooled, tools=[WEATHER]) == {
        "content": "I will look.",
        "reasoning": "",
        "calls": [
            {"name": "weather", "arguments": '{"city": "Köln"}'},
            {"name": "weather", "arguments": '{"city": "Rom"}'},
        ],
        "logprobs": [],
        "finish_reason": "tool_calls",
    }
    assert tooled.engine.requests[0].params.structured_outputs is None


def test_the_body_with_a_call(tooled: Bench) -> None:
    say(tooled, CALL)
    _, answer = tooled.post(CHAT, messages=HELLO, tools=[WEATHER])
    message = answer["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert message["content"] is None and list(call) == ["id", "type", "function"] and call["type"] == "function"
    say(tooled, "Fine.")
    _, answer = tooled.post(CHAT, messages=HELLO, tools=[WEATHER])
    assert "tool_calls" not in answer["choices"][0]["message"] and answer["choices"][0]["finish_reason"] == "stop"


def test_the_chunks_with_a_call(tooled: Bench) -> None:
    say(tooled, CALL)
    _, _, body = tooled.call("POST", CHAT, {"messages": HELLO, "tools": [WEATHER], "stream": True})
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    role, call, last = (event["choices"][0] for event in events)
    assert role["delta"] == {"role": "assistant", "content": ""}
    (delta,) = call["delta"]["tool_calls"]
    assert list(delta) == ["id", "type", "index", "function"]
    assert delta["function"] == {"name": "weather", "arguments": '{"city": "Köln"}'} and call["finish_reason"] is None
    assert last["delta"] == {} and last["finish_reason"] == "tool_calls"


def test_tools_and_earlier_calls_are_in_the_prompt(tooled: Bench) -> None:
    say(tooled, "Fine.")
    call = {"id": "x1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "function_call": None},
        {"role": "tool", "tool_call_id": "x1", "content": [{"type": "text", "text": "rain"}]},
        {"role": "assistant", "content": "Wet.", "tool_calls": []},
        {"role": "user", "content": "Thanks"},
    ]
    fields = {"messages": messages, "tools": [WEATHER], "return_prompt_text": True, "tool_choice": "none"}
    _, answer = tooled.post(CHAT, **fields)
    prompt = answer["prompt_text"]
    assert json.dumps(WEATHER) in prompt
    assert '<|im_start|>assistant\n<tool_call>weather {"city": "Köln"}</tool_call><|im_end|>' in prompt
    assert "<|im_start|>tool\nx1: rain<|im_end|>" in prompt and "assistant\nWet.<|im_end|>" in prompt
    _, tokens = tooled.post("/tokenize", messages=messages, tools=[WEATHER])
    assert tokens["tokens"] == tooled.engine.requests[0].prompt_token_ids


def test_none_leaves_text_alone(tooled: Bench) -> None:
    say(tooled, CALL)
    assert both(tooled, tools=[WEATHER], tool_choice="none")["content"] == CALL


def test_what_is_no_call_is_content(tooled: Bench) -> None:
    say(tooled, f"{CALL[:-20]} never mind")
    found = both(tooled, tools=[WEATHER])
    assert found["content"] == f"{CALL[:-20]} never mind" and found["finish_reason"] == "stop"


def test_a_call_that_is_cut_short_is_content(tooled: Bench) -> None:
    say(tooled, CALL)
    found = both(tooled, tools=[WEATHER], max_tokens=len(tooled.engine.token_ids) // 2)
    assert found["content"].startswith("<tool_call>") and found["finish_reason"] == "length" and not found["calls"]


def test_one_call_when_calls_must_not_be_parallel(tooled: Bench) -> None:
    say(tooled, f"{CALL}\n{CALL}")
    assert len(both(tooled, tools=[WEATHER], parallel_tool_calls=False)["calls"]) == 1


def test_calls_with_several_choices_logprobs_usage_and_stop(tooled: Bench) -> None:
    say(tooled, f"Well.\n{CALL}")
    count = len(tooled.engine.token_ids) + 1
    found = both(tooled, tools=[WEATHER], n=3, logprobs=True, return_token_ids=True)
    assert len(found["logprobs"]) == count and len(found["calls"]) == 1
    _, answer = tooled.post(CHAT, messages=HELLO, tools=[WEATHER], n=3)
    assert answer["usage"]["completion_tokens"] == 3 * count
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in answer["choices"]}) == 3
    stopped = both(tooled, tools=[WEATHER], stop=["</tool_call>"])
    assert len(stopped["calls"]) == 1 and stopped["finish_reason"] == "tool_calls"
    assert not both(tooled, tools=[WEATHER], stop=['"arguments"'])["calls"]


def test_required_is_forced_by_a_schema(tooled: Bench) -> None:
    say(tooled, '[{"name": "weather", "parameters": {"city": "Köln"}}, {"name": "now", "parameters": {}}]')
    found = both(tooled, tools=[WEATHER, NOW], tool_choice="required")
    assert found["finish_reason"] == "tool_calls" and not found["content"]
    assert found["calls"] == [{"name": "weather", "arguments": '{"city": "Köln"}'}, {"name": "now", "arguments": "{}"}]
    forced = tooled.engine.requests[0].params.structured_outputs
    assert forced is not None
    schema = json.loads(forced.json)
    assert schema["minItems"] == 1 and "maxItems" not in schema
    assert [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]] == ["weather", "now"]
    both(tooled, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    forced = tooled.engine.requests[-1].params.structured_outputs
    assert forced is not None and json.loads(forced.json)["maxItems"] == 1


def test_a_named_function_is_forced_by_its_schema(tooled: Bench) -> None:
    say(tooled, '{"city": "Köln"}')
    choice = {"type": "function", "function": {"name": "weather"}}
    found = both(tooled, tools=[NOW, WEATHER], tool_choice=choice)
    assert found["calls"] == [{"name": "weather", "arguments": '{"city": "Köln"}'}] and found["finish_reason"] == "stop"
    forced = tooled.engine.requests[0].params.structured_outputs
    assert forced is not None
    assert json.loads(forced.json) == WEATHER["function"]["parameters"]  # type: ignore[index]
    assert forced.disable_additional_properties
    cut = both(tooled, tools=[WEATHER], tool_choice=choice, max_tokens=2)
    assert '{"city": "Köln"}'.startswith(cut["calls"][0]["arguments"]) and cut["finish_reason"] == "length"


def test_references_in_parameters_stay_inside_them() -> None:
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/n"}, "enum": {"$ref": "#"}},
        "$defs": {"n": {"enum": [1]}},
    }
    tools = Tools(definitions=[], functions=(Function("a"), Function("b", node)), choice="required")
    moved = forced_schema(tools)["$defs"]["1"]
    assert moved["properties"] == {"next": {"$ref": "#/$defs/1/$defs/n"}, "enum": {"$ref": "#/$defs/1"}}
    assert moved["$defs"] == {"n": {"enum": [1]}}
    constants = {"type": "object", "properties": {"x": {"const": {"$ref": "#/not/a/reference"}}}}
    tools = Tools(definitions=[], functions=(Function("c", constants),), choice="required")
    assert forced_schema(tools)["$defs"]["0"]["properties"] == constants["properties"]


DEEP: dict[str, Any] = {"type": "object"}
for _ in range(20):
    DEEP = {"type": "object", "properties": {"x": DEEP}}


def of(parameters: Any, name: Any = "f") -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": parameters}}]


REFUSED = [
    (
        {"tools": []},
        "tools",
        "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
    ),
    ({"tools": [NOW] * 129}, "tools", "at most 128"),
    ({"tools": [{"type": "retrieval"}]}, "tools", "tools[0] must be"),
    ({"tools": [{"type": "function"}]}, "tools", "tools[0] must be"),
    ({"tools": [NOW, {"type": "function", "function": {}}]}, "tools", "tools[1].function is malformed"),
    ({"tools": of(None, name="")}, "tools", "printable characters"),
    ({"tools": of(None, name="x" * 257)}, "tools", "printable characters"),
    ({"tools": of("string")}, "tools", "malformed"),
    ({"tools": of({"type": "string"})}, "tools", 'its type must be "object"'),
    ({"tools": of({"description": "x" * 70000})}, "tools", "longer than 65536 bytes"),
    ({"tools": of(DEEP)}, "tools", "nested deeper than 32 levels"),
    ({"tools": of({"properties": {"x": {"enum": list(range(4097))}}})}, "tools", "more than 4096"),
    (
        {"tools": [*of({"description": "x" * 40000}), *of({"description": "x" * 40000})], "tool_choice": "required"},
        "tools",
        "at most 65536 bytes",
    ),
    ({"tools": "x"}, "tools", "expected"),
    ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice", "Invalid value for `tool_choice`: sometimes!"),
    ({"tools": [NOW], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "Invalid value for `tool_choice`"),
    (
        {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        "tool_choice",
        "'weather', which is not among",
    ),
    ({"tool_choice": "auto"}, "tool_choice", "When using `tool_choice`, `tools` must be set."),
    ({"tools": [NOW], "tool_choice": "required", "use_beam_search": True, "n": 2}, "tool_choice", "use_beam_search"),
    ({"functions": [{"name": "f"}]}, "functions", "not supported"),
    ({"function_call": "auto"}, "function_call", "not supported"),
]


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED)
def test_refusals(tooled: Bench, fields: dict[str, Any], param: str, message: str) -> None:
    error = tooled.error(CHAT, messages=HELLO, **fields)
    assert message in error["message"] and error["param"] == param and error["code"] == 400
    assert not tooled.engine.requests


def test_the_model_cannot_decide_where_its_calls_cannot_be_read(tmp_path: Path) -> None:
    unknown = make(tmp_path / "unknown", template="{{ messages[0].content }}{{ tools }}")
    off = make(tmp_path / "off", enable_auto_tool_choice=False)
    for bench, words in ((unknown, "needs --tool-call-parser"), (off, "is off, by --no-enable-auto-tool-choice")):
        error = bench.error(CHAT, messages=HELLO, tools=[NOW])
        assert error["message"].startswith(f'"auto" tool choice {words}')
        say(bench, "{}")
        assert both(bench, tools=[NOW], tool_choice={"type": "function", "function": {"name": "now"}})["calls"]
    told = make(tmp_path / "told", template="{{ messages[0].content }}{{ tools }}", tool_call_parser="pythonic")
    say(told, "[now()]")
    assert both(told, tools=[NOW])["calls"] == [{"name": "now", "arguments": "{}"}]


def test_a_template_that_hides_tools_is_a_warning(tmp_path: Path) -> None:
    bench = make(tmp_path, template="{{ messages[0].content }}", tool_call_parser="hermes")
    _, answer = bench.post(CHAT, messages=HELLO, tools=[NOW])
    assert answer["warnings"] == ["this model's chat template does not show `tools` to the model"]


def test_what_the_template_does_not_read_is_a_warning(tooled: Bench) -> None:
    """Proxies send ``enable_thinking`` to every model."""
    told = ["`chat_template_kwargs`: this model's chat template does not use 'thinking'"]
    for path in (CHAT, "/tokenize"):
        status, answer = tooled.post(path, messages=HELLO, chat_template_kwargs={"thinking": False})
        assert (status, answer["warnings"]) == (200, told)
    body = tooled.call("POST", CHAT, {"messages": HELLO, "chat_template_kwargs": {"thinking": False}, "stream": True})[2]
    assert body.count(b"does not use") == 1


def test_a_broken_call_in_the_conversation_is_a_warning(tooled: Bench) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"a": "cut'}}
    asked = {"messages": [*HELLO, {"role": "assistant", "tool_calls": [call]}, *HELLO], "tools": [NOW]}
    told = ["a tool call among the messages has arguments that are no JSON object; the model sees them as they are"]
    for path in (CHAT, "/tokenize"):
        status, answer = tooled.post(path, **asked)
        assert (status, answer["warnings"]) == (200, told)
    prompt = tooled.tokenizer.decode(tooled.engine.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert json.dumps('{"a": "cut') in prompt


def test_developers_are_the_system_of_most_models(tooled: Bench) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}, *HELLO]
    status, answer = tooled.post("/tokenize", messages=messages)
    prompt = tooled.tokenizer.decode(answer["tokens"], skip_special_tokens=False)
    assert status == 200 and "<|im_start|>system\nBe kind.\n\nBe brief.<|im_end|>" in prompt
    assert tooled.post(CHAT, messages=messages)[0] == 200
    assert tooled.engine.requests[0].prompt_token_ids == answer["tokens"]


def test_thinking_parts_of_earlier_answers_are_taken(tooled: Bench) -> None:
    parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Rain"}]
    said = {"role": "assistant", "content": parts}
    assert tooled.post(CHAT, messages=[*HELLO, said, *HELLO])[0] == 200
    say(tooled, " and wind.")
    found = both(tooled, messages=[*HELLO, said], continue_final_message=True, echo=True)
    assert found["content"] == "Rain and wind."


def test_a_second_forced_call_that_is_cut_leaves_nothing(tooled: Bench) -> None:
    say(tooled, '[{"name": "now", "parameters": {}},\n\n{\n  "name": "')
    found = both(tooled, tools=[NOW], tool_choice="required")
    assert (found["content"], found["calls"]) == ("", [{"name": "now", "arguments": "{}"}])


def test_strict_functions_confine_what_the_model_decides_on(tmp_path: Path) -> None:
    strict = {"type": "function", "function": {**NOW["function"], "strict": True}}  # type: ignore[dict-item]
    bench = make(tmp_path / "hermes")
    say(bench, "Fine.")
    assert "warnings" not in bench.post(CHAT, messages=HELLO, tools=[strict, WEATHER])[1]
    confined = bench.engine.requests[0].params.structured_outputs
    assert confined is not None and confined.grammar is not None and "<tool_call>" in confined.grammar
    bench = make(tmp_path / "pythonic", tool_call_parser="pythonic")
    (warning,) = bench.post(CHAT, messages=HELLO, tools=[strict])[1]["warnings"]
    assert "`strict` has no effect" in warning and bench.engine.requests[0].params.structured_outputs is None


def test_a_schema_that_cannot_be_kept_to_is_named(tooled: Bench) -> None:
    bad = of({"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}})[0]
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        error = tooled.error(CHAT, messages=HELLO, tools=[NOW, bad], tool_choice=choice)
        assert error["param"].startswith("tools[1].function.parameters"), error
    assert both(tooled, tools=[NOW, bad])["finish_reason"] == "stop"


def test_markers_that_are_special_tokens_are_kept_for_the_parser(tmp_path: Path) -> None:
    bench = make(tmp_path, tool_call_parser="mistral")
    say(bench, '[TOOL_CALLS] [{"name": "now", "arguments": {}}]')
    _, answer = bench.post(CHAT, messages=HELLO, tools=[NOW])
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", answer["choices"][0]["message"]["tool_calls"][0]["id"])
    bench.post(CHAT, messages=HELLO)
    bench.post(CHAT, messages=HELLO, tools=[NOW], skip_special_tokens=True)
    assert [request.params.skip_special_tokens for request in bench.engine.requests] == [False, True, True]


def test_reasoning_apart(tmp_path: Path) -> None:
    bench = make(tmp_path, reasoning_parser="qwen3")
    say(bench, f"<think>\nThe weather…\n</think>\n\nI will look.\n{CALL}")
    found = both(bench, tools=[WEATHER])
    assert (found["reasoning"], found["content"], len(found["calls"])) == ("The weather…", "I will look.", 1)
    assert both(bench, tools=[WEATHER], include_reasoning=False)["reasoning"] == ""
    _, answer = bench.post(CHAT, messages=HELLO, max_tokens=12)
    message = answer["choices"][0]["message"]
    assert message["content"] is None and message["reasoning"] and "tool_calls" not in message


def test_reasoning_that_the_prompt_opens_or_rules_out(tmp_path: Path) -> None:
    bench = make(tmp_path, reasoning_parser="qwen3")
    say(bench, "Hm.</think>Rain.")
    found = both(bench, chat_template_kwargs={"enable_thinking": True})
    assert (found["reasoning"], found["content"]) == ("Hm.", "Rain.")
    found = both(bench, chat_template_kwargs={"enable_thinking": False})
    assert (found["reasoning"], found["content"]) == ("", "Hm.</think>Rain.")
    begun = [*HELLO, {"role": "assistant", "content": "<think>Well,"}]
    found = both(bench, messages=begun, continue_final_message=True)
    assert (found["reasoning"], found["content"]) == ("Hm.", "Rain.")


def test_forced_calls_behind_reasoning(tmp_path: Path) -> None:
    bench = make(tmp_path, reasoning_parser="deepseek_r1")
    say(bench, 'Hm.</think>\n[{"name": "now", "parameters": {}}]')
    found = both(bench, tools=[NOW], tool_choice="required")
    assert found["reasoning"] == "Hm." and found["calls"] == [{"name": "now", "arguments": "{}"}] and not found["content"]
    request = bench.engine.requests[0]
    assert request.params.structured_outputs is not None and request.params.structured_outputs.json is not None
    assert request.thinking == Thinking(opening="<think>", closing="</think>", tagged=True, implied=True)


@pytest.mark.parametrize("name", ["reasoning_effort", "verbosity"])
def test_effort_and_verbosity_are_variables_of_the_template(tmp_path: Path, name: str) -> None:
    bench = make(tmp_path / "has", template=f"{{{{ messages[0].content }}}} {{{{ {name} }}}}")
    _, answer = bench.post(CHAT, messages=HELLO, return_prompt_text=True, **{name: "low"})
    assert answer["prompt_text"].endswith(" low") and "warnings" not in answer
    status, answer = make(tmp_path / "lacks", strict=True).post(CHAT, messages=HELLO, **{name: "low"})
    assert status == 200 and f"`{name}` has no effect" in answer["warnings"][0]


def test_documents_are_a_variable_of_the_template(tmp_path: Path) -> None:
    template = "{% for d in documents or [] %}{{ d.title }}: {{ d['text'] }}\n{% endfor %}{{ messages[0].content }}"
    bench = make(tmp_path / "has", template=template)
    documents = [{"title": "Köln", "text": "It rains."}, {"title": "Rom", "text": "<b>", "more": [1]}]
    for stream in (False, True):
        fields = {"messages": HELLO, "documents": documents, "return_prompt_text": True, "stream": stream}
        _, _, body = bench.call("POST", CHAT, fields)
        first = json.loads(body.decode().splitlines()[0].removeprefix("data: "))
        assert first["prompt_text"] == "Köln: It rains.\nRom: <b>\n" + HELLO[0]["content"] and "warnings" not in first
    nothing: list[Any] = [None, []]
    for none in nothing:
        _, answer = bench.post(CHAT, messages=HELLO, documents=none, return_prompt_text=True)
        assert answer["prompt_text"] == HELLO[0]["content"] and "warnings" not in answer
    _, answer = make(tmp_path / "lacks").post(CHAT, messages=HELLO, documents=documents)
    assert "does not show `documents`" in answer["warnings"][0]


@pytest.mark.parametrize("documents", ["text", {"a": 1}, ["text"], [None], [{}] * 1025])
def test_documents_that_are_none(tooled: Bench, documents: Any) -> None:
    error = tooled.error(CHAT, messages=HELLO, documents=documents)
    assert error["param"].startswith("documents") and "documents" in error["message"], error


def test_documents_that_are_too_much_to_render(tmp_path: Path) -> None:
    template = "{% for d in documents %}{% for e in documents %}{{ d.text }}{% endfor %}{% endfor %}"
    error = make(tmp_path, template=template).error(CHAT, messages=HELLO, documents=[{"text": "x" * 100}] * 1000)
    assert "too much to render" in error["message"]


OBJECT = {"type": "json_schema", "json_schema": {"type": "object"}}
FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "[{].*[}]"}},
    {
        "response_format": {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": "",
                "content": {"type": "json_schema", "json_schema": {"type": "object"}},
                "end": "",
            },
        }
    },
]


@pytest.mark.parametrize("form", FORMS, ids=["json_object", "regex", "structural_tag"])
def test_a_form_begins_behind_the_reasoning(tmp_path: Path, form: dict[str, Any]) -> None:
    bench = make(tmp_path, reasoning_parser="qwen3")
    say(bench, '<think>Hm.</think>\n\n{"a": 1}')
    found = both(bench, **form)
    assert (found["reasoning"], found["content"]) == ("Hm.", '{"a": 1}')
    assert bench.engine.requests[-1].thinking == Thinking(opening="<think>", closing="</think>", tagged=True, implied=False)
    say(bench, 'Hm.</think>{"a": 1}')
    found = both(bench, **form, chat_template_kwargs={"enable_thinking": True})
    assert (found["reasoning"], found["content"]) == ("Hm.", '{"a": 1}')
    assert bench.engine.requests[-1].thinking == Thinking(opening="<think>", closing="</think>", tagged=False, implied=True)
    say(bench, '{"a": 1}')
    found = both(bench, **form, chat_template_kwargs={"enable_thinking": False})
    assert (found["reasoning"], found["content"]) == ("", '{"a": 1}')
    assert bench.engine.requests[-1].thinking is None


def test_a_form_from_the_first_token_on_where_the_operator_wants_it(tmp_path: Path) -> None:
    bench = make(tmp_path, reasoning_parser="deepseek_r1", structured_outputs_in_reasoning=True)
    say(bench, '{"a": 1}')
    found = both(bench, response_format={"type": "json_object"})
    assert (found["reasoning"], found["content"]) == ("", '{"a": 1}')
    assert bench.engine.requests[-1].thinking is None
    say(bench, "Hm.</think>Rain.")
    assert both(bench)["reasoning"] == "Hm."


def test_a_budget_of_reasoning_is_the_engines_to_keep(tmp_path: Path) -> None:
    bench = make(tmp_path, reasoning_parser="qwen3")
    say(bench, "<think>Hm.</think>Rain.")
    assert both(bench, thinking_token_budget=7)["reasoning"] == "Hm."
    request = bench.engine.requests[-1]
    assert request.params.thinking_token_budget == 7 and request.thinking is not None
    both(bench, thinking_token_budget=7, chat_template_kwargs={"enable_thinking": False})
    request = bench.engine.requests[-1]
    assert request.params.thinking_token_budget is None and request.thinking is None
    both(bench, thinking_token_budget=-1)
    assert bench.engine.requests[-1].params.thinking_token_budget is None and bench.engine.requests[-1].thinking is None
    for prompt, tagged in (("Why?", True), ("Why?<think>", False), ("<think>a</think> b <think>c", False)):
        bench.post("/v1/completions", prompt=prompt, thinking_token_budget=3)
        request = bench.engine.requests[-1]
        assert request.thinking is not None and request.thinking.tagged == tagged, prompt
    bench.post("/v1/completions", prompt="<think>a</think>", thinking_token_budget=3)
    assert bench.engine.requests[-1].thinking is None


@pytest.mark.parametrize("value", [-2, "a", 1.5, 2**40])
def test_a_budget_that_is_none(tmp_path: Path, value: Any) -> None:
    error = make(tmp_path, reasoning_parser="qwen3").error(CHAT, messages=HELLO, thinking_token_budget=value)
    assert "thinking_token_budget" in error["message"] and error["param"] == "thinking_token_budget"


def test_a_budget_needs_a_parser_and_draws(tmp_path: Path) -> None:
    error = make(tmp_path / "without").error(CHAT, messages=HELLO, thinking_token_budget=5)
    assert "--reasoning-parser" in error["message"] and error["param"] == "thinking_token_budget"
    fields = {"messages": HELLO, "thinking_token_budget": 5, "use_beam_search": True, "n": 2}
    error = make(tmp_path / "with", reasoning_parser="qwen3").error(CHAT, **fields)
    assert "beam search" in error["message"] and error["param"] == "thinking_token_budget"


def test_free_text_around_a_form_has_reasoning_and_calls(tmp_path: Path) -> None:
    bench = make(tmp_path, reasoning_parser="deepseek_r1")
    say(bench, f"Hm.</think>I look.\n{CALL}")
    tag = {"type": "tag", "begin": "<tool_call>", "content": {"type": "any_text"}, "end": "</tool_call>"}
    tags = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [tag]}
    form = {"type": "structural_tag", "format": tags}
    found = both(bench, response_format=form, tools=[WEATHER])
    assert (found["reasoning"], found["content"], len(found["calls"])) == ("Hm.", "I look.", 1)
    confined = bench.engine.requests[0].params.structured_outputs
    assert confined is not None and confined.structural_tag is not None


def test_reasoning_is_content_without_a_parser(tooled: Bench) -> None:
    say(tooled, "<think>hm</think>Rain.")
    assert both(tooled)["content"] == "<think>hm</think>Rain."


PIECES = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, CALL[:30], CALL[30:], " ", "\n", "text", "ä", "<", "[", "]",
     '[{"name": "f", "parameters": {}}', '{"name": "f", "parameters": {"a": [1]}}', "[TOOL_CALLS]f{}", "[weather(a=1)]", ";"]
)  # fmt: skip
PARSER_CHOICES = [
    None,
    RequiredParser,
    *(lambda kind=kind: kind.parser(frozenset({"f", "weather"})) for kind in PARSERS.values()),
]


@settings(max_examples=300)
@given(
    pieces=st.lists(PIECES, max_size=12),
    parser=st.sampled_from(range(len(PARSER_CHOICES))),
    style=st.sampled_from([None, *STYLES]),
    max_calls=st.sampled_from([None, 1]),
    shift=st.integers(1, 9),
)
def test_a_stream_joined_is_the_whole_answer(
    pieces: list[str], parser: int, style: str | None, max_calls: int | None, shift: int
) -> None:
    splitter = None if style is None else (lambda: ReasoningSplitter(STYLES[style], inside=None))
    plan = TextPlan(
        splitter=splitter,
        parser=PARSER_CHOICES[parser],
        include_reasoning=True,
        max_calls=max_calls,
        short_ids=False,
        reports_calls=False,
    )
    text = "".join(pieces)
    cuts = [text[i : i + shift] for i in range(0, len(text), shift)]
    assert joined(plan, [text]) == joined(plan, pieces) == joined(plan, cuts)


def joined(plan: TextPlan, pieces: list[str]) -> tuple[str, str, list[list[str]], bool]:
    chat = ChatText(plan)
    deltas = [*(chat.push(piece, last=False) for piece in pieces), chat.push("", last=True)]
    calls: list[list[str]] = []
    for call in (call for delta in deltas for call in delta.tool_calls):
        if call.index == len(calls):
            calls.append([str(call.function.name), ""])
        calls[call.index][1] += call.function.arguments
    text = "".join(delta.content for delta in deltas)
    return text, "".join(delta.reasoning for delta in deltas), calls, chat.called


def test_the_official_client_reads_calls(tooled: Bench) -> None:
    import asyncio

    import httpx
    from openai import AsyncOpenAI

    say(tooled, f"I will look.\n{CALL}")

    async def talk() -> tuple[Any, Any]:
        # Any: newer clients say that they want an httpx2 client, and take either.
        http_client: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app=tooled.app))
        async with AsyncOpenAI(api_key="EMPTY", base_url="http://test/v1", http_client=http_client) as client:
            tool = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
            fields: Any = {"model": "tiny", "messages": HELLO, "tools": [tool]}
            answer = await client.chat.completions.create(**fields)
            async with client.chat.completions.stream(**fields) as stream:
                async for _ in stream:
                    pass
                return answer, await stream.get_final_completion()

    for answer in asyncio.run(talk()):
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls" and choice.message.content == "I will look."
        (call,) = choice.message.tool_calls
        assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Köln"}
