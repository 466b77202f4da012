"""GET /openapi.json and GET /docs: what this server takes and answers, derived from the types of its bodies.

A field that a type does not have cannot be documented, and one that is refused is not. The page is static HTML made here: no
script, nothing fetched from anywhere. Both are made once, when first asked for.
"""

import functools
import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from octavo import __version__
from octavo.sampling_params import MAX_N
from octavo.server import params, protocol, responses
from octavo.server.items import conversation
from octavo.server.items import protocol as items

REF = "#/components/schemas/{name}"
JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
PAGE_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "x-content-type-options": "nosniff"}
Schema = dict[str, Any]


class Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct):
    """What every answer that is no success looks like."""

    error: Error


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path. ``answers``: media type -> body of a success; none: an empty body.
    A body is a type, one of several types, or a schema."""

    path: str
    method: str
    summary: str
    takes: Any = None
    answers: Mapping[str, Any] = {}
    generates: bool = False
    probe: bool = False


_ANY_OBJECT: Schema = {"type": "object"}
_STRING: Schema = {"type": "string"}
_CHUNKS: Schema = {"description": "With `stream`: an event for each chunk, its JSON in `data`; the last is `[DONE]`."}
_ITEM_EVENTS: Schema = {"description": "With `stream`: an event for everything that happens; the last has the whole response."}
_COMPLETION = {JSON: responses.CompletionResponse, EVENTS: _CHUNKS}
_CHAT = {JSON: responses.ChatResponse, EVENTS: _CHUNKS}

OPERATIONS = (
    Operation(
        path="/v1/completions",
        method="post",
        summary="Complete prompts",
        takes=protocol.CompletionRequest,
        answers=_COMPLETION,
        generates=True,
    ),
    Operation(
        path="/v1/chat/completions",
        method="post",
        summary="Answer a conversation",
        takes=protocol.ChatRequest,
        answers=_CHAT,
        generates=True,
    ),
    Operation(
        path="/v1/responses",
        method="post",
        summary="Answer a conversation of items",
        takes=items.ResponsesRequest,
        answers={JSON: items.ItemsResponse, EVENTS: _ITEM_EVENTS},
        generates=True,
    ),
    Operation(
        path="/invocations",
        method="post",
        summary="Complete or answer, by the shape of the body",
        takes=(protocol.CompletionRequest, protocol.ChatRequest),
        answers={JSON: (responses.CompletionResponse, responses.ChatResponse), EVENTS: _CHUNKS},
        generates=True,
    ),
    Operation(path="/v1/models", method="get", summary="The served models", answers={JSON: responses.ModelList}),
    Operation(path="/v1/models/{model}", method="get", summary="One of them", answers={JSON: responses.ModelCard}),
    Operation(
        path="/tokenize",
        method="post",
        summary="Token ids of a text or a conversation",
        takes=protocol.TokenizeRequest,
        answers={JSON: responses.TokenizeResponse},
    ),
    Operation(
        path="/detokenize",
        method="post",
        summary="Text of token ids",
        takes=protocol.DetokenizeRequest,
        answers={JSON: responses.DetokenizeResponse},
    ),
    Operation(path="/version", method="get", summary="The server's version", answers={JSON: responses.Version}),
    Operation(path="/load", method="get", summary="Requests that are being answered", answers={JSON: responses.ServerLoad}),
    Operation(path="/metrics", method="get", summary="Prometheus metrics", answers={TEXT: _STRING}),
    Operation(path="/openapi.json", method="get", summary="This description", answers={JSON: _ANY_OBJECT}),
    Operation(path="/docs", method="get", summary="This description as a page", answers={"text/html": _STRING}),
    Operation(path="/redoc", method="get", summary="The same page", answers={"text/html": _STRING}),
    Operation(path="/health", method="get", summary="Whether requests are taken", probe=True),
    Operation(path="/ping", method="get", summary="Whether requests are taken", probe=True),
    Operation(path="/ping", method="post", summary="Whether requests are taken", probe=True),
    Operation(path="/healthz/startup", method="get", summary="Whether it has started", answers={JSON: _ANY_OBJECT}, probe=True),
    Operation(
        path="/healthz/ready", method="get", summary="Whether requests are taken", answers={JSON: _ANY_OBJECT}, probe=True
    ),
    Operation(path="/healthz/live", method="get", summary="Whether it is alive", answers={JSON: _ANY_OBJECT}, probe=True),
)

_REFUSALS = {
    400: "The body, or a field of it, is not what the route takes.",
    401: "A key is needed.",
    403: "Not with this key, or not from this web page.",
    404: "There is no such model.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests with this key.",
    431: "The headers are too large.",
    500: "An error of the server's, with an id that its log knows.",
    503: "Not now: loading, full, or shutting down. `Retry-After` says when.",
}
_WITHOUT_BODY = (400, 401, 403, 429, 431, 500, 503)

_FRACTION: Schema = {"minimum": 0, "maximum": 1}
_PENALTY: Schema = {"minimum": -2, "maximum": 2}
_TOKEN_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_RANGES: dict[str, Schema] = {
    "n": {"minimum": 1, "maximum": MAX_N},
    "temperature": {"minimum": 0, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1},
    "min_p": _FRACTION,
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": {"exclusiveMinimum": 0},
    "max_tokens": {"minimum": 0},
    "min_tokens": {"minimum": 0},
    "truncate_prompt_tokens": {"minimum": -1},
    "stream_interval": {"minimum": 1},
    "thinking_token_budget": {"minimum": -1},
}
"""What is checked after the type, where a plain range says it."""

_PROMPT: Schema = {
    "description": "A text, token ids, or several of either.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        _TOKEN_IDS,
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
    ],
}


_PRIORITY: Schema = {
    "name": "X-Vllm-Priority",
    "in": "header",
    "description": "Goes before the body's `priority`.",
    "schema": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
}


@functools.cache
def document() -> bytes:
    """The OpenAPI 3.1 document as JSON."""
    return msgspec.json.encode(describe())


def describe() -> dict[str, Any]:
    """The same, as it is made."""
    types = _types()
    schemas, components = msgspec.json.schema_components(list(types), ref_template=REF)
    by_type = dict(zip(types, schemas, strict=True))
    for name, component in components.items():
        components[name] = _honest(name, component)
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__, "description": "The OpenAI API over one served model."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _types() -> dict[Any, None]:
    """Every type of a body, once."""
    found: dict[Any, None] = {ErrorBody: None}
    for operation in OPERATIONS:
        for kind in (operation.takes, *operation.answers.values()):
            if kind is not None and not isinstance(kind, dict):
                found |= dict.fromkeys(kind if isinstance(kind, tuple) else (kind,))
    return found


def _honest(name: str, component: Schema) -> Schema:
    """A request's schema without the fields that are refused, and with the ranges that are checked."""
    if not name.endswith("Request"):
        return component
    refused = conversation.REFUSED if name == "ResponsesRequest" else params.UNSUPPORTED
    properties = {field: _ranged(field, schema) for field, schema in component["properties"].items() if field not in refused}
    if name == "CompletionRequest":
        properties["prompt"] = _PROMPT
        component = {**component, "required": ["prompt", *component.get("required", [])]}
    return {**component, "properties": properties}


def _ranged(field: str, schema: Schema) -> Schema:
    if field not in _RANGES:
        return schema
    first, *rest = schema["anyOf"]
    kind = {key: value for key, value in first.items() if key in ("type", "exclusiveMaximum")}
    return {**schema, "anyOf": [{**kind, **_RANGES[field]}, *rest]}


def _operation(operation: Operation, by_type: Mapping[Any, Schema]) -> Schema:
    def schema(kind: Any) -> Schema:
        if isinstance(kind, tuple):
            return {"anyOf": [by_type[each] for each in kind]}
        return kind if isinstance(kind, dict) else by_type[kind]

    success: Schema = {"description": "Success."}
    if operation.answers:
        success["content"] = {media: {"schema": schema(kind)} for media, kind in operation.answers.items()}
    made: Schema = {
        "operationId": operation.method + re.sub(r"\W+", "_", operation.path).rstrip("_"),
        "summary": operation.summary,
        "security": [] if operation.probe else [{}, {"key": []}],
        "responses": {"200": success, **_refusals(operation, by_type[ErrorBody])},
    }
    known = [{"name": name, "in": "path", "required": True, "schema": _STRING} for name in _path_names(operation)]
    if parameters := [*known, *([_PRIORITY] if operation.generates else ())]:
        made["parameters"] = parameters
    if operation.takes is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": schema(operation.takes)}}}
    return made


def _refusals(operation: Operation, error: Schema) -> Schema:
    if operation.probe:  # a probe says what is the matter in words of its own
        either = {"anyOf": [error, {"type": "object"}]}
        page = (403,) if operation.method == "post" else ()  # a web page of another name
        return {"503": {"description": "Not now.", "content": {JSON: {"schema": either}}}, **_refused((400, *page, 431), error)}
    codes = tuple(_REFUSALS) if operation.takes is not None else _WITHOUT_BODY
    return _refused(codes if 404 in codes or not _path_names(operation) else (*codes, 404), error)


def _path_names(operation: Operation) -> list[str]:
    return re.findall(r"{(\w+)}", operation.path)


def _refused(codes: tuple[int, ...], error: Schema) -> Schema:
    return {str(code): {"description": _REFUSALS[code], "content": {JSON: {"schema": error}}} for code in codes}


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#22272e}"
    "code,td:first-child{font-family:ui-monospace,monospace;font-size:.9em}summary{cursor:pointer;padding:.3rem 0}"
    "table{border-collapse:collapse;margin:.3rem 0 1rem 1rem}td{border-top:1px solid #e4e7eb;padding:.15rem .8rem .15rem 0;"
    "vertical-align:top}b{display:inline-block;min-width:3.5rem}"
)


@functools.cache
def page() -> str:
    """The document as HTML."""
    described = describe()
    parts = "".join(
        _part(method, path, operation) for path, methods in described["paths"].items() for method, operation in methods.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in described["components"]["schemas"].items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Octavo API</title><style>{_STYLE}</style>"
        f"<h1>Octavo {__version__}</h1><p>Also as <a href=openapi.json>openapi.json</a>.</p>"
        f"<h2>Routes</h2>{parts}<h2>Bodies</h2>{schemas}</html>"
    )


def _part(method: str, path: str, operation: Schema) -> str:
    rows = [("takes", media, content) for media, content in operation.get("requestBody", {}).get("content", {}).items()]
    for code, answer in operation["responses"].items():
        rows += [(code, media, content) for media, content in answer.get("content", {}).items()]
    cells = "".join(
        f"<tr><td>{code}<td>{html.escape(media)}<td>{_shown(content.get('schema', {}))}" for code, media, content in rows
    )
    title = f"<b>{method.upper()}</b> <code>{html.escape(path)}</code> {html.escape(operation['summary'])}"
    return f"<details><summary>{title}</summary><table>{cells}</table></details>"


def _schema(name: str, schema: Schema) -> str:
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td>{html.escape(field)}{' *' if field in required else ''}<td>{_shown(kind)}"
        f"<td>{html.escape(kind.get('description', ''))}"
        for field, kind in schema.get("properties", {}).items()
    )
    about = html.escape(schema.get("description", ""))
    return f"<details id={name}><summary><code>{name}</code></summary><p>{about}</p><table>{rows}</table></details>"


def _shown(schema: Schema) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"<a href=#{name}>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_shown(each) for each in schema["anyOf"]))
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {', '.join(map(_shown, schema.get('prefixItems', [schema.get('items', {})])))}"
    return " ".join([kind, *_bounds(schema)])


def _bounds(schema: Schema) -> Iterator[str]:
    for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")):
        if key in schema and abs(schema[key]) < 2**31:
            yield f"{sign} {schema[key]}"
