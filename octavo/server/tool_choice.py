"""The functions that a chat request brings, checked, and which of them the model may, must or must not call.

Owns the fields ``tools``, ``tool_choice`` and ``parallel_tool_calls``, and the JSON schemas that force a call. Knows nothing of
how models write calls.
"""

from typing import Any, Literal

import msgspec

from octavo.sampling_params import (
    MAX_ALTERNATIVES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    ParameterError,
    StructuredOutputsParams,
)
from octavo.server import errors
from octavo.server.protocol import ChatRequest

MAX_TOOLS = 128
MAX_NAME = 256
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_VALUES = ("enum", "const", "default", "examples")
_SAYS_MORE = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"}) | frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"}
)


class Function(msgspec.Struct, frozen=True):
    """``parameters`` is a JSON schema of an object."""

    name: str
    parameters: dict[str, Any] | None = None


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """``definitions`` are the tools as the client wrote them, which is how templates want them."""

    definitions: list[dict[str, Any]]
    functions: tuple[Function, ...]
    choice: Literal["none", "auto", "required", "named"]
    named: Function | None = None
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    @property
    def forced(self) -> bool:
        """Whether the output has to be a call."""
        return self.choice in ("required", "named")


def read_tools(request: ChatRequest) -> Tools | None:
    """None for a request without tools. Raises ``ApiError`` 400."""
    if request.tools is None:
        if request.tool_choice not in (None, "none"):
            raise errors.invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
        return None
    functions = tuple(check_tools(request.tools))
    choice, named = _choice(request.tool_choice, functions)
    if choice in ("required", "named") and request.use_beam_search:
        raise errors.invalid("A `tool_choice` that forces a call cannot be combined with `use_beam_search`.", "tool_choice")
    return Tools(
        definitions=request.tools,
        functions=functions,
        choice=choice,
        named=named,
        parallel=request.parallel_tool_calls is not False,
    )


def check_tools(tools: list[dict[str, Any]]) -> list[Function]:
    """The functions of the field ``tools``. Raises ``ApiError`` 400."""
    if not tools:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise errors.invalid(message, "tools")
    if len(tools) > MAX_TOOLS:
        raise errors.invalid(f"tools must have at most {MAX_TOOLS} entries, got {len(tools)}.", "tools")
    return [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _function(tool: dict[str, Any], place: str) -> Function:
    if tool.get("type", "function") != "function" or not isinstance(tool.get("function"), dict):
        raise errors.invalid(f'{place} must be {{"type": "function", "function": {{"name": ...}}}}.', "tools")
    try:
        function = msgspec.convert(tool["function"], Function)
    except msgspec.ValidationError as error:
        raise errors.invalid(f"{place}.function is malformed: {error}.", "tools") from None
    if not 1 <= len(function.name) <= MAX_NAME or not function.name.isprintable():
        raise errors.invalid(f"{place}.function.name must have 1 to {MAX_NAME} printable characters.", "tools")
    if function.parameters is not None:
        _check_schema(function.parameters, f"{place}.function.parameters")
    return function


def _check_schema(schema: dict[str, Any], place: str) -> None:
    if schema.get("type", "object") != "object":
        raise errors.invalid(f'{place} must be the JSON schema of an object: its type must be "object".', "tools")
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise errors.invalid(f"{place} is longer than {MAX_SCHEMA_BYTES} bytes.", "tools")
    level: list[Any] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        for node in level:
            values = node.get("enum") if isinstance(node, dict) else None
            if isinstance(values, list) and len(values) > MAX_ALTERNATIVES:
                raise errors.invalid(f"{place} has an enum of more than {MAX_ALTERNATIVES} values.", "tools")
        children = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise errors.invalid(f"{place} is nested deeper than {MAX_SCHEMA_DEPTH} levels.", "tools")


def _choice(
    given: Any, functions: tuple[Function, ...]
) -> tuple[Literal["none", "auto", "required", "named"], Function | None]:
    if given is None:
        return "auto", None
    if given in ("none", "auto", "required"):
        return given, None
    name = given.get("function") if isinstance(given, dict) and given.get("type", "function") == "function" else None
    name = name.get("name") if isinstance(name, dict) else None
    if not isinstance(name, str):
        shown = str(given)[:64]
        message = f'Invalid value for `tool_choice`: {shown}! Only named tools, "none", "auto" or "required" are supported.'
        raise errors.invalid(message, "tool_choice")
    for function in functions:
        if function.name == name:
            return "named", function
    raise errors.invalid(f"`tool_choice` names the function {name[:64]!r}, which is not among `tools`.", "tool_choice")


def forced_output(tools: Tools) -> StructuredOutputsParams:
    """What the output has to be when it has to be a call. Raises ``ApiError`` 400 when the schemas together are too much."""
    try:
        return StructuredOutputsParams(json=forced_schema(tools))
    except ParameterError as error:
        told = str(error).removeprefix("structured_outputs.json ")
        raise errors.invalid(f"The functions that `tool_choice` allows make one JSON schema, which {told}", "tools") from None


def forced_schema(tools: Tools) -> dict[str, Any]:
    """The JSON schema of an output that has to be a call: the named function's arguments, or an array of calls of any."""
    if tools.named is not None:
        return _arguments_schema(tools.named)
    definitions = {str(i): _moved(_arguments_schema(f), f"#/$defs/{i}") for i, f in enumerate(tools.functions)}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function.name}, "parameters": {"$ref": f"#/$defs/{i}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for i, function in enumerate(tools.functions)
    ]
    most = {} if tools.parallel else {"maxItems": 1}
    return {"$defs": definitions, "type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}


def _arguments_schema(function: Function) -> dict[str, Any]:
    """What is valid by it is valid by the client's schema. Where that names properties and says nothing of others, there are
    none: a function takes the parameters that it has."""
    given = function.parameters
    if not given:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    closed = {"additionalProperties": False} if "properties" in given and not _SAYS_MORE & given.keys() else {}
    return {"type": "object", **given, **closed}


def _moved(schema: Any, home: str) -> Any:
    """``schema`` as part of a larger one, at ``home``: its references into itself point there."""
    if not isinstance(schema, dict):
        return [_moved(item, home) for item in schema] if isinstance(schema, list) else schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = home + value[1:]
        elif key in _OF_SCHEMAS and isinstance(value, dict):
            moved[key] = {name: _moved(inner, home) for name, inner in value.items()}
        else:
            moved[key] = value if key in _OF_VALUES else _moved(value, home)
    return moved
