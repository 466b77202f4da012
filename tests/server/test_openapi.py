"""What the server says about itself agrees with what it does: every route, every field, and the routes of other platforms."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest

from octavo.server import openapi, protocol
from octavo.server.app import routes
from octavo.server.keys import Key, KeysFile, Role, digest_of
from octavo.server.options import ServerOptions
from tests.server.fakes import Bench, Exchange, error_of

SCHEMAS = openapi.describe()["components"]["schemas"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "request-fields.md"
OWN = (
    "audio best_of echo frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens"
    " messages metadata modalities model n parallel_tool_calls prediction presence_penalty prompt prompt_cache_key"
    " prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream"
    " stream_options suffix temperature tool_choice tools top_logprobs top_p user verbosity web_search_options"
)
"""The fields that are OpenAI's: of completions, of chats or of both."""


def valid(schema: dict[str, Any], value: Any) -> bool:
    whole = {**schema, "components": {"schemas": SCHEMAS}}
    return bool(jsonschema.Draft202012Validator(whole).is_valid(value))


def test_every_route_is_described_and_nothing_else(bench: Bench) -> None:
    served = {
        (route.path.replace(":path", ""), method)
        for route in routes(bench.service)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    described = {(path, method.upper()) for path, methods in openapi.describe()["paths"].items() for method in methods}
    assert described == served


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    text = openapi.document().decode()
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names and names <= set(SCHEMAS)
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    identifiers = re.findall(r'"operationId":"([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers)) == len(openapi.OPERATIONS)


def test_fields_that_are_refused_are_not_described(bench: Bench) -> None:
    fields = set(SCHEMAS["CompletionRequest"]["properties"])
    for field in msgspec.structs.fields(protocol.CompletionRequest):
        if field.name not in fields:
            assert bench.error("/v1/completions", prompt="x", **{field.name: "something"})["param"] == field.name
    assert {"prompt", "n", "temperature", "stop"} <= fields and "suffix" not in fields


def test_every_field_that_is_not_openais_has_its_row_and_every_row_its_field() -> None:
    cells = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    rows = {name for cell in cells for name in re.findall(r"`([a-z_]+)[.`]", cell)}
    kinds = (protocol.CompletionRequest, protocol.ChatRequest)
    fields = {field.name for kind in kinds for field in msgspec.structs.fields(kind)}
    assert fields - set(OWN.split()) | {"best_of", "echo", "response_format"} <= rows <= fields


@pytest.mark.parametrize(
    "field, good, bad",
    [
        ("temperature", 2, 2.5),
        ("top_p", 1, 0),
        ("n", 128, 0),
        ("presence_penalty", -2, 3),
        ("prompt", "x", ""),
        ("prompt", [[1], [2]], [[]]),
        ("prompt", ["x", "y"], [1, "x"]),
        ("stream", None, "yes"),
        ("min_p", 1, -0.1),
    ],
)
def test_ranges_are_those_that_are_checked(bench: Bench, field: str, good: Any, bad: Any) -> None:
    schema = openapi.describe()["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for value, ok in ((good, True), (bad, False)):
        body = {"prompt": [5], "max_tokens": 1, field: value}
        assert valid(schema, body) is ok
        assert bench.post("/v1/completions", **body)[0] == (200 if ok else 400)


def test_answers_are_as_described(bench: Bench) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2}
    for path, body in (
        ("/v1/completions", {"prompt": "x", "logprobs": 2, "echo": True, "return_token_ids": True, "unknown": 1}),
        ("/v1/chat/completions", chat),
        ("/tokenize", {"prompt": "x", "return_token_strs": True}),
        ("/detokenize", {"tokens": [5, 6]}),
        ("/v1/completions", {"prompt": ""}),
    ):
        status, answer = bench.post(path, **body)
        described = openapi.describe()["paths"][path]["post"]["responses"][str(status)]
        assert valid(described["content"]["application/json"]["schema"], answer), (path, answer)


def test_who_may_not_is_told_so_where_it_is_described(tmp_path: Path) -> None:
    """A key whose role is not the route's; and a page of another name, which may not even post to a probe."""
    file = tmp_path / "keys.json"
    roles = get_args(Role)
    made = [Key(name=role, role=role, sha256=digest_of(role.encode()).hex()) for role in roles]
    file.write_bytes(msgspec.json.encode(KeysFile(made)))
    guarded, open_to_all = Bench(tmp_path / "a", ServerOptions(api_keys_file=str(file))), Bench(tmp_path / "b")
    for operation in openapi.OPERATIONS:
        asked = (operation.method.upper(), operation.path)
        told = [guarded.call(*asked, headers={"authorization": f"Bearer {role}"}) for role in roles]
        told += [open_to_all.call(*asked, headers={"origin": "https://page.example"})]
        refused = [valid(SCHEMAS["ErrorBody"], json.loads(body)) for status, _, body in told if status == 403]
        described = openapi.describe()["paths"][operation.path][operation.method]["responses"]
        assert all(refused) and (not refused or "403" in described), asked
        assert bool(refused) == (operation.path != "/version" and (not operation.probe or operation.method == "post")), asked


def test_the_document_and_the_page(bench: Bench) -> None:
    status, headers, body = bench.call("GET", "/openapi.json")
    assert status == 200 and headers["content-type"] == "application/json"
    assert json.loads(body)["openapi"] == "3.1.0"
    status, headers, body = bench.call("GET", "/docs")
    page = body.decode()
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "/v1/chat/completions" in page and "presence_penalty" in page
    assert not re.search(r"<script|https?:|@import|url\(", page), "the page fetches nothing"
    assert not set(re.findall(r"href=#(\w+)", page)) - set(re.findall(r"id=(\w+)", page))


def test_the_document_needs_the_key(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ServerOptions(api_key=("one",)))
    assert bench.call("GET", "/openapi.json")[0] == bench.call("GET", "/docs")[0] == bench.call("GET", "/load")[0] == 401


def test_invocations_are_told_apart_by_their_shape(bench: Bench) -> None:
    assert bench.post("/invocations", prompt="x")[1]["object"] == "text_completion"
    assert bench.post("/invocations", messages=[{"role": "user", "content": "x"}])[1]["object"] == "chat.completion"
    assert "neither `messages` nor `prompt`" in bench.error("/invocations", input="x")["message"]
    status, _, body = bench.call("POST", "/invocations", {"prompt": "x", "stream": True})
    assert status == 200 and body.endswith(b"data: [DONE]\n\n")
    for content in (b"", b"[1]", b"{", b"[" * 100_000, b'{"prompt": 1e999}'):
        status, _, body = bench.call("POST", "/invocations", content)
        assert error_of(status, body)["type"] == "Bad Request" and status == 400
    assert bench.call("POST", "/invocations", b"{}", headers={"content-type": "text/plain"})[0] == 415


def test_a_client_of_invocations_may_leave(bench: Bench) -> None:
    bench.engine.silent = True

    async def run() -> None:
        exchange = Exchange(bench.app, "POST", "/invocations", {"prompt": "x"})
        task = asyncio.create_task(exchange.run())
        while not bench.engine.requests:
            await asyncio.sleep(0.001)
        assert bench.service.answering == 1
        exchange.hang_up()
        await task

    asyncio.run(asyncio.wait_for(run(), 10))
    assert bench.engine.aborted and bench.service.answering == 0


def test_the_load_is_what_is_being_answered(bench: Bench) -> None:
    assert json.loads(bench.call("GET", "/load")[2]) == {"server_load": 0}
    bench.service.answering = 3
    assert json.loads(bench.call("GET", "/load")[2]) == {"server_load": 3}
