"""What an output must be so that the calls in it are valid by the schemas of their functions.

Owns the JSON schemas and the grammars (Lark as llguidance reads it) that confine a call which the request forces, and one that
the model decides on, if its function is ``strict``. Knows nothing of the reasoning that may come before.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from octavo.sampling_params import ParameterError, StructuredOutputsParams
from octavo.server import errors
from octavo.server.structured import Wanted
from octavo.server.tool_choice import Function, Tools
from octavo.server.tools import Format
from octavo.structured.compiler import schema_rule

_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_VALUES = ("enum", "const", "default", "examples")


def forced_output(tools: Tools) -> StructuredOutputsParams:
    """What the answer has to be when it has to be a call. Raises ``ApiError`` 400 when the schemas together are too much."""
    try:
        return StructuredOutputsParams(json=forced_schema(tools))
    except ParameterError as error:
        told = str(error).removeprefix("structured_outputs.json ")
        raise errors.invalid(f"The functions that `tool_choice` allows make one JSON schema, which {told}", "tools") from None


def strict_output(tools: Tools, written: Format) -> StructuredOutputsParams | None:
    """What an output that may have calls in it has to be when a function is ``strict``; None when none is, or when the form has
    no grammar here. Text between calls stays free."""
    if written.grammar is None or not any(function.strict for function in tools.functions):
        return None
    schema = _call_schema(tools.functions, arguments=written.arguments, strict_only=True)
    try:
        return StructuredOutputsParams(grammar=written.grammar(schema_rule(schema), tools.parallel))
    except ParameterError as error:
        told = str(error).removeprefix("structured_outputs.grammar ")
        raise errors.invalid(f"The strict functions of this request make one grammar, which {told}", "tools") from None


async def check_calls(confined: StructuredOutputsParams, tools: Tools, check: Callable[[Wanted], Awaitable[None]]) -> None:
    """Raises ``ApiError`` when ``confined`` cannot be had; 400 names the function whose schema is at fault."""
    try:
        await check(Wanted(confined, "tools"))
    except errors.ApiError as error:
        if error.status != 400:
            raise
        for i, function in enumerate(tools.functions):
            if function is tools.named or tools.choice == "required" or (tools.choice == "auto" and function.strict):
                alone = StructuredOutputsParams(json=_arguments_schema(function))
                await check(Wanted(alone, f"tools[{i}].function.parameters"))
        raise


def forced_schema(tools: Tools) -> dict[str, Any]:
    """The JSON schema of an output that has to be a call: the named function's arguments, or an array of calls of any."""
    if tools.named is not None:
        return _arguments_schema(tools.named)
    call = _call_schema(tools.functions, arguments="parameters", strict_only=False)
    most = {} if tools.parallel else {"maxItems": 1}
    return {"$defs": call.pop("$defs"), "type": "array", "minItems": 1, **most, "items": call}


def _call_schema(functions: tuple[Function, ...], *, arguments: str, strict_only: bool) -> dict[str, Any]:
    """An object with the name of one of ``functions`` and its arguments. With ``strict_only`` those of the others are free."""
    free = {"type": "object"}
    schemas = [free if strict_only and not function.strict else _arguments_schema(function) for function in functions]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function.name}, arguments: {"$ref": f"#/$defs/{i}"}},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for i, function in enumerate(functions)
    ]
    return {"$defs": {str(i): _moved(schema, f"#/$defs/{i}") for i, schema in enumerate(schemas)}, "anyOf": calls}


def _arguments_schema(function: Function) -> dict[str, Any]:
    """What is valid by it is valid by the client's schema. Where an object names properties and says nothing of others, there
    are none when it is compiled: a function takes the parameters that it has."""
    given = function.parameters
    if not given:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **given}


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
