"""The official ``openai`` client with the API of items: whole, streamed, in a form, with calls, and its exceptions."""

import json
from typing import Any

import openai
import pydantic
import pytest

from tests.clients.conftest import KEY
from tests.server.tiny import RunningServer

FIXED: dict[str, Any] = {"model": "tiny", "max_output_tokens": 12, "temperature": 0}
DRAWN: dict[str, Any] = {"model": "tiny", "max_output_tokens": 300, "temperature": 1.0, "extra_body": {"seed": 7}}
"""Random weights that take the likeliest token may fill a form with spaces for ever."""
MOVE: Any = {
    "type": "function",
    "name": "move",
    "parameters": {
        "type": "object",
        "properties": {"to": {"type": "string", "enum": ["left", "right"]}},
        "required": ["to"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Choice(pydantic.BaseModel):
    """A form that any model can be held to in a few tokens."""

    agreed: bool


@pytest.fixture
def client(keyed_server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(api_key=KEY, base_url=f"{keyed_server.url}/v1", max_retries=0)


def test_whole_and_streamed_are_the_same(client: openai.OpenAI) -> None:
    whole = client.responses.create(input="Say something", instructions="Be brief.", **FIXED)
    chat = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something"}],
        max_tokens=12,
        temperature=0,
    )
    assert whole.output_text == chat.choices[0].message.content and whole.usage is not None
    assert whole.usage.output_tokens == 12 and whole.status == "incomplete"
    events = list(client.responses.create(input="Say something", instructions="Be brief.", stream=True, **FIXED))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"


def test_its_accumulating_stream(client: openai.OpenAI) -> None:
    """Which wants an answer that was not cut short."""
    text = client.responses.create(input="Say something", **FIXED).output_text
    ending = {**FIXED, "extra_body": {"stop": text[6:8]}}
    with client.responses.stream(input="Say something", **ending) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert (
        final.status == "completed"
        and final.output_text == client.responses.create(input="Say something", **ending).output_text
    )
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds


def test_a_form_is_parsed(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(input="Yes?", text_format=Choice, **DRAWN).output_parsed
    assert isinstance(parsed, Choice)


def test_a_forced_call_and_its_output(client: openai.OpenAI) -> None:
    asked = {**DRAWN, "tools": [MOVE], "tool_choice": "required", "parallel_tool_calls": False}
    first = client.responses.create(input="go", **asked)
    (call,) = first.output
    assert call.type == "function_call" and call.name == "move" and json.loads(call.arguments)["to"] in ("left", "right")
    back: Any = [
        {"role": "user", "content": "go"},
        *[item.model_dump() for item in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "done"},
    ]
    assert client.responses.create(input=back, **{**FIXED, "tools": [MOVE], "tool_choice": "none"}).output_text
    events = list(client.responses.create(input="go", stream=True, **asked))
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert done.arguments == call.arguments


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.responses.create(input="x", top_logprobs=3, include=["message.output_text.logprobs"], **FIXED)
    (message,) = answer.output
    assert message.type == "message" and message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs is not None and all(len(entry.top_logprobs) == 3 for entry in logprobs)


def test_refusals_are_its_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(input="x", previous_response_id="resp_1", **FIXED)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.responses.create(input="x", model="other")
