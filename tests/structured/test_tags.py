"""Structural tags as grammars: what each shape lets through and what it does not, byte by byte."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from octavo.sampling_params import ParameterError, StructuredOutputsParams
from octavo.structured.compiler import GrammarCompiler, GrammarError
from octavo.structured.vocabulary import Vocabulary

BYTES = Vocabulary([bytes([i]) for i in range(256)] + [b"<eos>", b""], [256], [256])
INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
ANY = {"type": "any_text"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: dict[str, Any], end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def group(kind: str, *elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "elements": list(elements)}


TRIGGERED = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [tag("<f=a>", INTEGER, "</f>"), tag("<f=b>", ANY, "</f>")],
}
SEPARATED = {"type": "tags_with_separator", "tags": [tag("<a>", INTEGER, "</a>"), tag("<b>", const("x"), "")], "separator": ","}
NASTY = '"\\/\n\r\té\u2028😀[(*'


@pytest.fixture(scope="module")
def accepts() -> Callable[[Any, str], bool]:
    compiler = GrammarCompiler(BYTES)

    def check(form: Any, text: str) -> bool:
        matcher = compiler.compile(StructuredOutputsParams(structural_tag=form))
        data = text.encode()
        return matcher.try_consume_tokens(list(data)) == len(data) and bool(matcher.is_accepting())

    return check


CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "triggered": (
        TRIGGERED,
        ["", "x < f", "x<f=a>12</f>y<f=b>q\n</f>", "<f=a>1</f><f=a>2</f>", "é<f=b>日本</f>"],
        ["<f=a>x", "<f=c>", "<f=a>1", "x<f=", "<f=b>never ends"],
    ),
    "at least one": ({**TRIGGERED, "at_least_one": True}, ["<f=a>1</f> x <f=a>1</f>"], ["", "x", "x<f=a>1</f>"]),
    "the first is the last": ({**TRIGGERED, "stop_after_first": True}, ["x", "x<f=a>1</f>", ""], ["<f=a>1</f> x", "<f=a>"]),
    "exactly one": (
        {**TRIGGERED, "stop_after_first": True, "at_least_one": True},
        ["<f=a>1</f>", "<f=b>x</f>"],
        ["", "x<f=a>1</f>", "<f=a>1</f> x"],
    ),
    "excluded": ({**TRIGGERED, "excludes": ["bad"]}, ["go<f=a>1</f>od"], ["bad<f=a>1</f>", "bad", "<f=a>1</f>bad"]),
    "triggers of several": (
        {
            "type": "triggered_tags",
            "triggers": ["A", "B"],
            "tags": [tag("A1", INTEGER, ""), tag("Bx", const(""), "y")],
            "stop_after_first": True,
        },
        ["qA112", "qBxy"],
        ["qBx", "qA1x"],
    ),
    "nested": (tag("<t>", TRIGGERED, "</t>"), ["<t>a</t>", "<t>x<f=a>1</f>y</t>", "<t><f=a>1</f></t>"], ["<t>", "<t>x</t>y"]),
    "thought, then tags": (
        group("sequence", tag("<think>", ANY, "</think>"), TRIGGERED),
        ["<think>a b\n</think>q<f=a>1</f>", "<think></think>"],
        ["q", "<think>"],
    ),
    "or": (
        group("or", const("yes"), INTEGER, tag("[", {"type": "regex", "pattern": "[a-z/]+"}, ["]", ")"])),
        ["yes", "12", "[a/b]", "[a)"],
        ["no", "[a", "[A]"],
    ),
    "or in a tag": (tag("<t>", group("or", const("yes"), ANY), "</t>"), ["<t>yes</t>", "<t>no</t>"], ["<t>yes", "yes</t>"]),
    "separated": (SEPARATED, ["", "<a>1</a>", "<a>1</a>,<b>x,<a>2</a>"], ["<a>1</a>,", "<a>1</a><a>2</a>", "<b>x</b>"]),
    "separated by nothing": (
        {**SEPARATED, "separator": "", "at_least_one": True},
        ["<a>1</a>", "<a>1</a><b>x"],
        ["", "<a>1</a>,<a>2</a>"],
    ),
    "one of them": ({**SEPARATED, "stop_after_first": True}, ["", "<b>x"], ["<b>x,<b>x"]),
    "any text": ({**ANY, "excludes": ["bad", "w/r"]}, ["", "good", "ba"], ["a bad one", "w/r"]),
    "times": (
        group(
            "sequence",
            {"type": "optional", "content": const("a")},
            {"type": "plus", "content": const("b")},
            {"type": "star", "content": const("c")},
        ),
        ["ab", "bbcc", "b"],
        ["a", "ac", "aab"],
    ),
    "any characters": (tag(NASTY, const(NASTY), NASTY), [NASTY * 3], [NASTY * 2]),
    "any characters as triggers": (
        {"type": "triggered_tags", "triggers": [NASTY], "tags": [tag(NASTY, ANY, NASTY[::-1])]},
        ["x" + NASTY + "y" + NASTY[::-1] + "z"],
        [NASTY + "y"],
    ),
    "an end that is the outer one's": (tag("<t>", tag("<u>", ANY, ""), "</t>"), ["<t><u>x</t>"], ["<t><u>x"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_it_lets_through(name: str, accepts: Callable[[Any, str], bool]) -> None:
    format_, good, bad = CASES[name]
    for form in ({"type": "structural_tag", "format": format_}, json.dumps({"format": format_})):
        assert {text: accepts(form, text) for text in good} == dict.fromkeys(good, True)
        assert {text: accepts(form, text) for text in bad} == dict.fromkeys(bad, False)


def test_the_older_shape_means_the_same(accepts: Callable[[Any, str], bool]) -> None:
    bad = CASES["triggered"][2]
    structures = [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": '{"enum": [true]}', "end": "</f>"},
    ]
    older = {"type": "structural_tag", "structures": structures, "triggers": ["<f="]}
    for text in ("", "x", "x<f=a>12</f>y", "<f=b>true</f>"):
        assert accepts(older, text), text
    for text in ("<f=b>false</f>", "<f=a>", *bad):
        assert not accepts(older, text), text


@pytest.mark.parametrize(("levels", "words"), [(40, "at most 32 levels"), (500, "at most 32"), (100_000, "is not a JSON")])
def test_schemas_written_as_text_have_limits_too(levels: int, words: str) -> None:
    item = {"begin": "<a>", "schema": '{"const":' + "[" * levels + "]" * levels + "}", "end": "</a>"}
    form = StructuredOutputsParams(structural_tag={"structures": [item], "triggers": ["<a>"]})
    for act in (GrammarCompiler(BYTES).check, GrammarCompiler(BYTES).compile):
        with pytest.raises(GrammarError, match=words):
            act(form)


def test_options_of_json_hold_in_tags() -> None:
    compiler = GrammarCompiler(BYTES)
    form = {"format": {"type": "json_schema", "json_schema": {"properties": {"a": {"type": "integer"}}}}}
    texts = {b'{"a":1}': True, b'{"a": 1}': False, b'{"a":1,"b":2}': False}
    for text, good in texts.items():
        wanted = StructuredOutputsParams(structural_tag=form, disable_any_whitespace=True, disable_additional_properties=True)
        assert (compiler.compile(wanted).try_consume_tokens(list(text)) == len(text)) == good


def test_what_is_deep_is_written_once() -> None:
    """Tags that must come are written where they begin and behind their trigger; their contents must not double each time."""
    inner: dict[str, Any] = const("x")
    for level in range(12):
        name = f"<{level}>"
        tags = [{"begin": name, "content": inner, "end": f"</{level}>"}]
        inner = {"type": "triggered_tags", "triggers": [name], "tags": tags, "at_least_one": True}
    GrammarCompiler(BYTES).check(StructuredOutputsParams(structural_tag={"format": inner}))


def test_limits() -> None:
    deep: Any = const("x")
    for _ in range(48):
        deep = {"type": "optional", "content": deep}
    for form, words in (
        ({"format": deep}, "at most 48 levels"),
        ({"format": const("x" * (256 << 10))}, "at most 262144 bytes"),
        (5, "must be a JSON object"),
        ("", "cannot be empty"),
        ({"format": const("\ud800")}, "structural_tag"),
    ):
        with pytest.raises(ParameterError, match=words):
            StructuredOutputsParams(structural_tag=form)
