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
_ALTERNATIVES = ("anyOf", "oneOf")
_PARTS = ("allOf", *_ALTERNATIVES)


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
    """``schema`` with ``additionalProperties: false`` in every object that names properties and says nothing of others.

    Where several schemas name properties of one object (two in ``allOf``, one beside a ``$ref``), they stay open: closed, each
    would forbid what the others name. ``unevaluatedProperties`` would close them together, but no grammar is made of it."""
    found = list(_references_in_parts(schema, is_part=False))
    for reference in found:  # which grows
        found += set(_references_in_parts(_definition(schema, reference), is_part=True)).difference(found)
    return _closed(schema, frozenset(found), is_part=False)


def _definition(schema: Any, reference: str) -> Any:
    where, _, name = reference.removeprefix("#/").partition("/")
    named = schema.get(where) if where in _DEFINITIONS else None
    return named.get(name) if isinstance(named, dict) else None


def _closed(schema: Any, open_references: frozenset[str], *, is_part: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    closed, has_parts = dict(schema), is_part or _has_parts(schema)
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict):
            closed[keyword] = _closed(schema[keyword], open_references, is_part=False)
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            inner_is_part = has_parts and keyword in _PARTS
            closed[keyword] = [_closed(inner, open_references, is_part=inner_is_part) for inner in schema[keyword]]
    for keyword in _NAMED:
        if isinstance(schema.get(keyword), dict):
            closed[keyword] = {
                name: _closed(inner, open_references, is_part=f"#/{keyword}/{name}" in open_references)
                for name, inner in schema[keyword].items()
            }
    if isinstance(schema.get("properties"), dict) and not has_parts:
        closed.setdefault("additionalProperties", False)
    return closed


def _references_in_parts(schema: Any, *, is_part: bool) -> Iterator[str]:
    """To the definitions that describe an object together with other schemas."""
    has_parts = is_part or (isinstance(schema, dict) and _has_parts(schema))
    if has_parts and isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    for path, inner in subschemas(schema):
        yield from _references_in_parts(inner, is_part=has_parts and path.startswith(_PARTS))


def _has_parts(schema: dict[str, Any]) -> bool:
    """Whether several schemas name properties of the same object; of alternatives, only one describes it."""
    naming = [path for path, inner in subschemas(schema) if path.startswith(_PARTS) and _names_properties(inner)]
    together = sum(not path.startswith(_ALTERNATIVES) for path in naming)
    return ("properties" in schema) + ("$ref" in schema) + together + (together < len(naming)) > 1


def _names_properties(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    parts = (inner for path, inner in subschemas(schema) if path.startswith(_PARTS))
    return "properties" in schema or "$ref" in schema or any(map(_names_properties, parts))


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
