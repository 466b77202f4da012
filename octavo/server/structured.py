"""What a client asks of the form of an answer: ``response_format``, ``structured_outputs`` or one of the older ``guided_*``.

Turns whichever was given into the one value that the engine knows, and keeps the client's name for it, which errors repeat.
"""

from typing import Any

import msgspec

from octavo.sampling_params import ParameterError, StructuredOutputsParams
from octavo.server import errors
from octavo.server.protocol import SamplingFields

_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
_FIELDS = frozenset(StructuredOutputsParams.__struct_fields__)


class Wanted(msgspec.Struct, frozen=True):
    """``field`` is the path of the client's field that has the schema, regex, choices or grammar."""

    params: StructuredOutputsParams
    field: str


def wanted(request: SamplingFields) -> Wanted | None:
    """The form that the answer must have, if one was asked for. Raises ``ApiError`` 400."""
    found = _given(request)
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(name for name, _, _ in found)
        raise errors.invalid(f"Only one of {names} can be set.", found[1][0])
    name, field, options = found[0]
    if request.use_beam_search:
        raise errors.invalid(f"`{name}` cannot be combined with `use_beam_search`.", name)
    try:
        params = msgspec.convert(options, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ParameterError):  # raised by the value itself, and wrapped
            raise _out_of_limits(error.__cause__, name, field) from None
        raise errors.malformed(f"{name}: {str(error)[:1].lower()}{str(error)[1:]}", name) from None
    return Wanted(params, field or f"{name}.{params.field}")


def _out_of_limits(error: ParameterError, name: str, field: str | None) -> errors.ApiError:
    """What the value says of itself, in the words of the client's field."""
    param = error.param or "structured_outputs"
    place = field or f"{name}{param.removeprefix('structured_outputs')}"
    return errors.ApiError(400, str(error).replace(param, place, 1), param=place)


def _given(request: SamplingFields) -> list[tuple[str, str | None, dict[str, Any]]]:
    """Each field that asks for a form: its name, the path of what it says (None: in its keys), and what it says."""
    found: list[tuple[str, str | None, dict[str, Any]]] = []
    if request.response_format is not None:
        found += _response_format(request.response_format)
    if request.structured_outputs is not None:
        found.append(("structured_outputs", None, _options(request.structured_outputs)))
    for name, kind in _GUIDED.items():
        if (value := getattr(request, name)) is not None:
            found.append((name, name, {kind: value}))
    return found


def _options(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise errors.malformed("structured_outputs: expected an object", "structured_outputs")
    unknown = sorted(name for name, value in given.items() if name not in _FIELDS and value is not None)
    if unknown:
        field = f"structured_outputs.{unknown[0][:64]}"
        raise errors.invalid(f"`{field}` is not supported by this server.", field)
    return {name: value for name, value in given.items() if value is not None}


def _response_format(given: Any) -> list[tuple[str, str | None, dict[str, Any]]]:
    name = "response_format"
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(kind, str):
        raise errors.malformed(f"{name}: expected an object with a type", name)
    if kind == "text":
        return []
    if kind == "json_object" and given.get("schema") is None:
        return [(name, name, {"json_object": True})]
    if kind == "structural_tag":
        return [(name, name, {"structural_tag": given})]
    if kind not in ("json_object", "json_schema"):
        message = f"`{name}.type` must be text, json_object, json_schema or structural_tag."
        raise errors.invalid(message, f"{name}.type")
    inner, place = given, name
    if isinstance(given.get("json_schema"), dict):
        inner, place = given["json_schema"], f"{name}.json_schema"
    schema = inner.get("schema")
    if not isinstance(schema, dict | bool):
        raise errors.invalid(f"`{place}.schema` must be a JSON schema.", f"{place}.schema")
    return [(name, f"{place}.schema", {"json": schema})]
