"""``langchain-openai`` against a real server: chat and completion models, whole, streamed and in batches."""

from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr

from tests.clients.conftest import KEY
from tests.server.tiny import RunningServer


@pytest.fixture
def fields(keyed_server: RunningServer) -> dict[str, Any]:
    place = {"base_url": f"{keyed_server.url}/v1", "api_key": SecretStr(KEY), "model": "tiny"}
    return {**place, "temperature": 0, "max_tokens": 12, "max_retries": 0}


def test_chat_in_every_way(fields: dict[str, Any]) -> None:
    model = ChatOpenAI(**fields)
    messages = [SystemMessage("Be brief"), HumanMessage("Say something")]
    answer = model.invoke(messages)
    assert answer.content and answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] == 12
    assert "".join(str(chunk.content) for chunk in model.stream(messages)) == answer.content
    assert [each.content for each in model.batch([messages, messages])] == [answer.content] * 2


def test_usage_of_a_stream_and_log_probabilities(fields: dict[str, Any]) -> None:
    model = ChatOpenAI(**fields, stream_usage=True, logprobs=True, top_logprobs=2)
    whole = None
    for chunk in model.stream("Say something"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None and whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] == 12
    assert len(whole.response_metadata["logprobs"]["content"]) == 12


def test_completions(fields: dict[str, Any]) -> None:
    model = OpenAI(**fields)
    text = model.invoke("The")
    assert text and "".join(model.stream("The")) == text


def test_refusals(fields: dict[str, Any]) -> None:
    with pytest.raises(openai.NotFoundError):
        ChatOpenAI(**{**fields, "model": "other"}).invoke("x")
