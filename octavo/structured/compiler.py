"""What a request's text must be -> a matcher of llguidance, within limits of size and effort.

Owns the translation of every form (JSON schema, regex, choices, grammar) and the limits. The same compiler runs where requests
are checked and where they are computed, so that what was accepted compiles again. llguidance is imported with the first one.
"""

import json
from typing import Any

import msgspec

from octavo.sampling_params import StructuredOutputsParams
from octavo.structured.schema_walk import path_at_fault, without_additional_properties
from octavo.structured.vocabulary import Vocabulary

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
"""Between the tokens of JSON, where the request does not say: a bounded run, so that no model writes blanks for ever."""

_LONGEST_COMPLAINT = 300
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
        return self._compile(_definition(wanted, wanted.json))

    def check(self, wanted: StructuredOutputsParams) -> None:
        """Compile, and match the first token, to see whether it works. Raises ``GrammarError`` with the path of a JSON schema's
        part that is at fault."""
        try:
            mask = self.compile(wanted).compute_bitmask()
            if not any(mask):
                raise GrammarError("no text has this form")
        except GrammarError as error:
            path = ""
            if wanted.json is not None:
                path = path_at_fault(msgspec.json.decode(wanted.json), lambda part: self._complaint(wanted, part))
            raise GrammarError(str(error), path=error.path or path) from None

    def _complaint(self, wanted: StructuredOutputsParams, schema: Any) -> str:
        try:
            self._compile(_definition(wanted, schema))
        except GrammarError as error:
            return str(error)
        return ""

    def _compile(self, definition: str) -> Any:
        matcher = self._matcher(self._tokenizer, definition, limits=self._limits, log_level=0)
        if matcher.is_error():
            raise GrammarError(_one_line(matcher.get_error()))
        return matcher


def _definition(wanted: StructuredOutputsParams, schema: Any) -> str:
    """The grammar as llguidance reads it; ``schema`` stands for ``wanted.json``."""
    from llguidance import LLMatcher

    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in wanted.choice))
    if wanted.grammar is not None:
        return LLMatcher.grammar_from_lark(_lark(wanted.grammar))
    if wanted.json_object:
        schema = {"type": "object"}
    elif isinstance(schema, str):
        schema = msgspec.json.decode(schema)
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if wanted.disable_additional_properties:
        schema = without_additional_properties(schema)
    # A client's own "x-guidance" would come before the request's wishes: it is none of JSON Schema's keywords.
    schema = {name: value for name, value in schema.items() if name != "x-guidance"}
    options: dict[str, Any] = {"whitespace_pattern": wanted.whitespace_pattern or WHITESPACE}
    if wanted.disable_any_whitespace:
        options = {"whitespace_flexible": False}
    try:
        return LLMatcher.grammar_from_json_schema(msgspec.json.encode(schema).decode(), overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        raise GrammarError(_one_line(str(error))) from None


def _lark(text: str) -> str:
    """Lark as it is; GBNF, known by its ``::=``, translated."""
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the translator raises many kinds, all about the text
        raise GrammarError(_one_line(str(error))) from None


def _one_line(text: str) -> str:
    line = " ".join(text.replace("<non-verbose/>", "").split())
    return line[:_LONGEST_COMPLAINT].rstrip(". ")
