"""From a request's fields and a prompt's length to ``SamplingParams``: defaults, clamps and the checks that need the model.

The order of defaults is the request, then the model's generation_config.json, then those of ``SamplingParams``. Range checks
of single fields live in ``SamplingParams``; here is what needs a vocabulary, a context length or the operator's limits.
"""

from typing import Any, TypeVar

import msgspec

from octavo.sampling_params import (
    MAX_BEAM_WIDTH,
    MAX_N,
    BeamSearch,
    ParameterError,
    RepetitionDetectionParams,
    SamplingParams,
)
from octavo.server import errors, structured
from octavo.server.errors import ApiError
from octavo.server.protocol import ChatRequest, CompletionRequest, SamplingFields

DEFAULT_COMPLETION_TOKENS = 16
_MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_PASSED_ON = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "allowed_token_ids",
    "bad_words",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "thinking_token_budget",
    "logprob_token_ids",
)
UNSUPPORTED = (
    "logits_processors",
    "prompt_embeds",
    "kv_transfer_params",
    "ec_transfer_params",
    "watermarking",
    "vllm_xargs",
    "suffix",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "functions",
    "function_call",
    "audio",
    "web_search_options",
)
"""Fields that may not ask for anything."""
_NOTHING: tuple[Any, ...] = (None, False, "", [], {}, 0)
T = TypeVar("T")
_FORBIDDEN_IN_SALT = frozenset("@/\\\0")


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the loaded model and its operator allow."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    default_sampling: dict[str, Any]
    priority_scheduling: bool


def check_supported(request: SamplingFields, *, reasons: bool) -> None:
    """Raises ``ApiError`` 400 for a field that asks for something this server does not do. ``reasons``: it knows how the model
    marks its reasoning."""
    if request.thinking_token_budget not in (None, -1) and not reasons:
        message = "`thinking_token_budget` needs a server that was started with --reasoning-parser."
        raise errors.invalid(message, "thinking_token_budget")
    for name in UNSUPPORTED:
        if getattr(request, name, None) not in _NOTHING:
            raise errors.invalid(f"`{name}` is not supported by this server.", name)
    if getattr(request, "modalities", None) not in (None, ["text"]):
        raise errors.invalid("`modalities` other than text are not supported by this server.", "modalities")
    if getattr(request, "chat_template", None) is not None:
        raise errors.invalid(
            "A chat template of the client's is not trusted; the model's or the operator's is used.", "chat_template"
        )


def priority_of(header: str) -> int:
    """What ``X-Vllm-Priority`` says, which goes before the body's ``priority``: a gateway may set it for its clients. Raises
    ``ApiError`` 400."""
    text = header.strip()
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 10 or not -(2**31) <= int(text) < 2**31:
        raise errors.invalid("X-Vllm-Priority must be an integer of 32 bits.", "x-vllm-priority")
    return int(text)


def check_combinations(request: SamplingFields, limits: ModelLimits, *, strict: bool) -> None:
    """Raises ``ApiError`` 400 for fields that contradict each other or, when ``strict``, the server's configuration.

    ``n`` is looked at here although ``SamplingParams`` will too: whatever grows with it may then be built in between.
    """
    _check_branches(request)
    if request.stream_options is not None and not request.stream:
        raise errors.invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    if request.stream_interval is not None and request.stream_interval < 1:
        raise errors.invalid(f"stream_interval must be at least 1, got {request.stream_interval}.", "stream_interval")
    if request.stream and (request.prompt_logprobs or 0) > 0:
        raise errors.invalid("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    if request.stream_options is not None and request.stream_options.include_beams and not request.use_beam_search:
        raise errors.invalid("`stream_options.include_beams` needs `use_beam_search`.", "stream_options")
    if strict and request.priority and not limits.priority_scheduling:
        message = f"Got priority {request.priority}, but priority scheduling is not enabled."
        raise errors.invalid(message, "priority")
    if request.cache_salt is not None and (not request.cache_salt or _FORBIDDEN_IN_SALT & set(request.cache_salt)):
        raise errors.invalid("cache_salt must not be empty nor contain any of @ / \\ and NUL.", "cache_salt")
    if request.truncation_side not in (None, "left", "right"):
        raise errors.invalid("truncation_side must be left or right.", "truncation_side")


def _check_branches(request: SamplingFields) -> None:
    n, best_of = request.n, request.best_of
    if n is not None and not 1 <= n <= MAX_N:
        raise ParameterError(f"n must be between 1 and {MAX_N}, got {n}.", param="n", value=n)
    if best_of is not None and not (n or 1) <= best_of <= MAX_N:
        message = f"best_of must be between n={n or 1} and {MAX_N}, got {best_of}."
        raise ParameterError(message, param="best_of", value=best_of)
    name, width = ("best_of", best_of) if best_of is not None else ("n", n or 1)
    if request.use_beam_search and width > MAX_BEAM_WIDTH:
        message = f"with use_beam_search {name} is the beam width and must be at most {MAX_BEAM_WIDTH}, got {width}."
        raise ParameterError(message, param=name, value=width)


def without_effect(request: SamplingFields, limits: ModelLimits) -> list[str]:
    """A warning for each field that only means something in a beam search or under a policy, and is set without it."""
    searches, in_order = bool(request.use_beam_search), limits.priority_scheduling
    given = [
        ("length_penalty", "use_beam_search", not searches and request.length_penalty not in (None, 1.0)),
        ("early_stopping", "use_beam_search", not searches and bool(request.early_stopping)),
        ("priority", "--scheduling-policy priority", not in_order and bool(request.priority)),
    ]
    return [f"`{name}` has no effect without {need}" for name, need, is_idle in given if is_idle]


def truncated(token_ids: list[T], request: SamplingFields, limits: ModelLimits) -> list[T]:
    """The prompt, or what runs beside it, cut to ``truncate_prompt_tokens``, -1 being the context length: its end stays, or
    with ``right`` its start."""
    keep = request.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep < -1 or keep == 0 or keep > limits.max_model_len:
        message = f"truncate_prompt_tokens must be -1 or in [1, {limits.max_model_len}], got {keep}."
        raise errors.invalid(message, "truncate_prompt_tokens")
    keep = limits.max_model_len if keep == -1 else keep
    return token_ids[:keep] if request.truncation_side == "right" else token_ids[-keep:]


def check_prompt(token_ids: list[int], limits: ModelLimits) -> None:
    """Raises ``ApiError`` 400 for a prompt that is empty, too long, or has ids outside the vocabulary."""
    length, limit = len(token_ids), limits.max_model_len
    if not length:
        raise errors.invalid("The decoder prompt cannot be empty.", "prompt")
    if length > limit:
        raise ParameterError(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {length} input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
            value=length,
        )
    if length == limit:
        raise ApiError(
            400,
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer than the "
            f"maximum model length of {limit}. Make sure that `max_model_len` is no smaller than the number of text tokens "
            "(prompt + requested output tokens).",
            param="input_tokens",
        )
    worst = max(token_ids)
    if worst >= limits.vocab_size:
        raise errors.invalid(f"Token id {worst} is out of vocabulary", "prompt")


def requested_tokens(request: CompletionRequest | ChatRequest) -> tuple[str, int | None]:
    """The field that limits the output, and its value; None is up to the context length."""
    if isinstance(request, ChatRequest):
        if request.max_completion_tokens is not None:
            return "max_completion_tokens", request.max_completion_tokens
        return "max_tokens", request.max_tokens
    return "max_tokens", DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens


def num_alternatives(request: CompletionRequest | ChatRequest) -> int:
    """How many log-probabilities are reported beside that of each token."""
    asked = request.top_logprobs if isinstance(request, ChatRequest) else request.logprobs
    return len(request.logprob_token_ids or ()) or asked or 0


def requested_logprobs(request: CompletionRequest | ChatRequest) -> int | None:
    """How many of the likeliest tokens to report beside each; None is no log-probabilities at all. Tokens that are named ask
    for them, too."""
    if isinstance(request, CompletionRequest):
        return 0 if request.logprobs is None and request.logprob_token_ids else request.logprobs
    if not request.logprobs and not request.logprob_token_ids:
        if request.top_logprobs:
            raise errors.invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        return None
    top = request.top_logprobs or 0
    if top < 0:
        raise ParameterError(f"top_logprobs must be at least 0, got {top}.", param="top_logprobs", value=top)
    return top


def build(
    request: CompletionRequest | ChatRequest, *, prompt_length: int, limits: ModelLimits, prompt_logprobs: int | None
) -> SamplingParams:
    """The parameters of one prompt. Raises ``ParameterError`` or ``ApiError``."""
    name, max_tokens = requested_tokens(request)
    if max_tokens is not None and max_tokens > limits.max_model_len:
        raise ParameterError(
            f"{name}={max_tokens} cannot be greater than max_model_len={limits.max_model_len}. "
            "Please request fewer output tokens.",
            param=name,
            value=max_tokens,
        )
    room = limits.max_model_len - prompt_length
    fields: dict[str, Any] = {
        "max_tokens": room if max_tokens is None else min(max_tokens, room),
        "logprobs": requested_logprobs(request),
        "prompt_logprobs": prompt_logprobs,
        "logit_bias": _logit_bias(request.logit_bias),
    }
    for field in _PASSED_ON:
        if (value := getattr(request, field)) is not None:
            fields[field] = value
    if (watched := request.repetition_detection) is not None:
        sizes = {name: value for name, value in msgspec.structs.asdict(watched).items() if value is not None}
        fields["repetition_detection"] = RepetitionDetectionParams(**sizes)
    if (form := structured.wanted(request)) is not None:
        fields["structured_outputs"] = form.params
    fields |= _searching(request) if request.use_beam_search else _drawing(request, limits)
    named = {"max_tokens": name, "logprobs": "top_logprobs" if isinstance(request, ChatRequest) else "logprobs"}
    try:
        params = SamplingParams(**fields)
        params.check_against(vocab_size=limits.vocab_size, max_logprobs=limits.max_logprobs)
    except ParameterError as error:
        param = named.get(error.param or "", error.param)
        raise ParameterError(str(error).replace("max_tokens", name), param=param, value=error.value) from None
    return params


def _drawing(request: CompletionRequest | ChatRequest, limits: ModelLimits) -> dict[str, Any]:
    """The fields that say how tokens are drawn, with the model's recommendations."""
    fields: dict[str, Any] = {}
    for field in _MODEL_DEFAULTS:
        value = getattr(request, field)
        value = limits.default_sampling.get(field) if value is None else value
        if value is not None:
            fields[field] = value
    fields["top_k"] = min(fields.get("top_k", 0), limits.vocab_size)
    if request.best_of is not None and request.best_of > (request.n or 1):
        fields["best_of"] = request.best_of
    return fields


def _searching(request: CompletionRequest | ChatRequest) -> dict[str, Any]:
    """The fields of a beam search. Nothing is drawn: temperature, top_p, top_k, min_p and seed say nothing, nor does what the
    model recommends for draws."""
    width = request.best_of or request.n or 1
    fields: dict[str, Any] = {"best_of": width, "temperature": 0.0, "seed": None}
    if request.repetition_penalty is not None:
        fields["repetition_penalty"] = request.repetition_penalty
    beam: dict[str, Any] = {"report": bool(request.stream_options and request.stream_options.include_beams)}
    for field in ("length_penalty", "early_stopping"):
        if (value := getattr(request, field)) is not None:
            beam[field] = value
    return {**fields, "beam": BeamSearch(width=width, **beam)}


def size(request: CompletionRequest | ChatRequest) -> int:
    """Roughly how many list entries a request has besides its prompts; a banned word counts as 64, because it is tokenized."""
    lists = (request.logit_bias, request.allowed_token_ids, request.stop_token_ids)
    return 16 + sum(len(given) for given in lists if given is not None) + 64 * len(request.bad_words or ())


def _logit_bias(given: dict[str, float] | None) -> dict[int, float] | None:
    """Keys as token ids, values clamped to ±100."""
    if not given:
        return None
    bad = [key[:32] for key in given if not key.isdecimal() or not key.isascii() or len(key) > 9]
    if bad:
        raise ParameterError(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {bad[:5]}", param="logit_bias"
        )
    return {int(key): min(100.0, max(-100.0, value)) for key, value in given.items()}
