"""The bodies that clients send, as types: names, JSON types and the caps that JSON alone can check.

Defaults are ``None`` where the model's own defaults come between the client and the engine. Fields that exist elsewhere but
are not served here are listed, so that using one is a clear error and not an unnoticed difference; a field that is in no
list is unknown, and named in the response's ``warnings`` or refused with ``--strict``.
"""

import sys
from typing import Annotated, Any

import msgspec
from msgspec import Meta

MAX_ID = 256
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""What a JSON number may be. A string that is taken for one could also spell an infinity or NaN."""
Identifier = Annotated[str, Meta(max_length=MAX_ID)]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_beams: bool | None = None


class RepetitionDetection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    max_pattern_size: Int32 | None = None
    min_pattern_size: Int32 | None = None
    min_count: Int32 | None = None


class DecodingFields(msgspec.Struct, kw_only=True):
    """What every route that generates has, under the same names."""

    model: str | None = None
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: Annotated[int, Meta(ge=-(2**31))] | None = None
    min_p: Finite | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    repetition_penalty: Finite | None = None
    seed: int | None = None
    min_tokens: Int32 | None = None
    stop: list[str] | str | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, Finite] | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    priority: Int32 | None = None
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None
    request_id: Identifier | None = None


class SamplingFields(DecodingFields, kw_only=True):
    """What completions and chat have in common."""

    n: Int32 | None = None
    best_of: Int32 | None = None
    use_beam_search: bool | None = None
    length_penalty: Finite | None = None
    early_stopping: bool | str | None = None
    max_tokens: Int32 | None = None
    stop_token_ids: list[int] | None = None
    prompt_logprobs: Int32 | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Int32 | None = None
    truncation_side: str | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Int32 | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_offsets: bool | None = None
    thinking_token_budget: Int32 | None = None
    repetition_detection: RepetitionDetection | None = None

    # of no consequence here, and taken without a warning: they concern the sender's own bookkeeping
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prediction: Any = None
    session_id: Any = None
    routed_experts_prompt_start: Any = None
    mm_payload: Any = None

    # the form of the answer, one of them at the most: see structured.py
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    # not served: refused when they ask for something
    logits_processors: Any = None
    prompt_embeds: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    watermarking: Any = None
    vllm_xargs: Any = None


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions. ``prompt`` is a string, token ids, or a list of either."""

    prompt: Any = None
    logprobs: Int32 | None = None
    suffix: str | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = ""


class ToolCall(msgspec.Struct, kw_only=True):
    id: str | None = None
    type: str = "function"
    function: FunctionCall


class Message(msgspec.Struct, kw_only=True):
    """One turn of a chat. Roles are free: what they mean is the template's business."""

    role: str
    content: list[ContentPart] | str | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_prompt_text: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    documents: list[dict[str, Any]] | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None
    verbosity: Annotated[str, Meta(max_length=64)] | None = None

    chat_template: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    web_search_options: Any = None
    audio: Any = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize, with ``prompt`` or with ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
