"""Forms of text on a tiny model: each form, how texts end, what it composes with, what is refused, bit for bit in company."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from octavo.sampling_params import BeamSearch, ParameterError
from octavo.structured.compiler import GrammarCompiler, GrammarError, _lark
from octavo.structured.matching import GrammarThread
from octavo.structured.schema_walk import FORMATS, path_at_fault, without_additional_properties, without_idle_keywords
from octavo.structured.vocabulary import Vocabulary
from tests.server.tiny import write_tiny_llama

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["a", "bb"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
BYTES = Vocabulary([bytes([i]) for i in range(256)] + [b"<eos>", b""], [256], [256])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    llm = LLM(str(model), max_num_seqs=16, num_gpu_blocks_override=600)
    yield llm
    llm.shutdown()


def allowed(grammar: Any) -> list[int]:
    """The token ids of its next mask."""
    grammar.compute_mask()
    tokens: list[int] = np.flatnonzero(np.unpackbits(grammar.mask, bitorder="little")).tolist()
    return tokens


def run(llm: LLM, form: dict[str, Any], **options: Any) -> RequestOutput:
    fields = {"temperature": 1.0, "seed": 5, "max_tokens": 200, **options}
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**form), **fields)
    return llm.generate("text", params, use_tqdm=False)[0]


def text(llm: LLM, form: dict[str, Any], **options: Any) -> str:
    (output,) = run(llm, form, **options).outputs
    assert output.finish_reason == "stop"
    return output.text


def test_what_tells_gbnf_costs_the_length_of_the_text() -> None:
    """Not its square, in which this would not end."""
    text = "\n" * 2_000_000 + "a" + "\n" * 2_000_000
    assert _lark(text) == text


def test_every_form(llm: LLM) -> None:
    assert set(json.loads(text(llm, {"json": SCHEMA}))) == {"name", "kind"}
    assert set(json.loads(text(llm, {"json": json.dumps(SCHEMA)}, temperature=0.0))) == {"name", "kind"}
    assert re.fullmatch("[a-c]{2,5}@x", text(llm, {"regex": "[a-c]{2,5}@x"}))
    choices = ['yes "x"', "no\n", "mäybe", "a\\b", "{x}"]
    drawn = {text(llm, {"choice": choices}, seed=seed) for seed in range(30)}
    assert len(drawn) > 2 and drawn <= set(choices)
    assert re.fullmatch("a(ba)*c", text(llm, {"grammar": 'start: "a" ("ba")* "c"'}))
    assert re.fullmatch("a ::= b[0-9]{2}", text(llm, {"grammar": '// a ::= b\nstart: "a ::= b" /[0-9]{2}/'}))
    assert re.fullmatch("x([0-9]-){1,3}", text(llm, {"grammar": 'root ::= "x" item item? item?\nitem ::= [0-9] "-"'}))
    compact = text(llm, {"json": SCHEMA, "disable_any_whitespace": True})
    assert compact.startswith('{"name":"') and '","kind":"' in compact
    spaced = text(llm, {"json": SCHEMA, "whitespace_pattern": "  "})
    assert set(re.split(r'"[^"]*"|[{}:,]', spaced)) == {"", "  "}
    output = run(llm, {"json_object": True}, max_tokens=400).outputs[0]
    assert output.finish_reason == "length" or isinstance(json.loads(output.text), dict)


def test_every_choice_is_one_of_them_whatever_the_characters(llm: LLM) -> None:
    nasty = ["".join(map(chr, range(low, low + 24))) for low in (1, 32, 56, 80, 104, 0xA1, 0x4E00, 0x1F600)] + [
        "a\rb",
        "\u2028",
    ]
    for choice in nasty:
        assert text(llm, {"choice": [choice]}, max_tokens=300) == choice


def test_end_of_sequence_ends_what_is_complete_and_what_may_end(llm: LLM) -> None:
    eos = llm.get_tokenizer().eos_token_id
    output = run(llm, {"choice": ["yes"]}).outputs[0]
    assert output.text == "yes" and output.token_ids[-1] == eos
    for options in ({"ignore_eos": True}, {"min_tokens": 50}, {"allowed_token_ids": list(range(3, 900))}):
        output = run(llm, {"choice": ["yes"]}, **options).outputs[0]
        assert (output.text, output.finish_reason) == ("yes", "stop") and eos not in output.token_ids
    output = run(llm, {"regex": "[a-z]+"}, ignore_eos=True, max_tokens=60).outputs[0]
    assert output.finish_reason == "length" and re.fullmatch("[a-z]+", output.text)
    output = run(llm, {"regex": "[a-z]{3}[a-z]*"}, logit_bias={eos or 0: 100.0}).outputs[0]
    assert output.finish_reason == "stop" and re.fullmatch("[a-z]{3,}", output.text)


def test_what_leaves_no_token_ends_that_request_alone(llm: LLM) -> None:
    params = [
        SamplingParams(temperature=0.0, structured_outputs=StructuredOutputsParams(choice=["no"]), allowed_token_ids=[3]),
        SamplingParams(temperature=0.0, structured_outputs=StructuredOutputsParams(choice=["no"])),
    ]
    impossible, possible = llm.generate(["a", "a"], params, use_tqdm=False)
    assert impossible.outputs[0].finish_reason == "error" and impossible.outputs[0].token_ids == []
    assert possible.outputs[0].text == "no"


def test_it_composes(llm: LLM) -> None:
    several = run(llm, {"json": SCHEMA}, n=4).outputs
    assert len({branch.text for branch in several}) > 1
    assert all(json.loads(branch.text)["kind"] in ("a", "bb") for branch in several)
    best = run(llm, {"json": SCHEMA}, n=1, best_of=3, logprobs=2).outputs[0]
    assert json.loads(best.text) and best.logprobs is not None and len(best.logprobs) == len(best.token_ids)
    assert run(llm, {"regex": "[a-z]{30}"}, stop=["o"], include_stop_str_in_output=True).outputs[0].text.endswith("o")
    compact, underscore = {"json": SCHEMA, "disable_any_whitespace": True}, llm.get_tokenizer().encode("_")[0]
    biased: dict[str, Any] = {"logit_bias": {underscore: 20.0}}
    options: list[dict[str, Any]] = [{}, {"bad_words": ["a"]}, biased, {**biased, "repetition_penalty": 30.0}]
    plain, other, long, varied = [json.loads(text(llm, compact, **each)) for each in options]
    assert (plain["kind"], other["kind"], long["name"]) == ("a", "bb", "______")
    assert varied["name"].count("_") == 1 and varied["kind"] in ("a", "bb")
    with pytest.raises(ParameterError, match="beam search"):
        SamplingParams(beam=BeamSearch(width=2), structured_outputs=StructuredOutputsParams(regex="a"))


def test_rows_in_company_are_those_alone(llm: LLM) -> None:
    forms: list[dict[str, Any]] = [{"json": SCHEMA}, {"regex": "[a-z ]{5,40}"}, {"choice": ["aa", "ab", "b"]}, {}]
    prompts = ["one", "two words", "three", "and this one is longer"] * 4
    params = [
        SamplingParams(
            n=1 + i % 2,
            temperature=float(i % 3 > 0),
            seed=i,
            max_tokens=60,
            logprobs=1,
            structured_outputs=StructuredOutputsParams(**forms[i % 4]) if forms[i % 4] else None,
        )
        for i in range(16)
    ]
    together = llm.generate(prompts, params, use_tqdm=False)
    for prompt, one, output in zip(prompts, params, together, strict=True):
        alone = llm.generate(prompt, one, use_tqdm=False)[0]
        assert [(b.token_ids, b.cumulative_logprob) for b in alone.outputs] == [
            (b.token_ids, b.cumulative_logprob) for b in output.outputs
        ]


def test_speculation_leaves_them_alone(model: Path, llm: LLM) -> None:
    plain = LLM(str(model), max_num_seqs=16, num_gpu_blocks_override=600, spec_method="none")
    for form in ({"json": SCHEMA}, {"regex": "(ab){20}"}):
        assert run(plain, form).outputs[0].token_ids == run(llm, form).outputs[0].token_ids
    plain.shutdown()


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"json": {"type": "object", "properties": {"a": {"type": "foo"}}}}, "structured_outputs.json", "Invalid type: foo"),
    ({"json": {"not": {"type": "integer"}}}, "structured_outputs.json", "Unimplemented"),
    ({"regex": "(["}, "structured_outputs.regex", "unclosed"),
    ({"grammar": "start: nothing"}, "structured_outputs.grammar", "nothing"),
    ({"grammar": "root ::= ("}, "structured_outputs.grammar", "structured_outputs.grammar: ."),
]


@pytest.mark.parametrize(("form", "param", "words"), REFUSED, ids=str)
def test_what_cannot_be_compiled_is_named(llm: LLM, form: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        run(llm, form)
    assert caught.value.param == param and "\n" not in str(caught.value)
    assert text(llm, {"choice": ["still here"]}) == "still here"


LIMITS: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one"),
    ({"regex": "a", "choice": ["b"]}, "exactly one"),
    ({"regex": "a" * 4097}, "at most 4096 bytes"),
    ({"choice": []}, "between 1 and 4096"),
    ({"choice": ["a"] * 4097}, "between 1 and 4096"),
    ({"choice": ["a", ""]}, "empty string"),
    ({"json": '{"description": "' + "x" * (64 << 10) + '"}'}, "at most 65536 bytes"),
    ({"json": "{"}, "not a JSON schema"),
    ({"json": [1]}, "JSON object"),
    ({"json": {"enum": list(range(4097))}}, "at most 4096 values"),
    ({"json": "[" * 60_000}, "not a JSON schema"),
    ({"grammar": "x" * ((256 << 10) + 1)}, "at most 262144 bytes"),
]


@pytest.mark.parametrize(("form", "words"), LIMITS, ids=lambda value: str(value)[:30])
def test_limits(form: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        StructuredOutputsParams(**form)


def test_depth() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(31):
        schema = {"items": schema}
    assert StructuredOutputsParams(json=schema)
    with pytest.raises(ParameterError, match="32 levels"):
        StructuredOutputsParams(json={"items": schema})


def test_additional_properties() -> None:
    schema = {"properties": {"properties": {"properties": {"a": {}}}, "b": {"additionalProperties": True, "properties": {}}}}
    closed = without_additional_properties(schema)
    assert closed["additionalProperties"] is False
    assert closed["properties"]["properties"]["additionalProperties"] is False
    assert closed["properties"]["b"]["additionalProperties"] is True
    assert "additionalProperties" not in closed["properties"]


def after_closing(schema: Any, text: bytes) -> Any:
    """The grammar of a schema without additional properties, behind a text that it has to allow."""
    form = StructuredOutputsParams(json=schema)
    grammar = GrammarThread(lambda: BYTES).compile(form, ends=True).result()
    for byte in text:
        assert byte in allowed(grammar)
        grammar.advance(byte)
    return grammar


A = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"properties": {"b": {"type": "integer"}}, "required": ["b"]}
REFERENCE, DEFINITIONS = {"$ref": "#/$defs/A"}, {"$defs": {"A": A}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "allOf": [A, B]},
        {"allOf": [{"allOf": [A, B]}, {"type": "object"}]},
        {**A, "allOf": [B]},
        {**A, "anyOf": [B, {"required": ["c"]}]},
        {"allOf": [REFERENCE, B], **DEFINITIONS},
        {**A, "$ref": "#/$defs/B", "$defs": {"B": B}},
        {"allOf": [{"$ref": "#/$defs/same"}, B], "$defs": {"A": A, "same": REFERENCE}},
        {"$ref": "#/$defs/0", "$defs": {"0": {"allOf": [{"$ref": "#/$defs/0/$defs/A"}, B], **DEFINITIONS}}},
        {"allOf": [{"$ref": "#/$defs/x~1y"}, B], "$defs": {"x/y": A}},
        {"allOf": [{"$ref": "#/$defs/list/anyOf/0"}, B], "$defs": {"list": {"anyOf": [A]}}},
        {"$ref": "#/$defs/two", "$defs": {"two": {"allOf": [{"$ref": "#/$defs/list/anyOf/1"}, B]}, "list": {"anyOf": [{}, A]}}},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "integer"}},
        {**A, "patternProperties": {"b": {"type": "integer"}}},
        {**A, "required": ["a", "b"]},
        {"type": "object"},
        {"type": "object", "required": ["a"]},
        {"type": "object", "patternProperties": {"^a": {}}},
        {"$ref": "#/$defs/any", "$defs": {"any": {"type": "object"}}},
        {"anyOf": [{"type": "object"}, {"type": "null"}]},
        {"allOf": [REFERENCE], "additionalProperties": True, **DEFINITIONS},
        {**REFERENCE, "patternProperties": {"^b": {"type": "integer"}}, **DEFINITIONS},
        {"allOf": [A, {"patternProperties": {"^b": {}}}]},
        {"allOf": [A], "required": ["b"]},
        {**REFERENCE, "required": ["b"], **DEFINITIONS},
        {**A, "allOf": [{"required": ["b"]}]},
        {**A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"$ref": "#/$defs/a%20%62", "properties": {"b": {}}, "$defs": {"a b": A}},
    ],
)
def test_parts_of_one_object_and_what_names_none_stay_open(schema: Any) -> None:
    assert after_closing(schema, b'{"a":1,"b":2}').is_satisfied


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [A, B]},
        {"allOf": [REFERENCE], **DEFINITIONS},
        {**A, "anyOf": [{"required": ["a"]}, {"required": ["a"], "title": "the same"}]},
        {"allOf": [A, {"required": ["a"]}]},
        A,
        {**A, "additionalProperties": False},
        {"$ref": "#/$defs/A", **DEFINITIONS},
        {"oneOf": [{"type": "object", **A}, {"type": "object", **B}]},
        {"type": ["object", "null"], **A},
    ],
)
def test_what_one_schema_names_is_closed(schema: Any) -> None:
    assert ord(",") not in allowed(after_closing(schema, b'{"a":1'))


def test_what_is_inside_is_closed_too() -> None:
    schema = {"properties": {"x": A, "any": {"type": "object"}, "list": {"items": A}}}
    grammar = after_closing(schema, b'{"x":{"a":1')
    assert ord(",") not in allowed(grammar)
    assert after_closing(schema, b'{"any":{"b":{"c":1}},"list":[{"a":1}]}').is_satisfied


def test_closing_takes_no_longer_however_often_a_part_is_referred_to() -> None:
    """Not its square, in which this would not end."""
    wide: list[Any] = [{"$ref": f"#/allOf/{i % 32}"} for i in range(20_000)]
    for _ in range(20):
        wide = [{"allOf": wide}]
    schema = {"allOf": [*wide, *({"$ref": "#/allOf/0" + "/allOf/0" * (i % 20)} for i in range(20_000)), A]}
    assert without_additional_properties(schema) == schema


def test_a_client_may_leave_objects_open() -> None:
    form = StructuredOutputsParams(json=A, disable_additional_properties=False)
    assert accepts(form, '{"a":1,"b":2}') and not accepts(StructuredOutputsParams(json=A), '{"a":1,"b":2}')
    assert accepts(StructuredOutputsParams(json_object=True), '{"a":1,"b":2}')


def accepts(form: StructuredOutputsParams, text: str) -> bool:
    matcher = GrammarCompiler(BYTES).compile(form)
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and bool(matcher.is_accepting())


IDLE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "format": {"type": "string", "format": "path"},
        "propertyNames": {"type": "array", "items": {"type": "string", "format": "uri-reference"}, "uniqueItems": False},
        "map": {"$ref": "#/$defs/map"},
        "kind": {"const": {"format": "path", "propertyNames": True, "uniqueItems": False}},
        "maybe": {"anyOf": [{"type": "string", "format": "base64"}, {"type": "null"}]},
    },
    "propertyNames": {},
    "$defs": {"map": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}},
}


def test_keywords_that_confine_nothing_are_let_be() -> None:
    value = {
        "format": "x",
        "propertyNames": ["y", "y"],
        "map": {"z": 1},
        "kind": {"format": "path", "propertyNames": True, "uniqueItems": False},
        "maybe": "?",
    }
    assert accepts(StructuredOutputsParams(json=IDLE), json.dumps(value))
    tag = {"format": {"type": "json_schema", "json_schema": IDLE}}
    assert accepts(StructuredOutputsParams(structural_tag=tag), json.dumps(value))
    assert without_idle_keywords(SCHEMA) == SCHEMA
    noted = {"propertyNames": {"type": "string", "description": "any"}, "examples": [{"format": "path"}]}
    assert without_idle_keywords(noted) == {"examples": [{"format": "path"}]}


@pytest.mark.parametrize(
    "schema", [{"propertyNames": {"enum": ["a"]}}, {"propertyNames": False}, {"uniqueItems": True}, {"format": 5}], ids=str
)
def test_keywords_that_confine_something_are_refused(schema: Any) -> None:
    with pytest.raises(GrammarError):
        GrammarCompiler(BYTES).check(StructuredOutputsParams(json=schema))


def test_formats_are_kept_where_there_is_a_grammar_for_them() -> None:
    for name in FORMATS - {"unknown"}:
        assert not accepts(StructuredOutputsParams(json={"type": "string", "format": name}), '"?"'), name
    assert accepts(StructuredOutputsParams(json={"type": "string", "format": "date"}), '"2024-02-29"')


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        ({"properties": {"x": {"not": {"enum": ["a"]}}}, "additionalProperties": False}, "properties.x", "Unimplemented"),
        (False, "", "no text is valid by the schema false"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "", "Use anyOf"),
    ],
)
def test_what_is_at_fault_is_said_and_where(schema: Any, path: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as caught:
        GrammarCompiler(BYTES).check(StructuredOutputsParams(json=schema))
    assert caught.value.path == path and "coerce" not in str(caught.value)


def test_the_path_at_fault() -> None:
    def complaint(schema: Any) -> str:
        return "odd" if "odd" in json.dumps(schema) else ""

    schema = {"properties": {"a": {"items": {"anyOf": [{}, {"type": "odd"}]}}}, "$defs": {"x": {}}}
    assert path_at_fault(schema, complaint) == "properties.a.items.anyOf[1]"
    assert path_at_fault({"type": "odd"}, complaint) == ""
    assert path_at_fault({"$defs": {"x": {"type": "odd"}}, "properties": {"a": {}}}, complaint) in ("$defs.x", "properties.a")


def test_the_cache_is_bounded_and_forks_are_independent() -> None:
    thread = GrammarThread(lambda: BYTES, cache_bytes=1 << 20)
    for i in range(40):
        assert thread.compile(StructuredOutputsParams(regex=f"a{{{i + 1}}}"), ends=True).result().mask is not None
    assert 0 < len(thread._cache) < 16 and thread._cached_bytes <= 1 << 20
    first = thread.compile(StructuredOutputsParams(regex="ab|ac"), ends=True).result()
    assert not first.advance(ord("a"))
    second = first.fork()
    assert second.advance(ord("b")) and second.is_satisfied and not first.is_satisfied
    assert allowed(first) == [ord("b"), ord("c")] and allowed(second) == [256]


def test_a_model_without_an_end() -> None:
    endless = Vocabulary([bytes([i]) for i in range(256)], [], [])
    grammar = GrammarThread(lambda: endless).compile(StructuredOutputsParams(regex="ab?"), ends=True).result()
    assert not grammar.advance(ord("a"))
    assert [token for token in allowed(grammar) if token < 256] == [ord("b")]
    assert grammar.advance(ord("b"))
