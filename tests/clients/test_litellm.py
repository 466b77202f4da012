"""``litellm`` against a real server: both of its providers for such servers, whole and streamed, and its exceptions."""

from typing import Any

import litellm
import pytest

from tests.clients.conftest import KEY
from tests.server.tiny import RunningServer

USER = [{"role": "user", "content": "Say something"}]
FIXED: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "num_retries": 0}


@pytest.fixture
def place(keyed_server: RunningServer) -> dict[str, Any]:
    return {"api_base": f"{keyed_server.url}/v1", "api_key": KEY}


@pytest.mark.parametrize("model", ["openai/tiny", "hosted_vllm/tiny"])
def test_chat_and_its_stream(model: str, place: dict[str, Any]) -> None:
    whole = litellm.completion(model=model, messages=USER, **FIXED, **place)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens == 12
    chunks = list(litellm.completion(model=model, messages=USER, stream=True, **FIXED, **place))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    rebuilt = litellm.stream_chunk_builder(chunks, messages=USER)
    assert rebuilt.choices[0].message.content == text


@pytest.mark.parametrize("model", ["text-completion-openai/tiny", "hosted_vllm/tiny"])
def test_completions(model: str, place: dict[str, Any]) -> None:
    whole = litellm.text_completion(model=model, prompt="The", **FIXED, **place)
    assert whole.choices[0].text
    chunks = litellm.text_completion(model=model, prompt="The", stream=True, **FIXED, **place)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == whole.choices[0].text


def test_exceptions(place: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(model="openai/tiny", messages=USER, **{**FIXED, "temperature": 9}, **place)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/other", messages=USER, **FIXED, **place)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(model="openai/tiny", messages=USER, **FIXED, **{**place, "api_key": "sk-other"})
