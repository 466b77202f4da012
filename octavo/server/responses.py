"""The bodies that go out: responses, chunks and their parts, as types whose field order is the order on the wire.

A field that is ``None`` is written as null where clients expect the key to be there; a field that is ``UNSET`` is left out.
Fields that other servers fill and this one never does are there because clients read them.
"""

from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from octavo.outputs import FinishReason

ChatFinishReason: TypeAlias = FinishReason | Literal["tool_calls"]
Offsets: TypeAlias = list[tuple[int, int]] | UnsetType | None
"""The characters of a text that each token stands for, from and up to; null for a prompt that came as token ids."""


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: None = None


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry a token; the first token of a prompt has no log-probability. ``top_logprobs`` are objects from
    tokens to log-probabilities, as JSON: as objects, those of a long answer would take long to encode and to free."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[msgspec.Raw | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: msgspec.Raw | None = None
    prompt_token_ids: list[int] | None = None
    prompt_token_offsets: Offsets = UNSET
    routed_experts: None = None


class CompletionResponse(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: None = None
    system_fingerprint: str
    usage: Usage
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None
    warnings: list[str] | UnsetType = UNSET


class CompletionChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_token_offsets: Offsets = UNSET
    token_ids: list[int] | None = None


class Beam(msgspec.Struct, kw_only=True):
    """One beam of a search that goes on: the whole of it, not what is new. ``cumulative_logprob`` has no length penalty."""

    text: str
    cumulative_logprob: float
    token_ids: list[int] | UnsetType = UNSET


class CompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    beams: list[Beam] | UnsetType = UNSET
    prompt_index: int | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Of ``ChatLogprob``s, as JSON."""

    content: list[msgspec.Raw]


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """The beginning of a call, with ``id``, ``type`` and name, or more of its arguments."""

    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int
    function: CalledFunction


class MadeToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: str = "function"
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[MadeToolCall] | UnsetType = UNSET
    reasoning: str | None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: None = None


class ChatResponse(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None = None
    system_fingerprint: str
    usage: Usage
    prompt_logprobs: msgspec.Raw | None = None
    prompt_token_ids: list[int] | None = None
    prompt_token_offsets: Offsets = UNSET
    prompt_text: str | None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None
    warnings: list[str] | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    beams: list[Beam] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_offsets: Offsets = UNSET
    prompt_text: str | UnsetType | None = UNSET
    warnings: list[str] | UnsetType = UNSET


class ModelPermission(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: None = None
    max_model_len: int
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelCard]


class Version(msgspec.Struct):
    version: str


class ServerLoad(msgspec.Struct):
    server_load: int


class TokenizeResponse(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    warnings: list[str] | UnsetType = UNSET


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    prompt: str
    warnings: list[str] | UnsetType = UNSET
