"""Parsers of calls: what each makes of its own form, of what looks like it, and that pieces never matter."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.tools import PARSERS, detect
from octavo.server.tools.events import CallStart, Content, Event, Parser
from octavo.server.tools.forced import NamedParser, RequiredParser
from octavo.server.tools.pieces import NotJson, ValueEnd
from octavo.server.tools.written import read_arguments, read_call

NAMES = frozenset({"f", "get_weather", "größe", "a.b"})


def read(parser: Parser, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """-> (content, calls with their arguments)"""
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(piece)
    events += parser.finish()
    text, calls = "", []
    for event in events:
        if isinstance(event, Content):
            text += event.text
        elif isinstance(event, CallStart):
            calls.append([event.name, ""])
        else:
            calls[-1][1] += event.text
    return text, [(name, arguments) for name, arguments in calls]


def parse(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    """The whole at once, and character by character: the same."""
    whole = read(PARSERS[name].parser(NAMES), [text])
    assert read(PARSERS[name].parser(NAMES), list(text)) == whole
    return whole


WEATHER = ("get_weather", '{"city": "Köln"}')

LONG_NUMBERS = [f'{{"a": "{"9" * 400}", "b": {"9" * 300}}}', f'{{"a": -{"9" * 30}, "b": 0.{"1" * 400}}}']

GOOD = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>', "", [WEATHER]),
    ("hermes", 'ok <tool_call>{"arguments": {"city": "Köln"}, "name": "get_weather"}', "ok ", [WEATHER]),
    (
        "hermes",
        'a<tool_call>{"name":"f"}</tool_call>b<tool_call>{"name":"f","arguments":null}</tool_call>c',
        "abc",
        [("f", "{}")] * 2,
    ),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "", [("unknown", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call> \\" } \\\\"}}</tool_call>',
        "",
        [("f", '{"x": "</tool_call> \\" } \\\\"}')],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", '{"x": 1}')]),
    ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Köln"}}]', "", [WEATHER]),
    (
        "mistral",
        'x[TOOL_CALLS][{"name": "f", "arguments": {}} , {"name": "f", "arguments": {"a": [1]}, "id": "abc"}]',
        "x",
        [("f", "{}"), ("f", '{"a": [1]}')],
    ),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Köln"}[TOOL_CALLS]f[ARGS]{}', "", [WEATHER, ("f", "{}")]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": "[TOOL_CALLS]"}', "", [("f", '{"a": "[TOOL_CALLS]"}')]),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Köln"}}', "", [WEATHER]),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "f", "arguments": {"a": 1}}',
        "",
        [("f", "{}"), ("f", '{"a": 1}')],
    ),
    ("llama3_json", 'Sure. <|python_tag|>{"name": "f", "parameters": {}}', "Sure. ", [("f", "{}")]),
    *(("hermes", f'<tool_call>{{"name": "f", "arguments": {a}}}</tool_call>', "", [("f", a)]) for a in LONG_NUMBERS),
    ("pythonic", "[get_weather(city='Köln')]", "", [WEATHER]),
    (
        "pythonic",
        ' [f(a=[1, -2.5, {"k": None}], b=True, c="it\\\'s (\\n])"), a.b()]\n',
        " \n",
        [("f", '{"a": [1, -2.5, {"k": null}], "b": true, "c": "it\'s (\\n])"}'), ("a.b", "{}")],
    ),
    ("pythonic", "<|python_start|>[f(x=(1, 2,), y='a' 'b',)]<|python_end|>", "", [("f", '{"x": [1, 2], "y": "ab"}')]),
    ("pythonic", "[größe(x='\\u00e4\\x41\\d')]", "", [("größe", '{"x": "äA\\\\d"}')]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), GOOD)
def test_calls(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found, made = parse(name, text)
    assert made == calls
    assert found.strip() == content.strip()


NO_CALLS = [
    ("hermes", "no <tool_call> at all"),
    ("hermes", "<tool_call></tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>'),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"a": [{"9" * 400}]}}}}</tool_call>'),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": "{{\\"a\\": -{"9" * 5000}}}"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 70),
    ("hermes", "almost <tool_cal"),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] [1, 2]"),
    ("mistral", '[TOOL_CALLS] [{"name": "f"'),
    ("mistral", "[TOOL_CALLS]f" + "x" * 1000),
    ("mistral", "[TOOL_CALLS]not a name{}"),
    ("mistral", f'[TOOL_CALLS]f{{"a": {"9" * 400}}}'),
    ("llama3_json", '{"name": "someone else", "parameters": {}}'),
    ("llama3_json", '{"answer": 42}'),
    ("llama3_json", 'text first {"name": "f", "parameters": {}}'),
    ("llama3_json", '<|python_tag|>print("x")'),
    ("pythonic", "[1, 2, 3]"),
    ("pythonic", "[f(1)]"),
    ("pythonic", "[f(a=g())]"),
    ("pythonic", "[f(a=1, a=2)]"),
    ("pythonic", "[f(a=1)(b=2)]"),
    ("pythonic", "[f](http://f(a=1))"),
    ("pythonic", "[unknown(a=1)]"),
    ("pythonic", "[f(a=1), unknown(a=1)]"),
    ("pythonic", "[f(a=1"),
    ("pythonic", "[f(a='x\ny')]"),
    ("pythonic", "[f(a='\\ud800')]"),
    ("pythonic", "[f(a='\\U00110000')]"),
    ("pythonic", "[f(a=1e999)]"),
    ("pythonic", f"[f(a=-{'9' * 400})]"),
    ("pythonic", "[f(a=" + "[" * 100),
    ("pythonic", "[f(a=" + "-" * 10000 + "1)]"),
    ("pythonic", "[f(a=__import__('os'))]"),
]


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_stays_content(name: str, text: str) -> None:
    assert parse(name, text) == (text, [])


def test_a_broken_call_does_not_hide_the_next() -> None:
    broken = '<tool_call>\n{"name": "f", "arguments": {"a": "open}}\n</tool_call>\n'
    good = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert parse("hermes", broken + good) == (broken, [WEATHER])


def test_text_before_a_call_does_not_wait_for_it() -> None:
    parser = PARSERS["hermes"].parser(NAMES)
    assert parser.push("I will look <tool") == [Content("I will look ")]
    assert parser.push(" up") == [Content("<tool up")]
    listing = PARSERS["pythonic"].parser(NAMES)
    assert listing.push("[1") == [Content("[1")]


REQUIRED = [
    (
        '[{"name": "f", "parameters": {"a": "]}"}}, {"name":"größe","parameters":{}}]',
        "",
        [("f", '{"a": "]}"}'), ("größe", "{}")],
    ),
    ('[{"name": "f", "parameters": {"a": "cut', "", [("f", '{"a": "cut')]),
    ('[{"name": "f", "param', '[{"name": "f", "param', []),
    ('[{"name": "f", "parameters": {}},\n\n{\n  "name": "', "", [("f", "{}")]),
    ('[{"name": "f", "parameters": {}}, ', "", [("f", "{}")]),
    ("nothing of the kind", "nothing of the kind", []),
    ('[{"name": "f", "parameters": {}} what', " what", [("f", "{}")]),
    (" " * 5000 + '[{"name": "f", "parameters": {}}]', " " * 5000 + '[{"name": "f", "parameters": {}}]', []),
    *((text, text, []) for text in (f'[{{"name": "{name}", "parameters": {{}}}}]' for name in ("a\nb", "\\ud800", "\\q"))),
]


@pytest.mark.parametrize(("text", "content", "calls"), REQUIRED)
def test_required_calls_stream_as_they_are_written(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for pieces in ([text], list(text), [text[i : i + 7] for i in range(0, len(text), 7)]):
        found, made = read(RequiredParser(), pieces)
        assert (found.strip(), made) == (content.strip(), calls)


def test_the_arguments_of_a_named_function_are_the_text() -> None:
    assert read(NamedParser("f"), ["", '{"a"', ": 1}"]) == ("", [("f", '{"a": 1}')])
    assert read(NamedParser("f"), [""]) == ("", [])


# Random outputs: well-formed ones in every form, pieces of them, and markers where they do not belong.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('ab"\\{}[]()\'<>/äé\n\t😀,=:'))
    | st.sampled_from(["</tool_call>", "[TOOL_CALLS]", "<tool_call>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), JSON, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), min_size=1, max_size=3)
NOISE = st.lists(
    st.sampled_from([
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|python_start|>", "<|python_end|>", "[ARGS]",
        "[CALL_ID]", "{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ";", ":", "=", " ", "\n", "f",
        '{"name": "f", "arguments": {}}',
        '{"name": "f", "parameters": {"a": "b"}}', "[f(a=1)]", "f{}", "ä", "😀", "<tool", "[TOOL", "text ",
    ])
    | st.text(max_size=5),
    max_size=12,
).map("".join)  # fmt: skip


def written(name: str, calls: list[tuple[str, dict[str, Any]]], style: int) -> str:
    """``calls`` in the form of a parser."""
    dumped = [(f, json.dumps(a, ensure_ascii=style % 2 == 0, indent=style % 3 or None)) for f, a in calls]
    if name == "hermes":
        objects = [f'{{"name": {json.dumps(f)}, "arguments": {a}}}' for f, a in dumped]
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
    if name == "mistral" and style % 2 and all(f.isidentifier() for f, _ in calls):
        return "".join(f"[TOOL_CALLS]{f}[ARGS]{a}" for f, a in dumped)
    if name == "mistral":
        return "[TOOL_CALLS] [" + ", ".join(f'{{"name": {json.dumps(f)}, "arguments": {a}}}' for f, a in dumped) + "]"
    if name == "llama3_json":
        return "; ".join(f'{{"name": {json.dumps(f)}, "parameters": {a}}}' for f, a in dumped)
    return "[" + ", ".join(f"{f}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for f, a in calls) + "]"


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=150)
@given(data=st.data())
def test_what_was_called_is_read(name: str, data: st.DataObject) -> None:
    calls = data.draw(CALLS)
    text = written(name, calls, data.draw(st.integers(0, 5)))
    content, made = read(PARSERS[name].parser(NAMES), data.draw(cut(text)))
    assert [(f, json.loads(a)) for f, a in made] == calls
    assert not content.strip()


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=300)
@given(data=st.data())
def test_pieces_joined_are_the_whole(name: str, data: st.DataObject) -> None:
    calls = written(name, data.draw(CALLS), data.draw(st.integers(0, 5)))
    damaged = calls[: data.draw(st.integers(0, len(calls)))] + calls[data.draw(st.integers(0, len(calls))) :]
    text = data.draw(NOISE) + data.draw(st.sampled_from([calls, damaged, ""])) + data.draw(NOISE)
    whole = read(PARSERS[name].parser(NAMES), [text])
    assert read(PARSERS[name].parser(NAMES), data.draw(cut(text))) == whole
    for _, arguments in whole[1]:
        assert isinstance(json.loads(arguments), dict)
        arguments.encode()
    if not whole[1]:
        assert whole[0] == text, "what is no call is content, letter for letter"


@settings(max_examples=200)
@given(data=st.data(), value=st.dictionaries(st.text(max_size=4), JSON, max_size=3) | st.lists(JSON, max_size=3))
def test_the_end_of_json_is_found(data: st.DataObject, value: Any) -> None:
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])))
    end, fed = ValueEnd(), 0
    for piece in data.draw(cut(text + data.draw(NOISE))):
        at = end.feed(piece) if piece else None
        if at is not None:
            assert text == (text + "x")[: fed + at]
            assert fed + at == len(text)
            return
        fed += len(piece)
    raise AssertionError("no end")


def test_mismatched_brackets_end_at_once() -> None:
    with pytest.raises(NotJson) as error:
        ValueEnd().feed('{"a": [1}')
    assert error.value.at == 8


def test_arguments_are_the_models_own_words() -> None:
    call = read_call('{"name": "f", "arguments": {"b" : 1.50, "a":1e2, "b":2} }')
    assert call is not None and call.arguments == '{"b" : 1.50, "a":1e2, "b":2}'
    assert read_arguments(" {} ") == "{}" and read_arguments("[]") is None and read_arguments('"x"') is None


TEMPLATES = [
    ('For each call: <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>', "hermes"),
    ("{{ '[TOOL_CALLS] [' }}", "mistral"),
    ("""{%- if message.role == "ipython" %} {"name": function name, "parameters": dictionary} {%- endif %}""", "llama3_json"),
    ("[func_name1(params_name1=params_value1), func_name2(params)]", "pythonic"),
    ("<tool_call>\n<function=example>\n<parameter=x>", None),
    ("{{ messages }}", None),
    ('<tool_call> "arguments" [TOOL_CALLS]', None),
]


@pytest.mark.parametrize(("template", "name"), TEMPLATES)
def test_the_form_is_known_by_the_template(template: str, name: str | None) -> None:
    assert detect(template) == name
