"""What a client may ask of decoding: ``SamplingParams``, frozen and validated where it is made.

Every refusal is a ``ParameterError`` that carries the name of the field, so that a server can put it in its error body.
Knows nothing of the model: checks against a vocabulary or a context length happen where those are known.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

MAX_N = 128
MAX_BEAM_WIDTH = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128
MAX_LOGPROB_TOKEN_IDS = 128
MAX_PATTERN_SIZE = 4096
MIN_REPETITION_PENALTY = 1e-6
MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32
MAX_TAG_DEPTH = 48
MAX_ALTERNATIVES = 4096
MAX_REGEX_BYTES = 4 << 10
MAX_GRAMMAR_BYTES = 256 << 10


class ParameterError(ValueError):
    """A request's field has a value that cannot be honoured.

    ``param`` is the field's name as the client wrote it, ``value`` what was given.
    """

    def __init__(self, message: str, *, param: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.param = param
        self.value = value


def _require(ok: bool, message: str, param: str, value: Any) -> None:
    if not ok:
        raise ParameterError(f"{message}, got {value!r}.", param=param, value=value)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    _require(math.isfinite(value) and low <= value <= high, f"{name} must be in [{low:g}, {high:g}]", name, value)


_FORMS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
EarlyStopping = bool | Literal["never"]


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Beam search instead of draws, with the meaning that ``transformers`` gives to the same words.

    ``width`` beams; a finished beam's score is its cumulative log-probability over its output length to the power of
    ``length_penalty``. ``early_stopping`` True ends the search with ``width`` finished beams, False when the best running beam
    would not beat the worst of them if it ended now, "never" when it could not at any length. ``report``: the client is told of
    the beams after every step.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    report: bool = False

    def __post_init__(self) -> None:
        ok = 1 <= self.width <= MAX_BEAM_WIDTH
        _require(ok, f"beam width must be between 1 and {MAX_BEAM_WIDTH}", "beam_width", self.width)
        _in_range("length_penalty", self.length_penalty, -10.0, 10.0)
        ok = isinstance(self.early_stopping, bool) or self.early_stopping == "never"
        _require(ok, 'early_stopping must be true, false or "never"', "early_stopping", self.early_stopping)

    def score(self, cumulative_logprob: float, length: int) -> float:
        """By which beams that end with ``length`` output tokens are compared."""
        return cumulative_logprob / math.pow(length, self.length_penalty)


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request's text must be: exactly one of ``json`` (a JSON schema, as text or as a dict), ``json_object`` (any JSON
    object), ``regex``, ``choice`` (one of these strings), ``grammar`` (Lark as llguidance reads it, or GBNF) and
    ``structural_tag`` (free text with forms in it, as xgrammar describes them, as text or as a dict). The names are those of
    vLLM's class of the same name.

    Of JSON: ``disable_any_whitespace`` writes it without spaces and line breaks, ``whitespace_pattern`` is a regex for what may
    stand between tokens. ``disable_additional_properties`` forbids properties that an object's schema does not name, where
    the schema has ``properties`` and not ``additionalProperties``; False is what JSON Schema says.
    """

    json: Any = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = True
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if self.choice is not None:
            msgspec.structs.force_setattr(self, "choice", tuple(self.choice))
        # False sets nothing, but for a JSON schema: it is one.
        values = {name: getattr(self, name) for name in _FORMS}
        given = [name for name, value in values.items() if value is not None and (value is not False or name == "json")]
        kinds = ", ".join(_FORMS)
        _require(len(given) == 1, f"structured_outputs takes exactly one of {kinds}", "structured_outputs", given)
        if self.json is not None:
            msgspec.structs.force_setattr(self, "json", _checked_schema(self.json))
        if self.structural_tag is not None:
            msgspec.structs.force_setattr(self, "structural_tag", _checked_tag(self.structural_tag))
        _check_bytes("structured_outputs.regex", self.regex, MAX_REGEX_BYTES)
        _check_bytes("structured_outputs.whitespace_pattern", self.whitespace_pattern, MAX_REGEX_BYTES)
        _check_bytes("structured_outputs.grammar", self.grammar, MAX_GRAMMAR_BYTES)
        if self.choice is not None:
            name, num = "structured_outputs.choice", len(self.choice)
            _require(1 <= num <= MAX_ALTERNATIVES, f"{name} must have between 1 and {MAX_ALTERNATIVES} strings", name, num)
            _require("" not in self.choice, f"{name} cannot contain an empty string", name, "")
            _check_bytes(name, "".join(self.choice), MAX_SCHEMA_BYTES)

    @property
    def field(self) -> str:
        """The name of the one that is set."""
        return next(name for name in _FORMS if getattr(self, name) not in (None, False))


def _check_bytes(name: str, text: str | None, most: int) -> None:
    if text is not None:
        _require(text != "", f"{name} cannot be empty", name, text)
        _require(len(_utf8(name, text)) <= most, f"{name} must have at most {most} bytes", name, len(text))


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"{name} has an unpaired surrogate; send valid Unicode.", param=name) from None


def _checked_schema(schema: Any) -> str:
    """A JSON schema as text, after what can be said about it without compiling it."""
    name = "structured_outputs.json"
    text, value = _as_json(name, schema, kind="schema", most_bytes=MAX_SCHEMA_BYTES)
    _require(isinstance(value, dict | bool), f"{name} must be a JSON object", name, type(value).__name__)
    check_shape(name, value, most_levels=MAX_SCHEMA_DEPTH)
    return text


def _checked_tag(tag: Any) -> str:
    """A structural tag as text, after what can be said about it without reading it."""
    name = "structured_outputs.structural_tag"
    text, value = _as_json(name, tag, kind="object", most_bytes=MAX_GRAMMAR_BYTES)
    _require(isinstance(value, dict), f"{name} must be a JSON object", name, type(value).__name__)
    check_shape(name, value, most_levels=MAX_TAG_DEPTH)
    return text


def _as_json(name: str, given: Any, *, kind: str, most_bytes: int) -> tuple[str, Any]:
    """JSON as text and as a value."""
    try:
        text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        _check_bytes(name, text, most_bytes)
        return text, msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError, RecursionError, UnicodeError) as error:
        raise ParameterError(f"{name} is not a JSON {kind}: {error}.", param=name) from None


def check_shape(name: str, value: Any, *, most_levels: int) -> None:
    """Raises ``ParameterError`` for a schema that is nested too deeply, or has too long an enum."""
    level, depth = [value], 1
    while level:
        _require(depth <= most_levels, f"{name} must be nested at most {most_levels} levels deep", name, depth)
        for enum in [node["enum"] for node in level if isinstance(node, dict) and isinstance(node.get("enum"), list)]:
            _require(len(enum) <= MAX_ALTERNATIVES, f"an enum must have at most {MAX_ALTERNATIVES} values", name, len(enum))
        level, depth = [item for node in level for item in _children(node)], depth + 1


def _children(node: Any) -> list[Any]:
    """What a container holds that is a container itself."""
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [item for item in items if isinstance(item, dict | list)]


class RepetitionDetectionParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An output ends once it ends in ``min_count`` copies of a pattern of ``min_pattern_size`` to ``max_pattern_size`` tokens.
    ``max_pattern_size`` 0 is off, ``min_pattern_size`` 0 is 1. The names are those of vLLM's class of the same name."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        name, largest = "repetition_detection.max_pattern_size", self.max_pattern_size
        _require(0 <= largest <= MAX_PATTERN_SIZE, f"{name} must be between 0 (disable) and {MAX_PATTERN_SIZE}", name, largest)
        name, smallest = "repetition_detection.min_pattern_size", self.min_pattern_size
        _require(0 <= smallest <= largest, f"{name} must be between 0 and max_pattern_size={largest}", name, smallest)
        name, count = "repetition_detection.min_count", self.min_count
        _require(not largest or 2 <= count < 2**31, f"{name} must be at least 2", name, count)

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest size of a pattern."""
        return max(1, self.min_pattern_size), self.max_pattern_size


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are drawn for one request. The names and defaults are those of vLLM's class of the same name.

    ``best_of`` sequences are drawn and the ``n`` of highest cumulative log-probability returned. With ``beam`` nothing is drawn
    and the ``n`` best beams are returned.

    ``temperature`` 0 is greedy decoding. ``top_k`` 0 or -1 is off. ``seed`` makes the draws reproducible: each is keyed by
    (seed, branch, position), so neither the batch nor the schedule changes them. ``logprobs`` k returns the chosen token's
    log-probability and the k most likely, taken from the model's logits before any of the filters below; ``logprob_token_ids``
    returns those of these tokens in the place of the k most likely, whatever k is.
    ``structured_outputs`` confines the text. After ``thinking_token_budget`` tokens of reasoning its end is forced; -1 is no
    limit. ``repetition_detection`` ends an output that only repeats itself.
    """

    n: int = 1
    best_of: int | None = None
    beam: BeamSearch | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None

    def __post_init__(self) -> None:
        self._normalize()
        _require(1 <= self.n <= MAX_N, f"n must be between 1 and {MAX_N}", "n", self.n)
        self._check_branches()
        _in_range("temperature", self.temperature, 0.0, 2.0)
        _require(math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0, "top_p must be in (0, 1]", "top_p", self.top_p)
        _require(0 <= self.top_k < 2**31, "top_k must be 0 or -1 (disable), or at least 1", "top_k", self.top_k)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        ok = math.isfinite(self.repetition_penalty) and self.repetition_penalty >= MIN_REPETITION_PENALTY
        message = f"repetition_penalty must be greater than zero, and at least {MIN_REPETITION_PENALTY:g}"
        _require(ok, message, "repetition_penalty", self.repetition_penalty)
        _require(self.seed is None or -(2**63) <= self.seed < 2**63, "seed must fit in 64 bits", "seed", self.seed)
        longest = self.max_tokens
        _require(longest is None or longest >= 1, "max_tokens must be at least 1", "max_tokens", longest)
        _require(self.min_tokens >= 0, "min_tokens must be at least 0", "min_tokens", self.min_tokens)
        ok = self.max_tokens is None or self.min_tokens <= self.max_tokens
        _require(ok, f"min_tokens must be less than or equal to max_tokens={self.max_tokens}", "min_tokens", self.min_tokens)
        ok = self.thinking_token_budget is None or self.thinking_token_budget >= 0
        message = "thinking_token_budget must be at least 0, or -1 for no limit"
        _require(ok, message, "thinking_token_budget", self.thinking_token_budget)
        self._check_lists()

    def _check_branches(self) -> None:
        best_of, beam = self.best_of, self.beam
        if best_of is not None:
            _require(self.n <= best_of <= MAX_N, f"best_of must be between n={self.n} and {MAX_N}", "best_of", best_of)
        if beam is not None:
            _require(best_of in (None, beam.width), f"best_of must be the beam width {beam.width}", "best_of", best_of)
            _require(self.n <= beam.width, f"n must be at most the beam width {beam.width}", "n", self.n)
            ok = self.structured_outputs is None
            _require(ok, "structured_outputs cannot be combined with beam search", "structured_outputs", beam.width)
            for name in ("thinking_token_budget", "logprob_token_ids", "repetition_detection"):
                value = getattr(self, name)
                _require(value is None, f"{name} cannot be combined with beam search", name, value)
            _require(not self.stop, "stop strings cannot be combined with beam search: use stop_token_ids", "stop", self.stop)

    def _normalize(self) -> None:
        """Lists become tuples, in which token ids stand once, and aliases of "off" one value, so that equal requests compare
        equal."""
        allowed = self.allowed_token_ids
        _require(allowed is None or len(allowed) > 0, "allowed_token_ids must not be empty", "allowed_token_ids", allowed)
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            if (ids := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, tuple(dict.fromkeys(ids)) or None)
        if self.bad_words is not None:
            msgspec.structs.force_setattr(self, "bad_words", tuple(self.bad_words) or None)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        msgspec.structs.force_setattr(self, "stop", stop or None)
        if self.top_k == -1:
            msgspec.structs.force_setattr(self, "top_k", 0)
        if self.repetition_detection is not None and not self.repetition_detection.max_pattern_size:
            msgspec.structs.force_setattr(self, "repetition_detection", None)
        for name in ("seed", "thinking_token_budget"):
            if getattr(self, name) == -1:
                msgspec.structs.force_setattr(self, name, None)

    def _check_lists(self) -> None:
        stop = self.stop or ()
        _require(len(stop) <= MAX_STOP_STRINGS, f"stop must have at most {MAX_STOP_STRINGS} strings", "stop", len(stop))
        _require("" not in stop, "stop cannot contain an empty string", "stop", "")
        longest = max((len(s) for s in stop), default=0)
        _require(longest <= MAX_STOP_CHARACTERS, f"a stop string has at most {MAX_STOP_CHARACTERS} characters", "stop", longest)
        _require(not stop or self.detokenize, "stop strings need detokenize=True", "stop", list(stop))
        bias = self.logit_bias or {}
        _require(len(bias) <= MAX_LOGIT_BIAS, f"logit_bias must have at most {MAX_LOGIT_BIAS} entries", "logit_bias", len(bias))
        for token_id, value in bias.items():
            ok = math.isfinite(value) and -100 <= value <= 100
            _require(ok, "logit_bias values must be in [-100, 100]", "logit_bias", value)
            _require(token_id >= 0, "logit_bias token ids must not be negative", "logit_bias", token_id)
        words = self.bad_words or ()
        _require(len(words) <= MAX_BAD_WORDS, f"bad_words must have at most {MAX_BAD_WORDS} entries", "bad_words", len(words))
        _require("" not in words, "bad_words cannot contain an empty string", "bad_words", "")
        for name, most in (("logprob_token_ids", MAX_LOGPROB_TOKEN_IDS), ("stop_token_ids", MAX_STOP_TOKEN_IDS)):
            num = len(getattr(self, name) or ())
            _require(num <= most, f"{name} must have at most {most} token ids", name, num)
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            lowest = min(getattr(self, name) or (0,))
            _require(lowest >= 0, f"{name} must not be negative", name, lowest)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(value is None or value >= 0, f"{name} must be at least 0", name, value)

    def check_against(self, *, vocab_size: int, max_logprobs: int) -> None:
        """Raises ``ParameterError`` for what a model or its operator does not allow."""
        for name, kind in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
            value = getattr(self, name)
            if value is not None and value > max_logprobs:
                message = f"Requested {kind} logprobs of {value}, which is greater than max allowed: {max_logprobs}"
                raise ParameterError(message, param=name, value=value)
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"):
            outside = [token_id for token_id in getattr(self, name) or () if token_id >= vocab_size]
            if outside:
                some = f"token_id(s) {outside[:5]} in {name} contain out-of-vocab token ids"
                raise ParameterError(f"{some}. Vocabulary size: {vocab_size}", param=name, value=outside[0])

    @property
    def num_branches(self) -> int:
        """Sequences that are computed side by side: ``n``, ``best_of`` or the beam width."""
        return self.beam.width if self.beam is not None else self.best_of or self.n

    @property
    def num_outputs(self) -> int:
        """Branches that deltas speak of: the ``n`` returned beams, or all that are drawn."""
        return self.n if self.beam is not None else self.num_branches

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives to report beside each drawn token; None is no log-probabilities at all."""
        return 0 if self.logprobs is None and self.logprob_token_ids else self.logprobs

    @property
    def selects(self) -> bool:
        """Whether more sequences are drawn than returned, so that each one's cumulative log-probability must be known."""
        return self.beam is None and self.num_branches > self.n

    @property
    def width_name(self) -> str:
        """The field that says how many sequences are computed, for error messages."""
        if self.best_of is not None:
            return "best_of"
        return "n" if self.beam is None else "beam_width"

    @property
    def greedy(self) -> bool:
        """Whether every draw is the argmax: temperatures below 1e-5 count as zero."""
        return self.temperature < 1e-5

    @property
    def plain_greedy(self) -> bool:
        """Whether every draw is the argmax of the logits as the model made them, or of those that are possible."""
        return self.greedy and self.beam is None and not self.logit_bias and not self.has_penalties

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that stand before a draw count for less, or more, in it."""
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)

    @property
    def needs_history(self) -> bool:
        """Whether a draw depends on the tokens before it beyond what the KV cache holds, so that it cannot be planned ahead."""
        return self.has_penalties or bool(self.bad_words)

    @property
    def needs_host(self) -> bool:
        """Whether what comes after a draw is decided with the drawn token at hand, so that no draw is planned before that."""
        return self.needs_history or self.beam is not None or self.is_confined

    @property
    def is_confined(self) -> bool:
        """Whether some draws may only give some tokens, because of all tokens before them."""
        return self.structured_outputs is not None or self.thinking_token_budget is not None


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``LLM.beam_search`` may be asked. ``n`` beams are returned, by default all ``beam_width``; the rest is as in
    ``BeamSearch`` and ``SamplingParams``. Penalties, biases and bans change log-probabilities, as in ``transformers``."""

    beam_width: int
    max_tokens: int = 16
    n: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 0.0
    stop_token_ids: Sequence[int] | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self.sampling_params()

    def sampling_params(self) -> SamplingParams:
        """The same as the engine takes it. Raises ``ParameterError``."""
        fields = msgspec.structs.asdict(self)
        width, n = fields.pop("beam_width"), fields.pop("n")
        beam = BeamSearch(width=width, length_penalty=fields.pop("length_penalty"), early_stopping=fields.pop("early_stopping"))
        return SamplingParams(n=width if n is None else n, beam=beam, **fields)
