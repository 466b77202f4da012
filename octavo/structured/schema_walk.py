"""Where schemas are inside a JSON schema, and which of them is at fault.

Knows JSON Schema's keywords (draft 2020-12), not their meaning. A property may be named like a keyword, so that a schema is
walked by its keywords and not by its dicts.
"""

from collections.abc import Callable, Iterator
from typing import Any

_ONE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems")
_LISTS = ("prefixItems", "anyOf", "allOf", "oneOf", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEFINITIONS = ("$defs", "definitions")


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside ``schema``, each with its path from there, as in ``properties.name``."""
    if not isinstance(schema, dict):
        return
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict | bool):
            yield keyword, schema[keyword]
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            yield from ((f"{keyword}[{i}]", inner) for i, inner in enumerate(schema[keyword]))
    for keyword in _NAMED:
        if isinstance(schema.get(keyword), dict):
            yield from ((f"{keyword}.{name}", inner) for name, inner in schema[keyword].items())


def without_additional_properties(schema: Any) -> Any:
    """``schema`` with ``additionalProperties: false`` in every object that names properties and says nothing of others."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict):
            closed[keyword] = without_additional_properties(schema[keyword])
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            closed[keyword] = [without_additional_properties(inner) for inner in schema[keyword]]
    for keyword in _NAMED:
        if isinstance(schema.get(keyword), dict):
            closed[keyword] = {name: without_additional_properties(inner) for name, inner in schema[keyword].items()}
    if isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def path_at_fault(schema: Any, complaint: Callable[[Any], str]) -> str:
    """The path of the innermost schema about which ``complaint`` (empty: none) says what it says about the whole; "" is the
    whole itself."""
    wanted, path = complaint(schema), ""
    definitions = {name: schema[name] for name in _DEFINITIONS if isinstance(schema, dict) and name in schema}
    while True:
        for step, inner in subschemas(schema):
            alone = {**inner, **definitions} if isinstance(inner, dict) and not step.startswith(_DEFINITIONS) else inner
            if complaint(alone) == wanted:
                schema, path = inner, f"{path}.{step}" if path else step
                break
        else:
            return path
