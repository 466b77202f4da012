"""Grammars of calls: what they let through, and that every text they let through is read as the calls that it has."""

import json
import random
from typing import Any

import pytest

from octavo.sampling_params import StructuredOutputsParams
from octavo.server.call_grammar import forced_output, forced_schema, strict_output
from octavo.server.tool_choice import Function, Tools
from octavo.server.tools import PARSERS
from octavo.server.tools.forced import RequiredParser
from octavo.structured.compiler import GrammarCompiler
from octavo.structured.vocabulary import Vocabulary
from tests.server.test_tool_parsers import read

END = 256
COMPILER = GrammarCompiler(Vocabulary([*(bytes([i]) for i in range(256)), b""], [END], [END]))
CITY = {"type": "object", "properties": {"city": {"enum": ["Köln", "Rom"]}, "days": {"type": "integer"}}, "required": ["city"]}
TREE = {
    "type": "object",
    "properties": {"value": {"type": "boolean"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["value"],
    "$defs": {"node": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
}
FUNCTIONS = (Function("weather", CITY, True), Function("now"), Function("tree", TREE), Function("free", {"type": "object"}))


def tools(choice: Any, *, parallel: bool = True) -> Tools:
    named = FUNCTIONS[0] if choice == "named" else None
    return Tools(definitions=[], functions=FUNCTIONS, choice=choice, named=named, parallel=parallel)


def accepts(wanted: StructuredOutputsParams | None, text: str) -> bool:
    """Whether the output may be ``text`` and end there."""
    assert wanted is not None
    matcher = COMPILER.compile(wanted)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def drawn(wanted: StructuredOutputsParams, seed: int, limit: int = 600) -> str | None:
    """Bytes drawn from what the grammar allows, plain ones rather; None when that does not end."""
    matcher, draw, found = COMPILER.compile(wanted), random.Random(seed), bytearray()
    for _ in range(limit):
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(257) if mask[i // 8] >> i % 8 & 1]
        plain = [i for i in allowed if i == END or chr(i) in '"}],0ax']
        token = draw.choice(plain if plain and draw.random() < 0.9 else allowed)
        if token == END:
            return found.decode(errors="replace")
        assert matcher.consume_token(token)
        found.append(token)
    return None


TREE_CALL = '{"name": "tree", "parameters": {"value": true, "next": {"value": false, "next": null}}}'


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (f'[{TREE_CALL}, {{"name":"now","parameters":{{}}}}]', True),
        ("[]", False),
        (f"[{TREE_CALL}] ", False),
        ('[{"name": "tree", "parameters": {"value": true, "next": {"value": "text"}}}]', False),
        ('[{"name": "now", "parameters": {"x": 1}}]', False),
        ('[{"name": "weather", "parameters": {"city": "Oslo"}}]', False),
        ('[{"name": "weather", "parameters": {"city": "Rom", "more": 1}}]', False),
        ('[{"name": "free", "parameters": {"anything": [1]}}]', True),
        ('[{"name": "other", "parameters": {}}]', False),
    ],
)
def test_required(text: str, fits: bool) -> None:
    assert accepts(forced_output(tools("required")), text) == fits


def test_one_call_only() -> None:
    one = forced_output(tools("required", parallel=False))
    assert accepts(one, f"[{TREE_CALL}]") and not accepts(one, f"[{TREE_CALL}, {TREE_CALL}]")


def test_a_named_function() -> None:
    plain = forced_output(tools("named"))
    assert accepts(plain, '{"city": "Köln", "days": 3}')
    assert not accepts(plain, "text") and not accepts(plain, 'hm</think>{"city": "Köln", "days": 3}')


NESTED = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/Place"}, "more": {"type": "object", "propertyNames": {"type": "string"}}},
    "required": ["at"],
    "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string", "format": "path"}}}},
}
BOTH = {
    "type": "object",
    "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
    "$defs": {"A": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
}


def test_arguments_are_closed_at_every_level() -> None:
    texts = {
        '{"at": {"city": "Rome"}}': True,
        '{"at": {"city": "Rome", "zip": 1}}': False,
        '{"at": {}, "x": 1}': False,
        '{"at": {}, "more": {"any": 1}}': True,
        '{"a": 1, "b": 2}': True,
    }
    for text, fits in texts.items():
        function = Function("f", BOTH if text.startswith('{"a"') else NESTED, True)
        choices: dict[Any, Any] = {"required": None, "named": function, "auto": None}
        made = {k: Tools(definitions=[], functions=(function,), choice=k, named=named) for k, named in choices.items()}
        assert accepts(forced_output(made["named"]), text) == fits, text
        assert accepts(forced_output(made["required"]), f'[{{"name": "f", "parameters": {text}}}]') == fits, text
        call = f'<tool_call>{{"name": "f", "arguments": {text}}}</tool_call>'
        assert accepts(strict_output(made["auto"], PARSERS["hermes"]), call) == fits, text


HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("any text, even <tool or {", True),
        ("", True),
        (f"text {HERMES}\n{HERMES} text", True),
        ('<tool_call>{"name": "free", "arguments": {"a": {}}}</tool_call>', True),
        ('<tool_call>{"name": "now", "arguments": {"not": "strict"}}</tool_call>', True),
        ('<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>', False),
        ('<tool_call>{"name": "other", "arguments": {}}</tool_call>', False),
        ("<tool_call> text", False),
        (HERMES.removesuffix("</tool_call>"), False),
    ],
)
def test_strict_functions_in_hermes(text: str, fits: bool) -> None:
    assert accepts(strict_output(tools("auto"), PARSERS["hermes"]), text) == fits


def test_strict_functions_one_at_a_time() -> None:
    one = strict_output(tools("auto", parallel=False), PARSERS["hermes"])
    assert accepts(one, f"text {HERMES} text") and not accepts(one, f"{HERMES}{HERMES}") and accepts(one, "text")


LLAMA = '{"name": "weather", "parameters": {"city": "Rom"}}'


@pytest.mark.parametrize(
    ("text", "fits"),
    [("text {", True), (LLAMA, True), (f"{LLAMA}; {LLAMA}", True), (LLAMA.replace("Rom", "Oslo"), False), ('{"x": 1}', False)],
)
def test_strict_functions_in_llama3_json(text: str, fits: bool) -> None:
    assert accepts(strict_output(tools("auto"), PARSERS["llama3_json"]), text) == fits


def test_nothing_to_keep_to() -> None:
    loose = Tools(definitions=[], functions=FUNCTIONS[1:], choice="auto")
    assert strict_output(loose, PARSERS["hermes"]) is None
    assert strict_output(tools("auto"), PARSERS["pythonic"]) is None


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_forced_is_read(seed: int) -> None:
    text = drawn(forced_output(tools("required")), seed)
    if text is None:
        return
    content, calls = read(RequiredParser(), list(text))
    assert calls and not content
    assert [{"name": name, "parameters": json.loads(arguments)} for name, arguments in calls] == json.loads(text)
    assert accepts(StructuredOutputsParams(json=forced_schema(tools("required"))), text)


def test_most_draws_end() -> None:
    wanted = forced_output(tools("required"))
    assert sum(drawn(wanted, seed) is not None for seed in range(0, 40, 2)) >= 10


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_strict_is_read(seed: int) -> None:
    wanted = strict_output(tools("auto"), PARSERS["hermes"])
    assert wanted is not None
    matcher = COMPILER.compile(wanted)
    assert matcher.try_consume_tokens(list(b"So: <tool_call>")) == 15
    begun = 'So: <tool_call>{"name": "weather", "arguments": {'
    text = begun + "".join(rest(wanted, begun, seed))
    _, calls = read(PARSERS["hermes"].parser(frozenset({"weather"})), [text])
    assert len(calls) == 1 and json.loads(calls[0][1])["city"] in ("Köln", "Rom")


def rest(wanted: StructuredOutputsParams, begun: str, seed: int) -> str:
    """What may follow ``begun`` up to the closing tag, drawn byte by byte."""
    matcher, draw, found = COMPILER.compile(wanted), random.Random(seed), bytearray()
    assert matcher.try_consume_tokens(list(begun.encode())) == len(begun.encode())
    while not found.endswith(b"</tool_call>"):
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(256) if mask[i // 8] >> i % 8 & 1]
        plain = [i for i in allowed if chr(i) in '"}0' or i > 127]
        token = draw.choice(plain or allowed)
        assert matcher.consume_token(token)
        found.append(token)
    return found.decode()
