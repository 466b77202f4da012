"""Forms of answers over HTTP: every way to ask, every way to be refused, and grammars made to do harm."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from octavo.sampling_params import StructuredOutputsParams
from octavo.server.grammar_lanes import Lane, LaneFull
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
CALL = {"begin": "<call>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</call>"}
TAGS: Any = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<call"], "tags": [CALL]}}
OLDER_TAGS: Any = {
    "type": "structural_tag",
    "structures": [{"begin": "<call>", "schema": SCHEMA, "end": "</call>"}],
    "triggers": ["<call"],
}
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
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?", "disable_additional_properties": False}},
        StructuredOutputsParams(json=SCHEMA, whitespace_pattern=" ?", disable_additional_properties=False),
    ),
    ({"guided_json": SCHEMA}, StructuredOutputsParams(json=SCHEMA)),
    ({"guided_regex": "a+"}, StructuredOutputsParams(regex="a+")),
    ({"guided_choice": ["a", "b"]}, StructuredOutputsParams(choice=["a", "b"])),
    ({"guided_grammar": 'root ::= "a"'}, StructuredOutputsParams(grammar='root ::= "a"')),
    ({"response_format": TAGS}, StructuredOutputsParams(structural_tag=TAGS)),
    ({"response_format": OLDER_TAGS}, StructuredOutputsParams(structural_tag=OLDER_TAGS)),
    ({"structured_outputs": {"structural_tag": TAGS}}, StructuredOutputsParams(structural_tag=TAGS)),
    ({"structured_outputs": {"structural_tag": json.dumps(TAGS)}}, StructuredOutputsParams(structural_tag=json.dumps(TAGS))),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_every_way_to_ask(bench: Bench, path: str) -> None:
    for fields, wanted in ASKED:
        status, answer = bench.post(path, **subject(path), **fields)
        assert status == 200, answer
        assert bench.engine.requests[-1].params.structured_outputs == wanted, fields
    bench.served.grammars.close()


def nested(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


_DEEP: dict[str, Any] = {"properties": {"a": {"items": {"anyOf": [{"type": "null"}, {"type": "foo"}]}}}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", "expected an object with a type"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "must be text, json_object, json_schema or structural_tag"),
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
    (
        {"response_format": nested({"properties": {"x": {"not": {}}}, "additionalProperties": False})},
        "response_format.json_schema.schema.properties.x",
        "Unimplemented",
    ),
    ({"response_format": nested(False)}, "response_format.json_schema.schema", "no text is valid by the schema false"),
    ({"guided_json": False}, "guided_json", "guided_json: no text is valid"),
    ({"structured_outputs": {"json": False}}, "structured_outputs.json", "no text is valid"),
    ({"structured_outputs": "x"}, "structured_outputs", "expected an object"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag", "missing required field format"),
    ({"structured_outputs": {"structural_tag": []}}, "structured_outputs.structural_tag", "must be a JSON object"),
    ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag", "is not a JSON object"),
    ({"structured_outputs": {"structural_tag": TAGS, "regex": "a"}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"xml": 1}}, "structured_outputs.xml", "not supported"),
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
    bench.served.grammars.close()


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


def test_objects_end_with_what_their_schema_names(server: RunningServer) -> None:
    """A model that is not told to would go on with properties of its own."""
    schema = {name: value for name, value in SCHEMA.items() if name != "additionalProperties"}
    for form in ({"response_format": nested(schema)}, {"guided_json": schema}, {"structured_outputs": {"json": schema}}):
        body = {"prompt": "hi", "max_tokens": 300, "temperature": 1.0, "seed": 1, "n": 32, **form}
        for choice in httpx.post(f"{server.url}{COMPLETIONS}", json=body, timeout=60).json()["choices"]:
            assert choice["finish_reason"] == "stop" and set(json.loads(choice["text"])) == {"name", "n"}


def at(path: str, content: Any) -> Any:
    """``TAGS`` with something else at one place of its format."""
    changed = json.loads(json.dumps(TAGS))
    place: Any = changed["format"]
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step) if step.isdecimal() else step]
    place[int(last) if last.isdecimal() else last] = content
    return changed


BAD_TAGS: list[tuple[Any, str, str]] = [
    ({"type": "structural_tag"}, "", "missing required field format"),
    ({"type": "structural_tag", "format": "x"}, ".format", "expected"),
    (
        {"type": "structural_tag", "format": {"type": "qwen_xml_parameter"}},
        ".format.type",
        "invalid value 'qwen_xml_parameter'",
    ),
    (at("type", "token_triggered_tags"), ".format.type", "invalid value"),
    (at("tags", []), ".format.tags", "must not be empty"),
    (at("triggers", []), ".format.triggers", "must not be empty"),
    (at("triggers.0", ""), ".format.triggers", "must not be an empty string"),
    (at("triggers", ["<call", "<call>"]), ".format.triggers[0]", "must not be part of one another"),
    (at("triggers", ["<call", "<x"]), ".format.triggers[1]", "none of the tags begins with it"),
    (at("tags.0.begin", "[call]"), ".format.triggers[0]", "none of the tags begins with it"),
    (at("tags.0.end", []), ".format.tags[0].end", "must not be empty"),
    (at("tags.0.end", ["a", ""]), ".format.tags[0].end[1]", "must not be an empty string"),
    (at("tags.0.begin", {"type": "token"}), ".format.tags[0].begin", "expected str, got object"),
    (at("tags.0.style", 1), ".format.tags[0]", "unknown field style"),
    (at("tags.0.content", {"type": "any_text", "x": 1}), ".format.tags[0].content", "unknown field x"),
    (at("tags.0.content", {"type": "regex", "pattern": "(["}), ".format.tags[0].content.pattern", "unclosed"),
    (
        at("tags.0.content.json_schema", _DEEP),
        ".format.tags[0].content.json_schema.properties.a.items.anyOf[1]",
        "Invalid type",
    ),
    (
        at("tags.0.content", {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "x"}]}),
        ".format.tags[0].content.elements[0]",
        "free text must come last",
    ),
    ({**OLDER_TAGS, "triggers": ["<call", "x"]}, ".triggers[1]", "none of the tags begins with it"),
    ({**OLDER_TAGS, "triggers": 5}, ".triggers", "expected array"),
    ({**OLDER_TAGS, "structures": [{"begin": "<call>", "end": ""}]}, ".structures[0]", "missing required field schema"),
    ({**OLDER_TAGS, "structures": [{"begin": "<call>", "schema": "{", "end": ""}]}, ".structures[0].schema", "JSON schema"),
    (
        {**OLDER_TAGS, "structures": [{"begin": "<call>", "schema": _DEEP, "end": "x"}]},
        ".structures[0].schema.properties.a.items.anyOf[1]",
        "Invalid type",
    ),
]


def test_bad_structural_tags_are_refused_by_path(bench: Bench) -> None:
    for tags, path, words in BAD_TAGS:
        for name, fields in {
            "response_format": {"response_format": tags},
            "structured_outputs.structural_tag": {"structured_outputs": {"structural_tag": tags}},
        }.items():
            error = bench.error(COMPLETIONS, prompt="hi", **fields)
            assert (error["code"], error["param"]) == (400, name + path), error
            assert words in error["message"], error
    assert not bench.engine.requests
    bench.served.grammars.close()


def test_tags_in_chats_streamed_and_not(server: RunningServer) -> None:
    """The text of a tiny model is noise, so that the trigger is likely only where it must come."""
    client: Any = openai.OpenAI(api_key="EMPTY", base_url=f"{server.url}/v1", max_retries=0)
    wanted = at("at_least_one", True)
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 200, "temperature": 1.0, "seed": 1, "n": 2}
    whole = client.chat.completions.create(**options, response_format=wanted)
    chunks = list(client.chat.completions.create(**options, response_format=wanted, stream=True))
    for choice in whole.choices:
        streamed = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(piece.delta.content or "" for piece in streamed) == choice.message.content
        call, found, _ = choice.message.content.removeprefix("<call>").partition("</call>")
        assert found
        jsonschema.validate(json.loads(call), SCHEMA)
    ended = at("at_least_one", True)
    ended["format"]["stop_after_first"] = True
    body = {"prompt": "hi", "max_tokens": 200, "structured_outputs": {"structural_tag": ended}, "temperature": 1.0}
    (choice,) = httpx.post(f"{server.url}{COMPLETIONS}", json=body, timeout=60).json()["choices"]
    assert choice["finish_reason"] == "stop" and choice["text"].endswith("</call>")


def test_when_too_many_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lane: Lane, wanted: StructuredOutputsParams, client: str) -> Any:
        raise LaneFull(77)

    monkeypatch.setattr(Lane, "submit", refuse)
    status, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "hi", "guided_regex": "a"})
    assert status == 503 and headers["retry-after"] == "77" and error_of(status, body)
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
        fine = httpx.post(f"{server.url}{COMPLETIONS}", json={"prompt": "hi", "guided_choice": ["well"]}, timeout=60)
        assert fine.json()["choices"][0]["text"] == "well"
        assert not all(answer.done() for answer in answers), "what is quick to compile does not wait for what is not"
        assert {answer.result()[0] for answer in answers} == {400}
        assert all("takes more than 2 s or too much memory" in answer.result()[1] for answer in answers)
    assert server.engine_pid() == engine
    wanted = {"prompt": "hi", "guided_choice": ["fine"]}
    assert httpx.post(f"{server.url}{COMPLETIONS}", json=wanted, timeout=60).json()["choices"][0]["text"] == "fine"
