"""Where schemas are inside a JSON schema, and which of them is at fault.

Knows JSON Schema's keywords (draft 2020-12), not their meaning. A property may be named like a keyword, so that a schema is
walked by its keywords and not by its dicts.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

_ONE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems")
_LISTS = ("prefixItems", "anyOf", "allOf", "oneOf", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEFINITIONS = ("$defs", "definitions")
_ALTERNATIVES = ("anyOf", "oneOf")
_PARTS = ("allOf", *_ALTERNATIVES)
_NAMING = ("properties", "patternProperties", "additionalProperties")
FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"})
"""Of strings, those that llguidance makes a grammar of."""
_NOTES = frozenset({"$comment", "default", "deprecated", "description", "examples", "title"})


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


def _rebuilt(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """``schema`` with what ``change`` makes of each schema directly inside."""
    made = dict(schema)
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict):
            made[keyword] = change(schema[keyword])
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            made[keyword] = [change(inner) for inner in schema[keyword]]
    for keyword in _NAMED:
        if isinstance(schema.get(keyword), dict):
            made[keyword] = {name: change(inner) for name, inner in schema[keyword].items()}
    return made


def without_idle_keywords(schema: Any) -> Any:
    """``schema`` without what confines nothing and many libraries write, but no grammar is made of: formats that are only
    notes, names of properties that are strings, items that need not be unique."""
    if not isinstance(schema, dict):
        return schema
    made = _rebuilt(schema, without_idle_keywords)
    return {keyword: value for keyword, value in made.items() if not _is_idle(keyword, value)}


def _is_idle(keyword: str, value: Any) -> bool:
    match keyword:
        case "format":
            return isinstance(value, str) and value not in FORMATS
        case "uniqueItems":
            return value is False
        case "propertyNames" if isinstance(value, dict):
            return all(name in _NOTES or (name, said) == ("type", "string") for name, said in value.items())
        case "propertyNames":
            return value is True
    return False


def without_additional_properties(schema: Any) -> Any:
    """``schema`` with ``additionalProperties: false`` in every object that names properties and says nothing of others. What
    it requires, itself or in a part of it, it names, too.

    Where several schemas speak of the properties of one object (two in ``allOf``, one beside a ``$ref``), they stay open:
    closed, each would forbid what the others name. ``unevaluatedProperties`` would close them together, but no grammar is made
    of it."""
    left_open: set[int] = set()  # ids: no schema is looked at more often than twice, however many references lead to it
    seen: set[tuple[int, bool]] = set()
    naming: dict[int, bool] = {}
    pending = [(schema, False)]
    while pending:
        inner, is_part = pending.pop()
        if not isinstance(inner, dict) or (id(inner), is_part) in seen:
            continue
        seen.add((id(inner), is_part))
        has_parts = is_part or _has_parts(inner, naming)
        if has_parts:
            left_open.add(id(inner))
            if isinstance(inner.get("$ref"), str):
                pending.append((_target(schema, inner["$ref"]), True))
        pending += [(part, has_parts and path.startswith(_PARTS)) for path, part in subschemas(inner)]
    return _closed(schema, left_open)


def _target(schema: Any, reference: str) -> Any:
    """The schema that is referred to by a JSON pointer, None where it is not inside."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    for step in unquote(reference).split("/")[1:]:
        if isinstance(schema, dict):
            schema = schema.get(step.replace("~1", "/").replace("~0", "~"))
        else:
            at = int(step) if isinstance(schema, list) and step.isdecimal() and len(step) < 6 else None
            schema = schema[at] if at is not None and at < len(schema) else None
    return schema


def _closed(schema: Any, left_open: set[int]) -> Any:
    if not isinstance(schema, dict):
        return schema
    closed, properties = _rebuilt(schema, lambda inner: _closed(inner, left_open)), schema.get("properties")
    if isinstance(properties, dict) and id(schema) not in left_open and "additionalProperties" not in schema:
        others: dict[str, Any] = {name: {} for name in _required(schema) if name not in properties}
        closed |= {"properties": {**closed["properties"], **others}, "additionalProperties": False}
    return closed


def _required(schema: Any) -> Iterator[str]:
    """The names that an object must have by ``schema`` or by one of its parts."""
    if isinstance(schema, dict):
        if isinstance(schema.get("required"), list):
            yield from (name for name in schema["required"] if isinstance(name, str))
        for path, inner in subschemas(schema):
            if path.startswith(_PARTS):
                yield from _required(inner)


def _has_parts(schema: dict[str, Any], naming: dict[int, bool]) -> bool:
    """Whether several schemas speak of the properties of the same object; of alternatives, only one describes it. ``naming``
    keeps what is known of each schema by its id."""
    parts = [path for path, inner in subschemas(schema) if path.startswith(_PARTS) and _names_properties(inner, naming)]
    together = sum(not path.startswith(_ALTERNATIVES) for path in parts)
    itself = any(keyword in schema for keyword in (*_NAMING, "required"))
    return itself + ("$ref" in schema) + together + (together < len(parts)) > 1


def _names_properties(schema: Any, naming: dict[int, bool]) -> bool:
    if not isinstance(schema, dict):
        return False
    if id(schema) not in naming:
        parts = (inner for path, inner in subschemas(schema) if path.startswith(_PARTS))
        itself = any(keyword in schema for keyword in (*_NAMING, "$ref"))
        naming[id(schema)] = itself or any(_names_properties(inner, naming) for inner in parts)
    return naming[id(schema)]


def path_at_fault(schema: Any, complaint: Callable[[Any], str]) -> str:
    """The path of the innermost schema about which ``complaint`` (empty: none) says what it says about the whole; "" is the
    whole itself."""
    wanted, path = complaint(schema), ""
    definitions = {name: schema[name] for name in _DEFINITIONS if isinstance(schema, dict) and name in schema}
    while True:
        for step, inner in subschemas(schema):
            if not isinstance(inner, dict):  # ``false`` cannot be had alone, but is no fault beside other schemas
                continue
            alone = inner if step.startswith(_DEFINITIONS) else {**inner, **definitions}
            if complaint(alone) == wanted:
                schema, path = inner, f"{path}.{step}" if path else step
                break
        else:
            return path
