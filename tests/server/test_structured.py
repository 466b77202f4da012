"""Forms of answers over HTTP: every way to ask, every way to be refused, and grammars made to do harm."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from octavo.sampling_params import StructuredOutputsParams
from octavo.server import grammar_checker
from tests.server.fakes import Bench, error_of
from tests.server.tiny import RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
RESPONSE_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
MULTIPLE = {"type": "integer", "multipleOf": 9999991, "minimum": 0, "maximum": 10**18}
CHAIN = "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(3000)) + '\nr3000: "a"'


def subject(path: str) -> dict[str, Any]:
    return {"prompt": "hi"} if path == COMPLETIONS else {"messages": HELLO}


ASKED: list[tuple[dict[str, Any], StructuredOutputsParams | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
    ({"response_format": RESPONSE_FORMAT}, StructuredOutputsParams(json=SCHEMA)),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, StructuredOutputsParams(json=SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputsParams(json=SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, StructuredOutputsParams(json=json.dumps(SCHEMA))),
    ({"structured_outputs": {"regex": "a+", "choice": None}}, StructuredOutputsParams(regex="a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputsParams(choice=["a", "b"])),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, StructuredOutputsParams(grammar='start: "a"')),
    (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        StructuredOutputsParams(json_object=True, disable_any_whitespace=True),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?", "disable_additional_properties": True}},
        StructuredOutputsParams(json=SCHEMA, whitespace_pattern=" ?", disable_additional_properties=True),
    ),
    ({"guided_json": SCHEMA}, StructuredOutputsParams(json=SCHEMA)),
    ({"guided_regex": "a+"}, StructuredOutputsParams(regex="a+")),
    ({"guided_choice": ["a", "b"]}, StructuredOutputsParams(choice=["a", "b"])),
    ({"guided_grammar": 'root ::= "a"'}, StructuredOutputsParams(grammar='root ::= "a"')),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_every_way_to_ask(bench: Bench, path: str) -> None:
    for fields, wanted in ASKED:
        status, answer = bench.post(path, **subject(path), **fields)
        assert status == 200, answer
        assert bench.engine.requests[-1].params.structured_outputs == wanted, fields
    bench.frontend.grammars.close()


def nested(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


_DEEP: dict[str, Any] = {"properties": {"a": {"items": {"anyOf": [{"type": "null"}, {"type": "foo"}]}}}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", "expected an object with a type"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "must be text, json_object or json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.schema", "must be a JSON schema"),
    ({"response_format": nested([])}, "response_format.json_schema.schema", "must be a JSON schema"),
    (
        {"response_format": nested(_DEEP)},
        "response_format.json_schema.schema.properties.a.items.anyOf[1]",
        "response_format.json_schema.schema.properties.a.items.anyOf[1]: Invalid type: foo",
    ),
    (
        {"response_format": nested({"enum": list(range(5000))})},
        "response_format.json_schema.schema",
        "an enum must have at most 4096 values",
    ),
    ({"structured_outputs": "x"}, "structured_outputs", "expected an object"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag", "not supported"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs", "expected `str | null`"),
    ({"structured_outputs": {"regex": "(["}}, "structured_outputs.regex", "unclosed"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "structured_outputs.choice must have between 1"),
    ({"guided_regex": "a" * 5000}, "guided_regex", "guided_regex must have at most 4096 bytes"),
    ({"guided_json": {"not": {}}}, "guided_json", "Unimplemented"),
    ({"guided_json": "{"}, "guided_json", "guided_json is not a JSON schema"),
    ({"guided_grammar": "start: a"}, "guided_grammar", "unknown name"),
    ({"guided_grammar": CHAIN}, "guided_grammar", "too much memory to compile"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "Only one of guided_regex, guided_choice"),
    ({"guided_regex": "a", "response_format": RESPONSE_FORMAT}, "guided_regex", "Only one of"),
    ({"guided_regex": "a", "use_beam_search": True, "n": 2}, "guided_regex", "cannot be combined with `use_beam_search`"),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_every_way_to_be_refused(bench: Bench, path: str) -> None:
    for fields, param, words in REFUSED:
        error = bench.error(path, **subject(path), **fields)
        assert error["code"] == 400 and error["param"] == param, error
        assert words in error["message"] and len(error["message"]) < 700, error
    assert not bench.engine.requests
    status, _ = bench.post(path, **subject(path), guided_regex="ok")
    assert status == 200, "the process that a grammar ended has a successor"
    bench.frontend.grammars.close()


def test_the_official_client(server: RunningServer) -> None:
    client: Any = openai.OpenAI(api_key="EMPTY", base_url=f"{server.url}/v1", max_retries=0)
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 300, "temperature": 1.0}
    chat = client.chat.completions.create(**options, response_format=RESPONSE_FORMAT, n=3, seed=1)
    for choice in chat.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
    stream = client.chat.completions.create(**options, response_format=RESPONSE_FORMAT, seed=1, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == chat.choices[0].message.content
    completion = client.completions.create(
        model="tiny", prompt="hi", max_tokens=50, logprobs=2, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert completion.choices[0].text in ("yes", "no") and completion.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**options, response_format=nested(_DEEP))
    body: Any = caught.value.body
    assert body["param"] == "response_format.json_schema.schema.properties.a.items.anyOf[1]"


def test_when_too_many_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_checker, "MAX_WAITING", 0)
    status, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "hi", "guided_regex": "a"})
    assert status == 503 and int(headers["retry-after"]) > 0 and error_of(status, body)
    assert bench.post(COMPLETIONS, prompt="hi")[0] == 200


def test_bombs_harm_nobody(server: RunningServer) -> None:
    """Grammars that compile for seconds, or end their compiler, are refused one by one; beside them goes on what went on."""
    engine = server.engine_pid()
    body = {"prompt": "hi", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    quiet = httpx.post(f"{server.url}{COMPLETIONS}", json=body, timeout=60).json()["choices"][0]["text"]
    bombs: list[dict[str, Any]] = [{"guided_grammar": CHAIN + f"\n// {i}"} for i in range(8)] + [{"guided_json": MULTIPLE}] * 40

    def send(fields: dict[str, Any]) -> tuple[int, str]:
        answer = httpx.post(f"{server.url}{COMPLETIONS}", json={"prompt": "hi", **fields}, timeout=120)
        return answer.status_code, answer.json()["error"]["message"]

    with ThreadPoolExecutor(len(bombs)) as pool:
        answers = [pool.submit(send, bomb) for bomb in bombs]
        beside = httpx.post(f"{server.url}{COMPLETIONS}", json=body, timeout=60).json()["choices"][0]["text"]
        assert beside == quiet
        assert httpx.get(f"{server.url}/healthz/live", timeout=5).status_code == 200
        assert {answer.result()[0] for answer in answers} == {400}
        assert all("takes more than 2 s or too much memory" in answer.result()[1] for answer in answers)
    assert server.engine_pid() == engine
    wanted = {"prompt": "hi", "guided_choice": ["fine"]}
    assert httpx.post(f"{server.url}{COMPLETIONS}", json=wanted, timeout=60).json()["choices"][0]["text"] == "fine"
