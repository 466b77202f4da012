"""What a request's text must be -> a matcher of llguidance, within limits of size and effort.

Owns the translation of every form (JSON schema, regex, choices, grammar, tags) and the limits. The same compiler runs where
requests are checked and where they are computed, so that what was accepted compiles again. llguidance is imported with
the first one.
"""

import json
import re
from typing import Any

import msgspec

from octavo.sampling_params import StructuredOutputsParams
from octavo.structured.schema_walk import path_at_fault, without_additional_properties, without_idle_keywords
from octavo.structured.tags import JsonSchema, Regex, TagError, TagGrammar, Tags, leaves_of, read_tags
from octavo.structured.vocabulary import Vocabulary

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
"""Between the tokens of JSON, where the request does not say: a bounded run, so that no model writes blanks for ever."""

_LONGEST_COMPLAINT = 300
_ONE_OF = "Enable 'coerce_one_of' option to approximate oneOf with anyOf", "Use anyOf, or parts that cannot both be valid"
"""What the library advises and no client can do, and what it can do."""
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)
_LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}


class GrammarError(ValueError):
    """Nothing can be matched against this. ``path`` is where in the request's field, "" for all of it."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class _LibraryTokenizer:
    """A vocabulary as llguidance takes it. Text that a grammar forces is cut into the longest tokens that fit."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_token_ids
        self.eos_token_id = vocabulary.eos_token_ids[0] if vocabulary.eos_token_ids else None
        self.built: Any = None

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self.built.greedy_tokenize(text)
        return ids


class GrammarCompiler:
    """Compiles for one vocabulary. Threads may share it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer

        library_tokenizer = _LibraryTokenizer(vocabulary)
        ends = vocabulary.eos_token_ids or None
        self._tokenizer = library_tokenizer.built = LLTokenizer(library_tokenizer, eos_token=ends)  # type: ignore[arg-type]
        self._limits = LLParserLimits(**_LIMITS)  # type: ignore[arg-type]
        self._matcher = LLMatcher
        self.mask_bytes: int = (self._tokenizer.vocab_size + 31) // 32 * 4

    def compile(self, wanted: StructuredOutputsParams) -> Any:
        """A matcher (``llguidance.LLMatcher``) at the beginning. Raises ``GrammarError``."""
        return self._compile(_definition(wanted))

    def check(self, wanted: StructuredOutputsParams) -> None:
        """Compile, and match the first token, to see whether it works. Raises ``GrammarError`` with the path of a JSON schema's
        part that is at fault."""
        try:
            mask = self.compile(wanted).compute_bitmask()
            if not any(mask):
                raise GrammarError("no text has this form")
        except GrammarError as error:
            path = error.path or self._path_at_fault(wanted)
            raise GrammarError(str(error), path=path) from None

    def _path_at_fault(self, wanted: StructuredOutputsParams) -> str:
        """The path of what does not compile by itself, "" if everything does."""
        if wanted.json is not None:
            return path_at_fault(msgspec.json.decode(wanted.json), lambda part: self._complaint(wanted, part))
        if wanted.structural_tag is None:
            return ""
        tags = _tags(wanted)
        for path, leaf in leaves_of(tags.format):
            if not self._complaint(wanted, leaf):
                continue
            inner = ""
            if isinstance(leaf, JsonSchema):
                inner = path_at_fault(leaf.json_schema, lambda part: self._complaint(wanted, part))
            return tags.place(f"{path}.{inner}" if inner else path)
        return ""

    def _complaint(self, wanted: StructuredOutputsParams, part: Any) -> str:
        """What is said against a JSON schema, or against a part of a structural tag."""
        try:
            if isinstance(part, Regex):
                self._compile(self._matcher.grammar_from_regex(part.pattern))
            else:
                self._compile(_from_schema(wanted, part.json_schema if isinstance(part, JsonSchema) else part))
        except GrammarError as error:
            return str(error)
        return ""

    def _compile(self, definition: str) -> Any:
        matcher = self._matcher(self._tokenizer, definition, limits=self._limits, log_level=0)
        if matcher.is_error():
            raise GrammarError(_one_line(matcher.get_error()))
        return matcher


def _definition(wanted: StructuredOutputsParams) -> str:
    """The grammar as llguidance reads it."""
    from llguidance import LLMatcher

    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in wanted.choice))
    if wanted.grammar is not None:
        return LLMatcher.grammar_from_lark(_lark(wanted.grammar))
    if wanted.structural_tag is not None:
        return LLMatcher.grammar_from_lark(_tag_grammar(wanted))
    return _from_schema(wanted, {"type": "object"} if wanted.json_object else msgspec.json.decode(wanted.json))


def _from_schema(wanted: StructuredOutputsParams, schema: Any) -> str:
    from llguidance import LLMatcher

    schema = _closed(schema, disable_additional_properties=wanted.disable_additional_properties)
    text, options = msgspec.json.encode(schema).decode(), _spaces(wanted)
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        raise GrammarError(_one_line(str(error))) from None


def schema_rule(schema: Any, *, disable_additional_properties: bool = True, spaces: dict[str, Any] | None = None) -> str:
    """A schema inside a grammar in Lark, which the compiler takes as it is. Raises ``GrammarError`` where there is none."""
    closed = _closed(schema, disable_additional_properties=disable_additional_properties)
    return "%json " + json.dumps({**closed, "x-guidance": spaces or {"whitespace_pattern": WHITESPACE}})


def _closed(schema: Any, *, disable_additional_properties: bool) -> dict[str, Any]:
    """A schema as the request wants it, of what grammars are made of."""
    if schema is False:
        raise GrammarError("no text is valid by the schema false")
    schema = {} if schema is True else without_idle_keywords(schema)
    if disable_additional_properties:
        schema = without_additional_properties(schema)
    # A client's own "x-guidance" would come before the request's wishes: it is none of JSON Schema's keywords.
    return {name: value for name, value in schema.items() if name != "x-guidance"}


def _spaces(wanted: StructuredOutputsParams) -> dict[str, Any]:
    if wanted.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": wanted.whitespace_pattern or WHITESPACE}


def _tags(wanted: StructuredOutputsParams) -> Tags:
    try:
        return read_tags(msgspec.json.decode(wanted.structural_tag or ""))
    except TagError as error:
        raise GrammarError(str(error), path=error.path) from None


def _tag_grammar(wanted: StructuredOutputsParams) -> str:
    from llguidance import regex_to_lark

    def rule_of(schema: Any) -> str:
        closed, spaces = wanted.disable_additional_properties, _spaces(wanted)
        return schema_rule(schema, disable_additional_properties=closed, spaces=spaces)

    def regex_rule(pattern: str) -> str:
        return f"/{regex_to_lark(pattern)}/"

    tags = _tags(wanted)
    try:
        return TagGrammar(schema_rule=rule_of, regex_rule=regex_rule).write(tags.format)
    except TagError as error:
        raise GrammarError(str(error), path=tags.place(error.path)) from None


def _lark(text: str) -> str:
    """Lark as it is; GBNF, known by its rules, translated."""
    if not _GBNF_RULE.search(text):
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the translator raises many kinds, all about the text
        raise GrammarError(_one_line(str(error))) from None


def _one_line(text: str) -> str:
    line = " ".join(text.replace("<non-verbose/>", "").split()).replace(*_ONE_OF)
    return line[:_LONGEST_COMPLAINT].rstrip(". ")
