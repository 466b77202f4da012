"""The sandbox chat templates run in: Jinja without a way out, and with bounds on time and on memory.

Owns the environment (the dialect that Hugging Face chat templates are written in) and the bounds. Knows nothing of messages.
A template comes from the model or the operator, never from a client, but its author may still have meant harm, and a client
chooses how much it renders. So every loop pass, macro call and block counts against a deadline, everything that can make
long text out of short is charged against a budget before it is done, and filters that are not on a list do not exist.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_OUTPUT_CHARACTERS = 4 * 2**20
MAX_SECONDS = 1.0
_MAX_CHARGED_CHARACTERS = 128 * 2**20
_MAX_INTEGER_BITS = 4096
_MAX_JSON_INDENT = 16

_BUDGET = "render budget"  # a name with a space: no template can write it
_HARMLESS_FILTERS = """
    abs attr capitalize count d default dictsort e escape first float forceescape groupby int items last length list lower map
    max min reject rejectattr reverse safe select selectattr sort string striptags sum title trim truncate unique upper
    urlencode wordcount
"""


class TemplateLimitError(TemplateError):
    """A render took too long, or would have produced too much."""


class TemplateRefusal(TemplateError):
    """The template called ``raise_exception``: it says itself what is wrong with the messages."""


class RenderBudget:
    """What one render may still spend: seconds, and characters built along the way."""

    def __init__(self, seconds: float, characters: int) -> None:
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._characters = characters

    def check_time(self) -> None:
        """Raises TemplateLimitError once the deadline has passed."""
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"the chat template took longer than {self._seconds:g} s")

    def charge(self, characters: int) -> None:
        """Account for text about to be built; raises TemplateLimitError when that is too much."""
        self._characters -= characters
        if self._characters < 0:
            raise TemplateLimitError("the chat template builds too much text")
        self.check_time()


def _budget(context: Context) -> RenderBudget:
    return cast(RenderBudget, context.parent[_BUDGET])


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it. ``instrument`` and ``render`` belong together: only instrumented code is bounded."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlocks])
        self.filters = {name: self.filters[name] for name in _HARMLESS_FILTERS.split()} | _CHECKED_FILTERS
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def instrument(self, source: str) -> nodes.Template:
        """Parse a template and put the bounds into it. Raises jinja2.TemplateSyntaxError."""
        return cast(nodes.Template, _Instrumenter().visit(self.parse(source)))

    def tick(self, context: Context) -> str:
        """Called by instrumented code at each loop pass, macro call and block."""
        _budget(context).check_time()
        return ""

    def concat_checked(self, context: Context, *parts: object) -> str:
        """The ``~`` operator."""
        texts = [str(part) for part in parts]
        _budget(context).charge(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic whose result can be far larger than its operands, refused or charged before it is done."""
        if isinstance(left, int) and isinstance(right, int):
            _check_integers(operator, left, right)
        elif operator == "*" and isinstance(left, int | str | list | tuple) and isinstance(right, int | str | list | tuple):
            sequence, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and not isinstance(sequence, int):
                _budget(context).charge(_size(sequence) * max(times, 0))
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _budget(context).charge(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            _charge_format(context, left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template goes through here."""
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox hands out str.format in a wrapper
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        named = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}  # jinja's own
        if isinstance(owner, str) and name in _GROWTH_OF_METHODS:
            _budget(__context).charge(_GROWTH_OF_METHODS[name](owner, *args, **named))
        elif isinstance(owner, str) and name == "join" and args:
            items = list(args[0])
            _budget(__context).charge(sum(len(owner) + len(i) for i in items if isinstance(i, str)))
            return owner.join(items)
        elif isinstance(owner, str) and name in ("format", "format_map"):
            _charge_format(__context, owner, (*args, *named.values()))
        return super().call(__context, __obj, *args, **kwargs)

    def render(self, template: Any, variables: dict[str, Any], *, seconds: float, characters: int) -> str:
        """Render an instrumented template. Raises jinja2.TemplateError and whatever else a template can stumble over."""
        budget = RenderBudget(seconds, _MAX_CHARGED_CHARACTERS)
        return "".join(_bounded(template.generate({**variables, _BUDGET: budget}), budget, characters))


class GenerationBlocks(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks the assistant's text for training; here it only shows its contents."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Instrumenter(NodeTransformer):
    """Puts a tick at the head of everything that can repeat, and sends ``~`` through the environment."""

    def _ticking(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_environment_call("tick", [], node.lineno), lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = visit_Block = visit_FilterBlock = _ticking

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _environment_call("concat_checked", node.nodes, node.lineno)


def _environment_call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    target = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(target, [nodes.ContextReference(lineno=lineno), *arguments], [], None, None, lineno=lineno)


def _bounded(pieces: Iterable[str], budget: RenderBudget, characters: int) -> Iterator[str]:
    for piece in pieces:
        characters -= len(piece)
        if characters < 0:
            raise TemplateLimitError("the chat template's output is too long")
        budget.check_time()
        yield piece


def _size(sequence: Any) -> int:
    """In characters; an item of a list counts as eight, the bytes of a reference."""
    return len(sequence) if isinstance(sequence, str) else 8 * len(sequence)


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = {"**": left.bit_length() * max(right, 0), "*": left.bit_length() + right.bit_length()}.get(operator, 0)
    if bits > _MAX_INTEGER_BITS:
        raise TemplateLimitError("the chat template computes with too large a number")


def _charge_format(context: Context, pattern: str, values: Iterable[Any]) -> None:
    """Widths are written as digits in the pattern or given as integers; strings go in as long as they are."""
    digits = re.findall(r"\d+", pattern)
    if any(len(d) > 9 for d in digits):
        raise TemplateLimitError("the chat template builds too much text")
    sizes = sum(abs(v) if isinstance(v, int) and v.bit_length() < 64 else len(v) if isinstance(v, str) else 0 for v in values)
    has_star = "*" in pattern or re.search(r"\{[^{}]*\{", pattern) is not None
    _budget(context).charge(len(pattern) + sum(map(int, digits)) + (sizes if has_star else 0))


def _pad_growth(text: str, width: int = 0, *_: Any) -> int:
    return max(len(text), width)


def _replace_growth(text: str, old: str, new: str, count: int = -1, **_: Any) -> int:
    times = text.count(old) if count < 0 else min(count, text.count(old))
    return len(text) + times * len(new)


_GROWTH_OF_METHODS: dict[str, Callable[..., int]] = {
    "center": _pad_growth,
    "ljust": _pad_growth,
    "rjust": _pad_growth,
    "zfill": _pad_growth,
    "expandtabs": lambda text, tabsize=8: len(text) + text.count("\t") * max(tabsize, 0),
    "replace": _replace_growth,
    "translate": lambda text, table: len(text) * max([1, *(len(v) for v in dict(table).values() if isinstance(v, str))]),
}


@pass_context
def _center(context: Context, value: Any, width: int = 80) -> str:
    _budget(context).charge(max(len(str(value)), width))
    return str(value).center(width)


@pass_context
def _format(context: Context, value: Any, *args: Any, **kwargs: Any) -> str:
    _charge_format(context, str(value), (*args, *kwargs.values()))
    return str(value) % (kwargs or args)


@pass_context
def _indent(context: Context, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    lines = str(value).splitlines() or [""]
    _budget(context).charge(len(str(value)) + len(lines) * (width if isinstance(width, int) else len(width)))
    margin = " " * width if isinstance(width, int) else width
    head, tail = lines[0], [margin + line if line or blank else line for line in lines[1:]]
    ending = "\n" if str(value).endswith("\n") else ""
    return "\n".join([margin + head if first and (head or blank) else head, *tail]) + ending


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    budget, parts = _budget(context), []
    for item in value:
        chosen = item if attribute is None else context.environment.getitem(item, attribute)
        parts.append(str(chosen))
        budget.charge(len(parts[-1]) + len(d))
    return str(d).join(parts)


@pass_context
def _replace(context: Context, s: Any, old: str, new: str, count: int | None = None) -> str:
    text, times = str(s), -1 if count is None else count
    _budget(context).charge(_replace_growth(text, str(old), str(new), times))
    return text.replace(str(old), str(new), times)


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > 100 or method not in ("common", "ceil", "floor"):
        raise TemplateLimitError("the chat template rounds to an impossible number of digits")
    if method == "common":
        return round(value, precision)
    shifted = value * 10.0**precision
    return float(-(-shifted // 1) if method == "ceil" else shifted // 1) / 10.0**precision


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without the HTML escapes of Jinja's own filter."""
    if indent is not None and indent > _MAX_JSON_INDENT:
        raise TemplateLimitError("the chat template indents JSON too far")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > 1000 or re.search(r"%[-_0^#]*\d", format):
        raise TemplateLimitError("the chat template asks for too long a date")
    return datetime.now().strftime(format)


_CHECKED_FILTERS: dict[str, Callable[..., Any]] = {
    "center": _center,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "tojson": _tojson,
}
