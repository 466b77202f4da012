"""The body of POST /v1/responses and what goes out, as types.

What concerns other machinery than a model's text (stored responses, hosted tools, background work) is listed, so that using it
is a clear error.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.server.protocol import DecodingFields, Int32

MAX_METADATA = 16
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=MAX_METADATA)
]
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class TextOptions(msgspec.Struct, kw_only=True):
    """``format``: the form of the text, as in chat's ``response_format`` but flat."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: Annotated[str, Meta(max_length=64)] | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None


class ResponsesRequest(DecodingFields, kw_only=True):
    """POST /v1/responses. ``input`` is a text or a list of items: messages, calls, their outputs, reasoning."""

    input: Any
    instructions: str | None = None
    max_output_tokens: Int32 | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    structured_outputs: Any = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: Int32 | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None

    # of no consequence here, and taken without a warning
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    max_tool_calls: Any = None
    stream_options: Any = None
    session_id: Any = None

    # not served: refused when they ask for something
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None


class OutputText(msgspec.Struct, kw_only=True):
    """``logprobs``: of ``ChatLogprob``s, as JSON."""

    type: str = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[msgspec.Raw] = []


class ReasoningText(msgspec.Struct, kw_only=True):
    type: str = "reasoning_text"
    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: str = "assistant"
    status: Status
    content: list[OutputText]


class Reasoning(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[Any] = []
    content: list[ReasoningText]
    encrypted_content: None = None


class Call(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class InputDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int


class ItemsUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    reason: str


class ItemsError(msgspec.Struct):
    code: str
    message: str


class ItemsResponse(msgspec.Struct, kw_only=True):
    """The response; in a stream also as it stands when it begins."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: ItemsError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | Reasoning | Call]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: ReasoningOptions
    service_tier: str = "default"
    store: bool = False
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: str
    usage: ItemsUsage | None = None
    user: str | None
    warnings: list[str] | UnsetType = UNSET
