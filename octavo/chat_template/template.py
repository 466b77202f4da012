"""Chat messages to prompt text, by the template that a model brings or its operator gives.

Owns what a template sees: messages in the shape templates expect, tools, named special tokens, the caller's extra variables.
The sandbox and its bounds live in ``sandbox``. Knows nothing of tokens. The invariant: whatever messages and template
do, the caller gets text or a ParameterError; a template is compiled once and then only rendered.
"""

import itertools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, TemplateSyntaxError, meta, nodes

from octavo.chat_template.sandbox import (
    MAX_OUTPUT_CHARACTERS,
    MAX_SECONDS,
    TemplateEnvironment,
    TemplateLimitError,
    TemplateRefusal,
)
from octavo.config import ConfigError, one_line
from octavo.sampling_params import ParameterError

MAX_TEMPLATE_CHARACTERS = 2**20
_MAX_NAME_SHOWN = 64
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "tools")
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "documents"})


@dataclass(frozen=True, slots=True)
class _Compiled:
    template: Template
    variables: frozenset[str]
    """The names that it reads and does not set itself."""
    takes_parts: bool
    """Whether it goes through a message's content part by part; else parts are joined to one text for it."""
    opens_arguments: bool
    """Whether it goes through a call's arguments one by one, and so can do nothing with what is no object."""
    knows_developer: bool
    """Whether it has anything to say of the role of this name."""
    source: str


class ChatTemplate:
    """One model's templates by name: ``default``, and perhaps ``tool_use`` for requests that bring tools."""

    def __init__(self, environment: TemplateEnvironment, templates: Mapping[str, _Compiled]) -> None:
        self._environment = environment
        self._templates = dict(templates)

    @classmethod
    def compile(cls, sources: Mapping[str, str], *, source: str) -> "ChatTemplate":
        """Compile named templates; ``source`` names the file in the ConfigError that a broken one raises."""
        environment = TemplateEnvironment()
        compiled = {}
        for name, text in sources.items():
            if len(text) > MAX_TEMPLATE_CHARACTERS:
                raise ConfigError(f"The chat template in {source} is longer than {MAX_TEMPLATE_CHARACTERS} characters.")
            try:
                tree = environment.parse(text)
                code = environment.compile(environment.instrument(text), name=name)
                template = Template.from_code(environment, code, environment.make_globals(None))
                compiled[name] = _Compiled(
                    template,
                    variables=frozenset(meta.find_undeclared_variables(tree)),
                    takes_parts=_loops_over(tree, "content"),
                    opens_arguments=_loops_over(tree, "arguments"),
                    knows_developer='"developer"' in text or "'developer'" in text,
                    source=text,
                )
            except (TemplateSyntaxError, RecursionError, SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None)
                where = f" at line {line}" if line else ""
                raise ConfigError(
                    f"The chat template in {source} does not compile{where}: {one_line(error)};"
                    " correct it or use --chat-template FILE."
                ) from None
        return cls(environment, compiled)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        special_tokens: Mapping[str, str],
        documents: Sequence[Mapping[str, Any]] | None = None,
        warn: Callable[[str], None] | None = None,
        max_seconds: float = MAX_SECONDS,
        max_characters: int = MAX_OUTPUT_CHARACTERS,
    ) -> str:
        """-> the prompt. ``warn`` takes a sentence about what is passed over; without it, variables that would change nothing
        are refused. Raises ParameterError for messages that are malformed, that the template refuses or fails on, and for a
        render beyond ``max_seconds`` or ``max_characters``."""
        if continue_final_message and add_generation_prompt:
            raise ParameterError(
                "continue_final_message and add_generation_prompt cannot both be true.", param="continue_final_message"
            )
        chosen = self._choose(bool(tools))
        extra = _extra_variables(template_kwargs, known=chosen.variables, warn=warn)
        told: set[str] = set()
        plain = [_plain_message(message, i, chosen, told) for i, message in enumerate(_checked(messages))]
        if warn is not None:
            for warning in told:
                warn(warning)
        if not chosen.knows_developer:
            plain = _developers_as_system(plain)
        marker = _mark_end(plain) if continue_final_message else ""
        variables = {
            **special_tokens,
            **extra,
            "messages": plain,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(chosen.template, variables, seconds=max_seconds, characters=max_characters + len(marker))
        return _cut_at(text, marker) if marker else text

    def source(self, *, with_tools: bool) -> str:
        """The text of the template that renders requests with or without tools."""
        return self._choose(with_tools).source

    def reads(self, variable: str, *, with_tools: bool) -> bool:
        """Whether a variable changes anything for requests with or without tools."""
        return variable in self._choose(with_tools).variables

    def _choose(self, with_tools: bool) -> _Compiled:
        names = ("tool_use", "default") if with_tools else ("default",)
        for name in (*names, *self._templates):
            if name in self._templates:
                return self._templates[name]
        raise ParameterError("This model has no chat template.", param="messages")

    def _run(self, template: Template, variables: dict[str, Any], *, seconds: float, characters: int) -> str:
        try:
            return self._environment.render(template, variables, seconds=seconds, characters=characters)
        except TemplateRefusal as error:
            raise ParameterError(str(error), param="messages") from None
        except TemplateLimitError as error:
            raise ParameterError(f"These messages are too much to render: {error}.", param="messages") from None
        except (RecursionError, MemoryError):
            raise ParameterError("These messages are too much to render.", param="messages") from None
        except Exception as error:  # a template fails in every way Python can; no client sees a traceback
            raise ParameterError(
                f"The model's chat template cannot render these messages: {one_line(error)}.", param="messages"
            ) from None


def _checked(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if not messages:
        raise ParameterError("messages must not be empty.", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ParameterError(f"messages[{i}] must be an object with a role.", param="messages")
    return messages


def _plain_message(message: Mapping[str, Any], index: int, chosen: _Compiled, told: set[str]) -> dict[str, Any]:
    """A message as templates expect it: known keys only, content a text (or a list of parts where the template reads those),
    arguments of tool calls as objects, reasoning under both of its names. Adds to ``told`` what the caller should know."""
    plain = {key: message[key] for key in _MESSAGE_KEYS if message.get(key) is not None}
    if not plain.get("tool_calls", True):  # templates ask whether there is a list, not whether it has anything in it
        del plain["tool_calls"]
    plain["content"], thinking = _plain_content(message.get("content"), index, takes_parts=chosen.takes_parts)
    if "tool_calls" in plain:
        plain["tool_calls"] = [_plain_tool_call(call, index, chosen, told) for call in _list_of(plain["tool_calls"], index)]
    reasoning = plain.get("reasoning", plain.get("reasoning_content", thinking))
    if reasoning is not None:
        plain["reasoning"] = plain["reasoning_content"] = reasoning
    return plain


def _plain_content(content: Any, index: int, *, takes_parts: bool) -> tuple[str | list[dict[str, str]], str | None]:
    """The content, and what was thought where that is among its parts."""
    if content is None or isinstance(content, str):
        return content or "", None
    parts, thoughts = [], []
    for part in _list_of(content, index):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        text = part.get(kind if kind in ("refusal", "thinking") else "text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise ParameterError(
                f"messages[{index}]: content of type {kind!r} is not supported, only text is.", param="messages"
            )
        if kind == "thinking":
            thoughts.append(text)
        else:
            parts.append({"type": "text", "text": text})
    return parts if takes_parts else _joined(parts), "\n".join(thoughts) if thoughts else None


def _joined(parts: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(part["text"] for part in parts)


def _developers_as_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same for a template that does not know the role ``developer``: it would leave the message out, or put its own system
    prompt before it, or refuse. What the system and developers say before anybody else becomes one message, because many
    templates take only one."""
    if all(message["role"] != "developer" for message in messages):
        return messages
    messages = [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]
    leading = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    if len(leading) < 2:
        return messages
    said = (_joined(content) if isinstance(content := message["content"], list) else content for message in leading)
    return [{"role": "system", "content": "\n\n".join(filter(None, said))}, *messages[len(leading) :]]


def _list_of(value: Any, index: int) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ParameterError(f"messages[{index}] has a field of the wrong type.", param="messages")
    return value


def _plain_tool_call(call: Any, index: int, chosen: _Compiled, told: set[str]) -> Any:
    """Clients send the arguments as JSON text; templates write them out again and want the object. A call that a model broke
    off comes back with every turn of its conversation, and must not end it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise ParameterError(f"messages[{index}] has a tool call without a function.", param="messages")
    arguments, seen = function.get("arguments") or {}, "as they are"
    is_broken = False
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            is_broken = True
    if chosen.opens_arguments and not isinstance(arguments, Mapping):
        arguments, seen, is_broken = {}, "as none", True
    if is_broken:
        told.add(f"a tool call among the messages has arguments that are no JSON object; the model sees them {seen}")
    return {**call, "function": {**function, "arguments": arguments}}


def _extra_variables(
    template_kwargs: Mapping[str, Any] | None, *, known: frozenset[str], warn: Callable[[str], None] | None
) -> dict[str, Any]:
    """What of them the template reads. Raises ParameterError for names that are not the caller's to set, and without ``warn``
    for those that would change nothing."""
    extra = dict(template_kwargs or {})
    for name in extra:
        if not isinstance(name, str) or not name.isidentifier() or name in _OWN_VARIABLES:
            raise ParameterError(f"chat_template_kwargs cannot set {name!r}.", param="chat_template_kwargs", value=name)
    unused = [name[:_MAX_NAME_SHOWN] for name in extra if name not in known]
    if unused:
        told = f"`chat_template_kwargs`: this model's chat template does not use {', '.join(map(repr, unused[:5]))}"
        if warn is None:
            raise ParameterError(f"{told}.", param="chat_template_kwargs")
        warn(told)
    return {name: value for name, value in extra.items() if name in known}


def _mark_end(messages: list[dict[str, Any]]) -> str:
    """Append a text nobody can foresee to the last message, so that its end can be found in the prompt."""
    marker = f"end-of-message-{secrets.token_hex(16)}"
    content = messages[-1]["content"]
    if isinstance(content, list):
        if not content:
            raise ParameterError("The final message has no content to continue.", param="continue_final_message")
        content[-1]["text"] += marker
    else:
        messages[-1]["content"] = content + marker
    return marker


def _cut_at(text: str, marker: str) -> str:
    end = text.rfind(marker)
    if end < 0:
        raise ParameterError("This model's chat template cannot continue the final message.", param="continue_final_message")
    return text[:end]


def _loops_over(tree: nodes.Template, field: str) -> bool:
    """Whether the template loops over this field of anything, directly or through a variable set from it."""
    aliases = {
        target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(target := assign.target, nodes.Name) and _is_field(assign.node, field, frozenset())
    }
    return any(_is_field(loop.iter, field, frozenset(aliases)) for loop in tree.find_all(nodes.For))


def _is_field(node: nodes.Node | None, field: str, aliases: frozenset[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr == "items":
        node = node.node.node
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Const):
            return bool(node.arg.value == field)
        return isinstance(node.arg, nodes.Slice) and _is_field(node.node, field, aliases)
    if isinstance(node, nodes.Getattr):
        return node.attr == field
    return isinstance(node, nodes.Name) and node.name in aliases
