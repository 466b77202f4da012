"""POST /v1/responses: what a body of items asks of the model, and what comes back, whole and as events."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.outputs import TokenDelta
from octavo.request import Request
from octavo.server.items.conversation import chat_request, messages
from octavo.server.items.protocol import ResponsesRequest
from octavo.server.options import ServerOptions
from tests.server.fakes import Bench, FakeEngine
from tests.server.test_tools import CALL, TEMPLATE, say

RESPONSES = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "tokenizer", ServerOptions(reasoning_parser="qwen3"), template=TEMPLATE, context=4096)


def events_of(bench: Bench, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, numbered without a gap and named twice the same."""
    status, headers, body = bench.call("POST", RESPONSES, {**fields, "stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), body
    events = []
    for number, message in enumerate(body.decode().removesuffix("\n\n").split("\n\n")):
        name, data = message.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == number
        events.append(event)
    return events


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a client puts together from the events alone; what "done" events repeat has to agree."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "content_part.added":
                items[event["output_index"]]["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta" as kind:
                part = items[event["output_index"]]["content"][event["content_index"]]
                part["text"] += event["delta"]
                if kind == "output_text.delta":
                    part["logprobs"] += event["logprobs"]
            case "function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
            case "function_call_arguments.done":
                assert items[event["output_index"]]["arguments"] == event["arguments"]
            case "output_text.done" | "reasoning_text.done":
                assert items[event["output_index"]]["content"][0]["text"] == event["text"]
            case "output_item.done":
                item = items[event["output_index"]]
                assert item["id"] == event["item"]["id"] and item["status"] == "in_progress"
                item["status"] = event["item"]["status"]
                assert item == event["item"]
    return items


def shown(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from one to the next: ids and times."""
    text = re.sub(r'"(id|call_id)": "\w+-?[-\w]*"', r'"\1": ""', json.dumps(response))
    return {**json.loads(text), "created_at": 0, "completed_at": 0}


def both(bench: Bench, **fields: Any) -> dict[str, Any]:
    """The response, the same streamed and whole."""
    status, answer = bench.post(RESPONSES, **fields)
    assert status == 200, answer
    events = events_of(bench, **fields)
    names = [event["type"] for event in events]
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == f"response.{answer['status']}"
    assert events[0]["response"]["output"] == [] and events[0]["response"]["status"] == "in_progress"
    assert joined(events) == events[-1]["response"]["output"]
    assert shown(events[-1]["response"]) == shown(answer)
    return dict(answer)


def test_a_text_in_and_a_message_out(bench: Bench) -> None:
    say(bench, "Fine, and you?")
    answer = both(bench, input="How are you?", instructions="Be brief.", max_output_tokens=100, metadata={"a": "b"})
    (message,) = answer["output"]
    assert answer["object"] == "response" and answer["status"] == "completed" and answer["error"] is None
    assert message["type"] == "message" and message["role"] == "assistant" and message["status"] == "completed"
    assert message["content"] == [{"type": "output_text", "text": "Fine, and you?", "annotations": [], "logprobs": []}]
    assert answer["metadata"] == {"a": "b"} and answer["instructions"] == "Be brief." and not answer["store"]
    usage = answer["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 3 and usage["output_tokens_details"]["reasoning_tokens"] == 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    prompt = bench.tokenizer.decode(bench.engine.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert "system\nBe brief." in prompt and "user\nHow are you?" in prompt


def test_ids_say_what_they_are_of(bench: Bench) -> None:
    say(bench, f"<think>\nHm.\n</think>\n\nI will look.\n{CALL}")
    answer = both(bench, input="Weather?", tools=[WEATHER])
    assert re.fullmatch(r"resp_[0-9a-f]{32}", answer["id"])
    kinds = zip(("rs", "msg", "fc"), answer["output"], strict=True)
    assert all(re.fullmatch(kind + "_[0-9a-f]{32}", item["id"]) for kind, item in kinds)
    assert bench.post(RESPONSES, input="x", request_id="mine")[1]["id"] == "resp_mine"


def test_a_variable_that_the_template_does_not_read_is_a_warning(bench: Bench) -> None:
    answer = both(bench, input="x", chat_template_kwargs={"thinking": False})
    assert answer["warnings"] == ["`chat_template_kwargs`: this model's chat template does not use 'thinking'"]


def test_a_broken_call_in_the_conversation_is_a_warning(bench: Bench) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "'}
    (warning,) = both(bench, input=[call])["warnings"]
    assert warning.startswith("a tool call among the messages has arguments that are no JSON object")


def test_a_second_forced_call_that_is_cut_leaves_no_message(bench: Bench) -> None:
    say(bench, '[{"name": "weather", "parameters": {}},\n\n{\n  "name": "')
    (call,) = both(bench, input="x", tools=[WEATHER], tool_choice="required")["output"]
    assert call["type"] == "function_call" and call["arguments"] == "{}"


def test_an_answer_cut_short_says_so(bench: Bench) -> None:
    say(bench, "one two three four five")
    answer = both(bench, input="Count.", max_output_tokens=2)
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete" and answer["usage"]["output_tokens"] == 2


def test_an_answer_that_cannot_be_computed_has_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_at_the_end(request: Request) -> list[TokenDelta]:
        *before, last = FakeEngine.deltas(bench.engine, request)
        return [*before, msgspec.structs.replace(last, token_ids=[], finish_reason="error")]

    say(bench, "one two three")
    monkeypatch.setattr(bench.engine, "deltas", fail_at_the_end)
    answer = both(bench, input="Count.", max_output_tokens=2)
    assert answer["status"] == "failed" and answer["error"]["code"] == "server_error" and answer["error"]["message"]
    assert answer["output"][0]["status"] == "incomplete" and answer["incomplete_details"] is None


def test_reasoning_is_an_item_and_its_tokens_are_counted(bench: Bench) -> None:
    say(bench, "<think>\nLet me see.\n</think>\n\nIt rains.")
    answer = both(bench, input="Weather?", reasoning={"effort": "low"})
    reasoning, message = answer["output"]
    assert reasoning["type"] == "reasoning" and reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert message["content"][0]["text"] == "It rains."
    assert 0 < answer["usage"]["output_tokens_details"]["reasoning_tokens"] < answer["usage"]["output_tokens"]


def test_calls_are_items_after_what_was_said(bench: Bench) -> None:
    say(bench, f"<think>\nHm.\n</think>\n\nI will look.\n{CALL}\n{CALL.replace('Köln', 'Rom')}")
    answer = both(bench, input="Weather?", tools=[WEATHER])
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    first, second = answer["output"][2:]
    assert first["name"] == "weather" and json.loads(first["arguments"]) == {"city": "Köln"} and first["status"] == "completed"
    assert json.loads(second["arguments"]) == {"city": "Rom"} and first["call_id"] != second["call_id"]
    assert answer["tools"] == [WEATHER] and answer["tool_choice"] == "auto"


def test_log_probabilities_stand_beside_the_text(bench: Bench) -> None:
    say(bench, "one two three")
    asked = {"input": "Count.", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    part = both(bench, **asked)["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]).startswith(part["text"])
    assert all(len(entry["top_logprobs"]) == 2 and entry["bytes"] for entry in part["logprobs"])


def test_a_conversation_goes_back_as_it_came(bench: Bench) -> None:
    """A client sends back the items of an answer, with the outputs of its calls."""
    say(bench, f"<think>\nHm.\n</think>\n\nI will look.\n{CALL}")
    output = both(bench, input="Weather?", tools=[WEATHER])["output"]
    back = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"role": "user", "content": "Weather?"},
        *output,
        {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "rain"},
    ]
    first, second, user, said, tool = messages(ResponsesRequest(input=back, instructions="Be brief."))
    assert first.role == second.role == "developer" and (first.content, second.content) == ("Be brief.", "Be kind.")
    assert user.content == "Weather?"
    assert said.reasoning == "Hm." and said.content == "I will look." and said.tool_calls is not None
    assert json.loads(str(said.tool_calls[0].function.arguments)) == {"city": "Köln"}
    assert tool.role == "tool" and tool.content == "rain" and tool.tool_call_id == said.tool_calls[0].id
    assert both(bench, input=back, tools=[WEATHER], instructions="Be brief.")["status"] == "completed"
    prompt = bench.tokenizer.decode(bench.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert "<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>" in prompt


def test_the_form_and_the_tools_become_those_of_chat() -> None:
    form = {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True}
    body = ResponsesRequest(
        input="x", text=msgspec_text(form), tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}
    )
    request = chat_request(body, max_model_len=64)
    assert request.response_format == {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}
    assert request.tools == [{"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}]
    assert request.tool_choice == {"type": "function", "function": {"name": "weather"}}
    assert chat_request(ResponsesRequest(input="x", truncation="auto"), max_model_len=64).truncate_prompt_tokens == 48


def msgspec_text(form: dict[str, Any]) -> Any:
    from octavo.server.items.protocol import TextOptions

    return TextOptions(format=form)


@pytest.mark.parametrize(
    "fields, param",
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": 3, "call_id": "c"}]}, "input[0].arguments"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "x", "include": ["file_search_call.results"]}, "include"),
        ({"input": "x", "max_output_tokens": -1}, "max_output_tokens"),
        ({"input": "x", "temperature": 9}, "temperature"),
        ({"input": "x", "top_logprobs": 99}, "top_logprobs"),
        ({"input": "x", "metadata": {"a": 3}}, "metadata[...]"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nothing"}}}},
            "text.format.schema",
        ),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "model": "other"}, "model"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tool_choice": 1e308}, "tool_choice"),
        ({"input": "x", "tools": [], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ],
)
def test_an_error_names_the_field_of_this_body(bench: Bench, fields: dict[str, Any], param: str) -> None:
    assert bench.error(RESPONSES, **fields)["param"] == param


def test_a_reference_to_an_item_is_answered_with_what_to_do(bench: Bench) -> None:
    item = {"type": "item_reference", "id": "msg_1"}
    assert "Nothing is stored here: send the item itself" in bench.error(RESPONSES, input=[item])["message"]


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_a_choice_of_no_tools_is_taken(bench: Bench, choice: str | None) -> None:
    assert both(bench, input="x", tools=[], tool_choice=choice)["tool_choice"] == (choice or "auto")


def test_calls_in_a_row_are_one_message_of_bounded_length(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "tokenizer", ServerOptions(max_messages=3), template=TEMPLATE, context=4096)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    (said,) = messages(ResponsesRequest(input=[call] * 3))
    assert len(said.tool_calls or ()) == 3 and bench.post(RESPONSES, input=[call] * 3)[0] == 200
    error = bench.error(RESPONSES, input=[call] * 4)
    assert error["param"] == "input" and error["message"].startswith("input must have at most 3 tool_calls each, got 4.")
    made = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    for path in ("/v1/chat/completions", "/tokenize"):
        asked = {"messages": [{"role": "assistant", "tool_calls": [made] * 4}]}
        assert bench.error(path, **asked)["message"].startswith("messages must have at most 3 tool_calls each, got 4.")


def test_an_engine_that_fails_in_a_stream_is_told_as_an_event(bench: Bench) -> None:
    from octavo.server import errors

    bench.engine.refuse = errors.engine_restarted()
    status, _, body = bench.call("POST", RESPONSES, {"input": "x", "stream": True})
    assert status == 503, body  # before the first word, a refusal is a status
    say(bench, "one two three")
    bench.engine.refuse = None
    bench.engine.silent = True
    frames = fail_after_first(bench)
    assert frames[-1]["type"] == "error" and frames[-1]["code"] == "503" and "engine" in frames[-1]["message"]


def fail_after_first(bench: Bench) -> list[dict[str, Any]]:
    """The events of a stream whose engine is lost after the first token."""
    import asyncio

    from octavo.server import errors
    from tests.server.fakes import Exchange

    async def run() -> bytes:
        exchange = Exchange(bench.app, "POST", RESPONSES, {"input": "x", "stream": True})
        task = asyncio.create_task(exchange.run())
        while not bench.engine.mailboxes or bench.engine.requests[-1].id not in bench.engine.mailboxes:
            await asyncio.sleep(0.01)
        request = bench.engine.requests[-1]
        mailbox = bench.engine.mailboxes[request.id]
        mailbox.put(bench.engine.deltas(request)[0])
        while b"output_text.delta" not in exchange.body:
            await asyncio.sleep(0.01)
        mailbox.fail(errors.engine_restarted())
        await task
        return bytes(exchange.body)

    bench.engine.mailboxes.clear()
    body = asyncio.run(run()).decode()
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
