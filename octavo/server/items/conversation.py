"""From a body of /v1/responses to the chat request that it means.

Items become messages: consecutive calls one assistant's message, reasoning the message after it, ``instructions`` a developer's
message before all of them. Raises ``ApiError`` 400 that names the item.
"""

from typing import Any

import msgspec

from octavo.server import errors
from octavo.server.items.protocol import ResponsesRequest, TextOptions
from octavo.server.protocol import ChatRequest, DecodingFields, FunctionCall, Message, ToolCall

REFUSED = ("previous_response_id", "conversation", "background", "prompt", "context_management", "moderation")
"""Fields that concern what this server does not have, and what they ask for is not done."""
_INCLUDABLE = frozenset(["message.output_text.logprobs", "reasoning.encrypted_content"])
_PASSED_ON = (
    *DecodingFields.__struct_fields__,
    "parallel_tool_calls",
    "structured_outputs",
    "include_reasoning",
    "chat_template_kwargs",
)
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")

_BODY_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
"""Fields of a chat request that are called otherwise here, a longer path before the field that it is in."""


def chat_request(body: ResponsesRequest, *, max_model_len: int) -> ChatRequest:
    """The same as a request to /v1/chat/completions. Where ``truncation`` may cut the prompt, a quarter of the context is left
    to the answer unless ``max_output_tokens`` says how much."""
    _check(body)
    room = body.max_output_tokens or max_model_len // 4
    logprobs = body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ())
    return ChatRequest(
        messages=messages(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs,
        truncate_prompt_tokens=max(1, max_model_len - room) if body.truncation == "auto" else None,
        response_format=_response_format(body.text),
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        tools=None if not body.tools else [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools)],
        tool_choice=None if body.tool_choice == "auto" and not body.tools else _tool_choice(body.tool_choice),
        **{name: getattr(body, name) for name in _PASSED_ON},
    )


def _check(body: ResponsesRequest) -> None:
    for name in REFUSED:
        if getattr(body, name) not in (None, False, [], {}):
            why = " Nothing is stored here: send the whole conversation as `input`." if name.startswith("previous") else ""
            raise errors.invalid(f"`{name}` is not supported by this server.{why}", name)
    for name in body.include or ():
        if name not in _INCLUDABLE:
            raise errors.invalid(f"include {name[:64]!r} is not supported by this server.", "include")


def messages(body: ResponsesRequest) -> list[Message]:
    """The conversation of the body."""
    made = [Message(role="developer", content=body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        made.append(Message(role="user", content=body.input))
    elif isinstance(body.input, list):
        for i, item in enumerate(body.input):
            _add(made, item, f"input[{i}]")
    else:
        raise errors.malformed("input: expected a string or a list of items", "input")
    return made


def _add(made: list[Message], item: Any, place: str) -> None:
    """Appends what ``item`` says to the conversation."""
    if not isinstance(item, dict):
        raise errors.malformed(f"{place}: expected an object", place)
    match item.get("type", "message" if "role" in item else None):
        case "message":
            role = _text(item, "role", place)
            content = _content(item.get("content"), f"{place}.content")
            if role == "assistant" and made and _is_open(made[-1]):
                made[-1].content = content
            else:
                made.append(Message(role=role, content=content))
        case "reasoning":
            made.append(Message(role="assistant", reasoning=_reasoning(item, place)))
        case "function_call":
            function = FunctionCall(name=_text(item, "name", place), arguments=_text(item, "arguments", place))
            call = ToolCall(id=_text(item, "call_id", place), function=function)
            if not made or made[-1].role != "assistant":
                made.append(Message(role="assistant"))
            made[-1].tool_calls = made[-1].tool_calls or []
            made[-1].tool_calls.append(call)
        case "function_call_output":
            output = _content(item.get("output"), f"{place}.output")
            made.append(Message(role="tool", content=output, tool_call_id=_text(item, "call_id", place)))
        case "item_reference":
            why = "Nothing is stored here: send the item itself (clients do with `store: false`)."
            raise errors.invalid(f"{place}: references to items are not supported by this server. {why}", place)
        case kind:
            raise errors.invalid(f"{place}: items of the type {str(kind)[:64]!r} are not supported by this server.", place)


def _is_open(message: Message) -> bool:
    """Whether what the assistant says next belongs to this message: so far it has only reasoned."""
    return message.role == "assistant" and message.content is None and not message.tool_calls


def _text(item: dict[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise errors.malformed(f"{place}.{name}: expected a string", f"{place}.{name}")
    return value


def _content(given: Any, place: str) -> str:
    """The text of a message or of a call's output: a string, or parts of text."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise errors.malformed(f"{place}: expected a string or a list of parts", place)
    return "\n".join(_part(part, f"{place}[{i}]") for i, part in enumerate(given))


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _TEXT_PARTS:
        raise errors.invalid(f"{place}: only parts of text are supported, not of the type {str(kind)[:64]!r}.", place)
    return _text(part, "refusal" if kind == "refusal" else "text", place)


def _reasoning(item: dict[str, Any], place: str) -> str:
    """What was thought, or what is left of it: its summary."""
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise errors.malformed(f"{place}.content: expected a list of parts", f"{place}.content")
    return "\n".join(_text(part, "text", f"{place}.content[{i}]") for i, part in enumerate(parts))


def _response_format(text: TextOptions | None) -> dict[str, Any] | None:
    form = None if text is None else text.format
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """A function as chat has it: its own facts under ``function``."""
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:64]
        raise errors.invalid(f"{place}: tools of the type {kind!r} are not supported by this server, only functions.", "tools")
    facts = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": facts}


def _tool_choice(given: Any) -> Any:
    if isinstance(given, dict) and given.get("type") == "function" and "name" in given:
        return {"type": "function", "function": {"name": given["name"]}}
    return given


def renamed(error: errors.ApiError) -> errors.ApiError:
    """An error of the chat request, in the names of this body's fields."""
    for name, own in _BODY_NAMES.items():
        if f"{error.param}.".startswith(f"{name}."):
            message, param = error.message.replace(name, own), own + str(error.param).removeprefix(name)
            return errors.ApiError(error.status, message, param=param, type=error.type, headers=error.headers)
    return error


def tools_of(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The tools as the response repeats them: clients read these keys without asking whether they are there."""
    return [{"strict": None, "parameters": None, **tool} for tool in body.tools or []]


def options_of(body: ResponsesRequest) -> dict[str, Any]:
    """The text options as the response repeats them."""
    given = msgspec.to_builtins(body.text or TextOptions())
    return {"format": given["format"] or {"type": "text"}, "verbosity": given["verbosity"] or "medium"}
