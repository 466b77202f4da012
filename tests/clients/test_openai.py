"""The official ``openai`` client as its users use it: every kind of answer, and its exception for every kind of refusal."""

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.clients.conftest import KEY
from tests.server.tiny import RunningServer

USER: Any = [{"role": "user", "content": "Say something"}]
FIXED: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "temperature": 0}


@pytest.fixture
def client(keyed_server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(api_key=KEY, base_url=f"{keyed_server.url}/v1", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_completions_and_their_stream(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt="The", **FIXED)
    assert whole.object == "text_completion" and whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage is not None and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.completions.create(prompt="The", stream=True, stream_options={"include_usage": True}, **FIXED))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices


def test_chat_and_its_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=USER, **FIXED)
    assert whole.choices[0].message.role == "assistant" and whole.choices[0].message.tool_calls is None
    chunks = list(client.chat.completions.create(messages=USER, stream=True, **FIXED))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_accumulating_stream_ends_in_the_whole_answer(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(messages=USER, **FIXED).choices[0].message.content or ""
    ending = {**FIXED, "stop": text[6:8]}  # at the length limit, this client's helper raises
    whole = client.chat.completions.create(messages=USER, **ending)
    assert whole.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(messages=USER, **ending) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_several_choices(client: openai.OpenAI) -> None:
    drawn = {**FIXED, "temperature": 1.0, "n": 3, "seed": 4}
    whole = client.chat.completions.create(messages=USER, **drawn)
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(messages=USER, stream=True, **drawn):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices] and len(set(texts)) == 3
    many = client.completions.create(prompt=["a", "b"], **{**drawn, "n": 2})
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]


def test_log_probabilities_in_both_shapes(client: openai.OpenAI) -> None:
    completion = client.completions.create(prompt="The", logprobs=3, **FIXED).choices[0].logprobs
    assert completion is not None and completion.tokens is not None and completion.top_logprobs is not None
    assert len(completion.tokens) == 12 and all(1 <= len(top) <= 4 for top in completion.top_logprobs)
    chat = client.chat.completions.create(messages=USER, logprobs=True, top_logprobs=2, **FIXED).choices[0].logprobs
    assert chat is not None and chat.content is not None
    for entry in chat.content:
        assert len(entry.top_logprobs) == 2 and entry.top_logprobs[0].logprob == entry.logprob
        assert entry.bytes is not None


def test_fields_beyond_openais(client: openai.OpenAI) -> None:
    extra = {"top_k": 1, "min_tokens": 12, "ignore_eos": True, "repetition_penalty": 1.1, "return_token_ids": True}
    answer = client.completions.create(model="tiny", prompt="The", max_tokens=12, extra_body=extra)
    assert len(answer.choices[0].model_dump()["token_ids"]) == 12
    unknown = client.completions.create(prompt="The", extra_body={"nonsense": 1}, **FIXED)
    assert "nonsense" in unknown.model_dump()["warnings"][0]


def test_raw_responses_carry_the_request_id(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(messages=USER, extra_headers={"X-Request-Id": "mine"}, **FIXED)
    assert raw.headers["x-request-id"] == "mine" and raw.parse().id == "chatcmpl-mine"


def test_the_asynchronous_client(keyed_server: RunningServer) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{keyed_server.url}/v1") as client:
            answers = await asyncio.gather(*(client.chat.completions.create(messages=USER, **FIXED) for _ in range(16)))
            stream = await client.chat.completions.create(messages=USER, stream=True, **FIXED)
            text = "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])
        return [*(answer.choices[0].message.content for answer in answers), text]

    assert len(set(asyncio.run(ask()))) == 1


def test_a_stream_that_is_closed_ends_the_request(client: openai.OpenAI, keyed_server: RunningServer) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    headers = {"authorization": f"Bearer {KEY}"}
    keyed_server.wait_metric("octavo_requests_running", 0, headers=headers)


@pytest.mark.parametrize(
    "kind, fields",
    [
        (openai.BadRequestError, {"temperature": 9}),
        (openai.BadRequestError, {"messages": []}),
        (
            openai.BadRequestError,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        ),
        (openai.BadRequestError, {"max_tokens": "many"}),
        (openai.NotFoundError, {"model": "other"}),
    ],
)
def test_refusals_are_the_clients_exceptions(client: openai.OpenAI, kind: type[openai.APIStatusError], fields: Any) -> None:
    for stream in (False, True):
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**{"messages": USER, **FIXED, "stream": stream, **fields})
        body: Any = caught.value.body
        assert body["message"] and body["code"] == caught.value.status_code
        assert caught.value.request_id


def test_other_keys_and_other_routes(keyed_server: RunningServer) -> None:
    stranger = openai.OpenAI(api_key="sk-other", base_url=f"{keyed_server.url}/v1", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(messages=USER, **FIXED)
    client = stranger.with_options(api_key=KEY)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="x")


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(openai.APIConnectionError):
        openai.OpenAI(api_key=KEY, base_url="http://127.0.0.1:9/v1", max_retries=0).models.list()


def test_the_description_is_behind_the_key(client: openai.OpenAI) -> None:
    text = client.with_options(base_url=str(client.base_url).removesuffix("v1/")).get("/openapi.json", cast_to=object)
    assert json.loads(json.dumps(text))["info"]["title"] == "Octavo"
