"""Random JSON schemas whose every value is short: nested objects, arrays, enums, patterns, ``$ref``, ``anyOf``, numbers."""

import random
from typing import Any

_WORDS = ["name", "age", "tags", "kind", "città", "a b", 'quo"te', "x", "items", "properties", "type", "enum"]
_PATTERNS = ["^[a-z]{2,5}$", "^[A-Z]{2}-[0-9]{3}$", "^(yes|no|maybe)$", "^#[0-9a-f]{6}$", "^v[0-9]\\.[0-9]$", '^[^"\\\\]{1,4}$']


def random_schema(seed: int) -> dict[str, Any]:
    """An object at the top. Only keywords that hold a value's size down or leave it small."""
    rng = random.Random(seed)
    definitions = {f"d{i}": _value(rng, depth=2, refs=[]) for i in range(rng.randint(0, 2))}
    schema = _object(rng, depth=rng.randint(1, 3), refs=list(definitions))
    return {**schema, "$defs": definitions} if definitions else schema


def _value(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    kinds: list[Any] = [_string, _string, _integer, _number, _enum, _const, _pattern, _simple]
    if depth > 0:
        kinds += [_object, _object, _array, _any_of]
    if refs:
        kinds += [_ref, _ref]
    made: dict[str, Any] = rng.choice(kinds)(rng, depth=depth - 1, refs=refs)
    return made


def _object(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randint(1, 3))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(rng, depth=depth, refs=refs) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }
    if rng.random() < 0.2:
        schema["description"] = "said to people alone"
    return schema


def _array(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    least = rng.randint(0, 2)
    if rng.random() < 0.3:
        prefix = [_value(rng, depth=0, refs=refs) for _ in range(2)]
        return {"type": "array", "prefixItems": prefix, "items": False, "minItems": rng.randint(0, 2)}
    items = _value(rng, depth=depth, refs=refs)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _any_of(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"anyOf": [_value(rng, depth=depth, refs=refs) for _ in range(rng.randint(2, 3))]}


def _ref(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{rng.choice(refs)}"}


def _string(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 8)}


def _integer(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)}


def _number(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 9}


def _enum(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"enum": rng.sample(["red", "grün", 1, 2.5, None, True, ["a"], {"b": 1}, 'with "quotes"'], rng.randint(1, 4))}


def _const(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"const": rng.choice([0, "fixed", None, False, [1, 2]])}


def _pattern(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"type": "string", "pattern": rng.choice(_PATTERNS)}


def _simple(rng: random.Random, *, depth: int, refs: list[str]) -> dict[str, Any]:
    return {"type": rng.choice([["boolean", "null"], "boolean", "null"])}
