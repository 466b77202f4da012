"""The functions that a chat request brings, checked, and which of them the model may, must or must not call.

Owns the fields ``tools``, ``tool_choice`` and ``parallel_tool_calls``. Knows nothing of how models write calls.
"""

from typing import Any, Literal

import msgspec

from octavo.sampling_params import MAX_ALTERNATIVES, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH
from octavo.server import errors
from octavo.server.protocol import ChatRequest

MAX_TOOLS = 128
MAX_NAME = 256


class Function(msgspec.Struct, frozen=True):
    """``parameters`` is a JSON schema of an object; with ``strict`` arguments have to be valid by it."""

    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


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
