"""Structural tags: text of which parts have a form, free text around them -> one grammar (Lark as llguidance reads it).

Owns the shapes that clients send, ``{"structures", "triggers"}`` and ``{"format"}``, with the meaning that xgrammar gives them,
and what is said against them, by path. Where free text ends must always be known: at a tag's end, or with the output.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from octavo.config import complaint_of
from octavo.sampling_params import MAX_SCHEMA_DEPTH, ParameterError, check_shape

Schema = bool | dict[str, Any]
_CONTENT = re.compile(r"content(\.json_schema)?")
_ANY = "(.|\\n)*"


class TagError(ValueError):
    """A structural tag that means nothing here. ``path`` is where in it."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class ConstString(msgspec.Struct, tag="const_string", forbid_unknown_fields=True):
    """This text."""

    value: str


class JsonSchema(msgspec.Struct, tag="json_schema", forbid_unknown_fields=True):
    """JSON that is valid by a schema."""

    json_schema: Schema


class Regex(msgspec.Struct, tag="regex", forbid_unknown_fields=True):
    """Text that a regular expression matches as a whole."""

    pattern: str


class AnyText(msgspec.Struct, tag="any_text", forbid_unknown_fields=True):
    """Free text without any of ``excludes`` in it."""

    excludes: list[str] = []


class InOrder(msgspec.Struct, tag="sequence", forbid_unknown_fields=True):
    """One after the other."""

    elements: list["Format"]


class Or(msgspec.Struct, tag="or", forbid_unknown_fields=True):
    """One of them."""

    elements: list["Format"]


class Maybe(msgspec.Struct, tag="optional", forbid_unknown_fields=True):
    """Once or not at all."""

    content: "Format"


class Star(msgspec.Struct, tag="star", forbid_unknown_fields=True):
    """As often as the model likes."""

    content: "Format"


class Plus(msgspec.Struct, tag="plus", forbid_unknown_fields=True):
    """As often as the model likes, but once at the least."""

    content: "Format"


class Tag(msgspec.Struct, tag="tag", forbid_unknown_fields=True):
    """``content`` between ``begin`` and one of ``end``; with an empty end it goes on to the end of what it is in."""

    begin: str
    content: "Format"
    end: str | list[str]

    @property
    def ends(self) -> list[str]:
        return [self.end] if isinstance(self.end, str) else self.end


class TriggeredTags(msgspec.Struct, tag="triggered_tags", forbid_unknown_fields=True):
    """Free text until one of ``triggers``, which begins one of ``tags``; then again. ``at_least_one``: it begins with a tag;
    ``stop_after_first``: a tag ends it."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []


class TagsWithSeparator(msgspec.Struct, tag="tags_with_separator", forbid_unknown_fields=True):
    """Tags and nothing else, ``separator`` between them."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString | JsonSchema | Regex | AnyText | InOrder | Or | Maybe | Star | Plus | Tag | TriggeredTags | TagsWithSeparator
)


class Structure(msgspec.Struct, forbid_unknown_fields=True):
    """A tag in the older shape."""

    begin: str
    schema: Schema | str
    end: str


class OlderTags(msgspec.Struct, forbid_unknown_fields=True):
    structures: list[Structure]
    triggers: list[str]
    type: str = "structural_tag"


class NewerTags(msgspec.Struct, forbid_unknown_fields=True):
    format: Format
    type: str = "structural_tag"


class Tags(msgspec.Struct, frozen=True):
    """What a client asks for, whichever shape it used."""

    format: Format
    older: bool

    def place(self, path: str) -> str:
        """A path in ``format`` as the client's own."""
        if not self.older:
            return f"format{path}"
        return _CONTENT.sub("schema", path.replace(".tags[", ".structures[", 1), count=1).removeprefix(".")


def read_tags(value: Any) -> Tags:
    """A client's structural tag, a decoded JSON object. Raises ``TagError``."""
    older = isinstance(value, dict) and "structures" in value
    try:
        if not older:
            return Tags(msgspec.convert(value, NewerTags).format, older=False)
        given = msgspec.convert(value, OlderTags)
    except msgspec.ValidationError as error:
        raise TagError(*complaint_of(error)) from None
    tags = [
        Tag(begin=item.begin, content=JsonSchema(_decoded(item.schema, f"structures[{i}].schema")), end=item.end)
        for i, item in enumerate(given.structures)
    ]
    return Tags(TriggeredTags(given.triggers, tags), older=True)


def _decoded(schema: Schema | str, path: str) -> Schema:
    if not isinstance(schema, str):
        return schema
    try:
        decoded: Schema = msgspec.json.decode(schema, type=Schema)
        check_shape("a schema", decoded, most_levels=MAX_SCHEMA_DEPTH)
        return decoded
    except (msgspec.MsgspecError, RecursionError):
        raise TagError("is not a JSON schema", path) from None
    except ParameterError as error:
        raise TagError(str(error), path) from None


def leaves_of(node: Format, path: str = "") -> Iterator[tuple[str, JsonSchema | Regex]]:
    """What in a format is compiled by itself, with its path."""
    if isinstance(node, JsonSchema):
        yield f"{path}.json_schema", node
    elif isinstance(node, Regex):
        yield f"{path}.pattern", node
    for step, inner in _inside(node):
        yield from leaves_of(inner, f"{path}.{step}")


def _inside(node: Format) -> Iterator[tuple[str, Format]]:
    if isinstance(node, InOrder | Or):
        yield from ((f"elements[{i}]", inner) for i, inner in enumerate(node.elements))
    elif isinstance(node, TriggeredTags | TagsWithSeparator):
        yield from ((f"tags[{i}]", inner) for i, inner in enumerate(node.tags))
    elif isinstance(node, Tag | Maybe | Star | Plus):
        yield "content", node.content


class _End(msgspec.Struct, frozen=True):
    """What comes after a format: the output's end, one of ``texts`` (the terminal ``name``), or something that free text could
    not be told from (``known`` False)."""

    known: bool = True
    name: str = ""
    texts: tuple[str, ...] = ()


_OUTPUT_ENDS = _End()
_MORE_COMES = _End(known=False)


class TagGrammar:
    """Writes the rules of one format. ``schema_rule`` writes the grammar's expression for a JSON schema, ``regex_rule`` the one
    for a regular expression."""

    def __init__(self, *, schema_rule: Callable[[Schema], str], regex_rule: Callable[[str], str]) -> None:
        self._schema_rule = schema_rule
        self._regex_rule = regex_rule
        self._lines: list[str] = []
        self._names: dict[str, str] = {}
        self._bodies: dict[tuple[str, _End], str] = {}

    def write(self, node: Format) -> str:
        """The whole grammar. Raises ``TagError``."""
        start = self._write(node, "", _OUTPUT_ENDS)
        return "\n".join([f"start: {start}", *self._lines, ""])

    def _write(self, node: Format, path: str, end: _End) -> str:
        """An expression for ``node`` and for ``end`` after it."""
        match node:
            case AnyText():
                return self._any_text(node, path, end)
            case Tag():
                return self._tag(node, node.begin, path, end)
            case TriggeredTags():
                return self._triggered(node, path, end)
            case Or():
                _require(bool(node.elements), "must not be empty", f"{path}.elements")
                each = [self._write(inner, f"{path}.elements[{i}]", end) for i, inner in enumerate(node.elements)]
                return _any_of(each)
            case InOrder():
                _require(bool(node.elements), "must not be empty", f"{path}.elements")
                last = len(node.elements) - 1
                places = enumerate(node.elements)
                ends = [end if i == last else _MORE_COMES for i in range(last + 1)]
                return _joined(*(self._write(inner, f"{path}.elements[{i}]", ends[i]) for i, inner in places))
            case _:
                return _joined(self._bounded(node, path), end.name)

    def _bounded(self, node: Format, path: str) -> str:
        """An expression for what ends by itself."""
        match node:
            case ConstString():
                return _text(node.value)
            case JsonSchema():
                return self._named("json", self._schema_rule(node.json_schema))
            case Regex():
                return self._named("REGEX", self._regex_rule(node.pattern))
            case Maybe() | Star() | Plus():
                times = {"optional": "?", "star": "*", "plus": "+"}[str(node.__struct_config__.tag)]
                return f"({self._write(node.content, f'{path}.content', _MORE_COMES)}){times}"
            case TagsWithSeparator():
                return self._separated(node, path)
        raise TypeError(type(node).__name__)

    def _any_text(self, node: AnyText, path: str, end: _End) -> str:
        _require_texts(node.excludes, f"{path}.excludes")
        return self._free(node.excludes, path, end)

    def _free(self, without: Iterable[str], path: str, end: _End) -> str:
        """Free text without some strings, and ``end``."""
        if not end.known:
            message = "free text must come last, or be the content of a tag with an end, so that it is known where it ends"
            raise TagError(message, path)
        text = self._text_without(without)
        return self._named("text", text, option=f"[suffix={end.name}]") if end.name else text

    def _text_without(self, without: Iterable[str]) -> str:
        excluded = " | ".join(sorted({_text(item) for item in without}))
        minus = f" & ~(/{_ANY}/ ({excluded}) /{_ANY}/)" if excluded else ""
        return self._named("ANY", f"/{_ANY}/{minus}")

    def _tag(self, tag: Tag, begin: str, path: str, end: _End) -> str:
        """``begin`` is what is left to write of the tag's own. The rest of it is written once for all places that it has."""
        key = path, end
        if key not in self._bodies:
            self._bodies[key] = self._named("body", self._after_begin(tag, path, end))
        return _joined(_text(begin), self._bodies[key])

    def _after_begin(self, tag: Tag, path: str, end: _End) -> str:
        _require(bool(tag.ends), "must not be empty", f"{path}.end")
        if tag.ends == [""]:
            return self._write(tag.content, f"{path}.content", end)
        _require_texts(tag.ends, f"{path}.end")
        name = self._named("END", " | ".join(_text(item) for item in tag.ends))
        own = _End(name=name, texts=tuple(tag.ends))
        return _joined(self._write(tag.content, f"{path}.content", own), end.name)

    def _triggered(self, node: TriggeredTags, path: str, end: _End) -> str:
        self._check_triggers(node, path, end)
        inner = _OUTPUT_ENDS if node.stop_after_first and not end.name and end.known else _MORE_COMES
        places = list(enumerate(node.tags))
        first = (
            _any_of([self._tag(tag, tag.begin, f"{path}.tags[{i}]", inner) for i, tag in places]) if node.at_least_one else ""
        )
        if node.at_least_one and node.stop_after_first:
            return _joined(first, end.name)
        text = self._text_without(node.excludes)
        begun = []
        for trigger in node.triggers:
            head = self._named("head", text, option=f"[suffix={_text(trigger)}]")
            tails = [
                self._tag(tag, tag.begin.removeprefix(trigger), f"{path}.tags[{i}]", inner)
                for i, tag in places
                if tag.begin.startswith(trigger)
            ]
            begun.append(_joined(head, _any_of(tails)))
        rest = self._free([*node.triggers, *node.excludes], path, end)
        if node.stop_after_first:
            return _any_of([_joined(_any_of(begun), end.name), rest])
        return _joined(first, f"{_any_of(begun)}*", rest)

    def _check_triggers(self, node: TriggeredTags, path: str, end: _End) -> None:
        _require_texts(node.triggers, f"{path}.triggers")
        _require_texts(node.excludes, f"{path}.excludes")
        _require(bool(node.triggers), "must not be empty", f"{path}.triggers")
        _require(bool(node.tags), "must not be empty", f"{path}.tags")
        for i, trigger in enumerate(node.triggers):
            place = f"{path}.triggers[{i}]"
            for other in [*node.triggers[:i], *node.triggers[i + 1 :], *end.texts]:
                ok = trigger not in other and other not in trigger
                _require(ok, f"{_text(trigger)} and {_text(other)} must not be part of one another", place)
            _require(any(tag.begin.startswith(trigger) for tag in node.tags), "none of the tags begins with it", place)
        for i, tag in enumerate(node.tags):
            ok = any(tag.begin.startswith(trigger) for trigger in node.triggers)
            _require(ok, "none of the triggers begins it", f"{path}.tags[{i}].begin")

    def _separated(self, node: TagsWithSeparator, path: str) -> str:
        _require(bool(node.tags), "must not be empty", f"{path}.tags")
        tags = [self._tag(tag, tag.begin, f"{path}.tags[{i}]", _MORE_COMES) for i, tag in enumerate(node.tags)]
        one = self._named("one", _any_of(tags))
        several = one if node.stop_after_first else f"{one} ({_joined(_text(node.separator), one)})*"
        return several if node.at_least_one else f"({several})?"

    def _named(self, kind: str, body: str, *, option: str = "") -> str:
        """The name of a rule, or of a terminal if ``kind`` is in capitals: a new one unless there is one with the same body."""
        key = f"{kind}{option}: {body}"
        if key not in self._names:
            self._names[key] = f"{kind}_{len(self._names)}"
            self._lines.append(f"{self._names[key]}{option}: {body}")
        return self._names[key]


def _require(ok: bool, message: str, path: str) -> None:
    if not ok:
        raise TagError(message, path)


def _require_texts(texts: Sequence[str], path: str) -> None:
    for i, text in enumerate(texts):
        _require(text != "", "must not be an empty string", path if len(texts) == 1 else f"{path}[{i}]")


def _text(text: str) -> str:
    """A literal; nothing for the empty one."""
    return json.dumps(text) if text else ""


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part) or '""'


def _any_of(parts: Sequence[str]) -> str:
    return f"({' | '.join(parts)})"
