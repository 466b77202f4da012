"""The sandbox chat templates run in: Jinja without a way out, and with bounds on time and on memory.

Owns the environment (the dialect that Hugging Face chat templates are written in) and the bounds. Knows nothing of messages.
A template comes from the model or the operator, never from a client, but its author may still have meant harm, and a client
chooses how much it renders. So there is one rule: whatever an operation gives (a filter, a test, a call, an operator, a list)
is accounted for in time and in size, and no text and no nest of lists is larger than ``_MAX_TEXT``. What can make long text
out of short, or take longer than its arguments are long, is measured before it is done; filters not on a list do not exist.
"""

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from string import Formatter
from types import GeneratorType, MappingProxyType
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context, pass_environment
from jinja2.environment import Environment
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, _PassArg
from jinja2.visitor import NodeTransformer

MAX_OUTPUT_CHARACTERS = 4 * 2**20
MAX_SECONDS = 1.0
_MAX_TEXT = MAX_OUTPUT_CHARACTERS  # what is longer could not be put out
_MAX_CHARGED_CHARACTERS = 128 * 2**20
_MAX_INTEGER_BITS = 4096
_MAX_JSON_INDENT = 16
_LONGEST_NUMBER = 320  # characters of a float, all written out
_CONTAINER = 64  # bytes of an empty one

_BUDGET = "render budget"  # a name with a space: no template can write it
_REFUSED = frozenset({"encode", "to_bytes", "striptags"})  # bytes are not counted; the last takes the square of a length
_VIEWS = tuple(map(type, ({}.keys(), {}.values(), {}.items())))
_CONTAINERS: Any = (list, tuple, dict, set, MappingProxyType, *_VIEWS)
_HARMLESS_FILTERS = """
    abs attr capitalize count d default dictsort e escape first float forceescape int items last length list lower map
    max min reject rejectattr reverse safe select selectattr sort string title truncate unique upper urlencode wordcount
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
        self._weights: dict[int, tuple[object, int]] = {}  # with the containers, so that an id stays theirs

    def admit(self, value: Any, *, is_part: bool = False) -> Any:
        """``value``, accounted for: everything that an operation gives comes through here, what a generator gives piece by
        piece. Raises TemplateLimitError when it is too much, and once the deadline has passed. ``is_part``: of a container."""
        if isinstance(value, str):
            self._charge(len(value))
        elif isinstance(value, _CONTAINERS):
            self._charge(_CONTAINER + _size(value))
            if not is_part:
                _allow(self.weigh(value))
        elif isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
            raise TemplateLimitError("the chat template computes with too large a number")
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"the chat template took longer than {self._seconds:g} s")
        return self._admitted_one_by_one(value) if isinstance(value, GeneratorType) else value

    def weigh(self, value: Any) -> int:
        """-> about how many characters ``value`` has when written out: [x, x] has those of x twice. Each level adds a 64th,
        so that how deep lists nest has an end, too (some 600 levels). What is built does not change: it is walked once."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int):
            return value.bit_length() // 3
        if not isinstance(value, _CONTAINERS):
            return 0
        if id(value) not in self._weights:
            parts = sum(map(self.weigh, value))
            if isinstance(value, dict | MappingProxyType):
                parts += sum(map(self.weigh, value.values()))
            self._weights[id(value)] = value, _size(value) + parts * 65 // 64
        return self._weights[id(value)][1]

    def weigh_sum(self, value: Any, *parts: Any) -> None:
        """A list that others were added up to need not be walked."""
        self._weights[id(value)] = value, sum(map(self.weigh, parts))

    def _charge(self, characters: int) -> None:
        _allow(characters)
        self._characters -= characters
        if self._characters < 0:
            raise TemplateLimitError("the chat template builds too much text")

    def _admitted_one_by_one(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            yield self.admit(value)


def _budget(context: Context) -> RenderBudget:
    return cast(RenderBudget, context.parent[_BUDGET])


@pass_context
def _admit(context: Context, value: Any, is_part: bool = False) -> Any:
    return _budget(context).admit(value, is_part=is_part)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """What ``{{ }}`` writes."""
    return _budget(context).admit(value if isinstance(value, str) else str(value))


_PASSED: dict[_PassArg, Callable[[Context], Any]] = {
    _PassArg.context: lambda context: context,
    _PassArg.eval_context: lambda context: context.eval_ctx,
    _PassArg.environment: lambda context: context.environment,
}


def _admitting(function: Any) -> Callable[..., Any]:
    """A filter or a test whose results are accounted for."""
    wanted = _PassArg.from_obj(function)

    @pass_context
    @functools.wraps(function)
    def admitting(context: Context, *args: Any, **kwargs: Any) -> Any:
        if wanted is not None:
            args = (_PASSED[wanted](context), *args)
        return _budget(context).admit(function(*args, **kwargs))

    return admitting


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it. ``instrument`` and ``render`` belong together: only instrumented code is bounded."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", GenerationBlocks]
        super().__init__(trim_blocks=True, lstrip_blocks=True, finalize=_finalize, extensions=extensions)
        filters = {name: cast(Any, self.filters[name]) for name in _HARMLESS_FILTERS.split()} | _CHECKED_FILTERS
        self.filters = {name: _admitting(function) for name, function in filters.items()} | {_BUDGET: _admit}
        self.tests = {name: _admitting(function) for name, function in self.tests.items()}
        del self.globals["lipsum"]
        self.globals |= {"namespace": _Namespace, "raise_exception": _raise_exception, "strftime_now": _strftime_now}

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Called by Jinja with what a macro or a block has written."""
        return _joined("", pieces)

    def instrument(self, source: str) -> nodes.Template:
        """Parse a template and put the bounds into it. Raises jinja2.TemplateSyntaxError."""
        return cast(nodes.Template, _Instrumenter().visit(self.parse(source)))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Every attribute that a template reads goes through here."""
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str | int) and attr in _REFUSED)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Every arithmetic in a template goes through here."""
        budget = _budget(context)
        if isinstance(left, int) and isinstance(right, int):
            _check_integers(operator, left, right)
        elif operator == "*":
            sequence, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and isinstance(sequence, str | list | tuple):
                _allow(_size(sequence) * times)
        elif operator == "%" and isinstance(left, str):
            _check_percents(left, budget.weigh(right))
        result = super().call_binop(context, operator, left, right)
        if operator == "+" and isinstance(result, list | tuple):
            budget.weigh_sum(result, left, right)
        return budget.admit(result)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template goes through here."""
        budget = _budget(__context)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox hands out str.format in a wrapper
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        named = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}  # jinja's own
        weight = sum(map(budget.weigh, (*args, *named.values())))
        _allow(weight)  # together, as a macro's ``varargs`` has them
        if isinstance(owner, str):
            if name in _COSTS_OF_METHODS:
                _allow(_COSTS_OF_METHODS[name](owner, *args, **named))
            elif name == "join" and args:
                args = (list(args[0]), *args[1:])
                _allow(sum(len(owner) + len(item) for item in args[0] if isinstance(item, str)))
            elif name in ("format", "format_map"):
                _check_braces(owner, weight)
        return budget.admit(super().call(__context, __obj, *args, **kwargs))

    def render(self, template: Any, variables: dict[str, Any], *, seconds: float, characters: int) -> str:
        """Render an instrumented template. Raises jinja2.TemplateError and whatever else a template can stumble over."""
        budget = RenderBudget(seconds, _MAX_CHARGED_CHARACTERS)
        return _joined("", budget.admit(template.generate({**variables, _BUDGET: budget})), characters)


class GenerationBlocks(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks the assistant's text for training; here it only shows its contents."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Instrumenter(NodeTransformer):
    """Has everything admitted that neither filters, tests, calls nor operators give, and looks at the time wherever code can
    repeat."""

    def _ticking(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filtered(_BUDGET, nodes.Const(""), node.lineno), lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = visit_Block = visit_FilterBlock = _ticking

    def _admitted(self, node: nodes.Expr, *decisive: nodes.Expr, is_part: bool = False) -> nodes.Node:
        """``decisive``: when these are constants, the node costs next to nothing and stays as it is."""
        is_constant = all(map(_is_constant, decisive))
        self.generic_visit(node)
        return node if is_constant else _filtered(_BUDGET, node, node.lineno, nodes.Const(is_part))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._admitted(node, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._admitted(node, node)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        is_constant = _is_constant(node.key)
        self.generic_visit(node)
        if not is_constant:  # to hash a key takes as long as it is large
            node.key = _filtered(_BUDGET, node.key, node.lineno)
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._admitted(node, node) if node.ctx == "load" else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        return self._admitted(node, *(operand.expr for operand in node.ops))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        return self._admitted(node, node if isinstance(node.arg, nodes.Slice) else node.arg, is_part=True)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("join", nodes.List(node.nodes, lineno=node.lineno), node.lineno)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filtered(_BUDGET, node.filter, node.lineno)
        return node


def _filtered(name: str, node: nodes.Expr | None, lineno: int, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=lineno)


def _is_constant(node: nodes.Expr) -> bool:
    try:
        node.as_const()
    except nodes.Impossible:
        return False
    return True


class _Namespace(Namespace):
    """One whose contents, which may change, are not written out with it."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _size(value: Any) -> int:
    """In characters; an item of a list counts as eight, the bytes of a reference."""
    return len(value) if isinstance(value, str) else 8 * len(value)


def _allow(characters: int) -> None:
    """Raises TemplateLimitError for more than any one text, or list of lists, may have."""
    if characters > _MAX_TEXT:
        raise TemplateLimitError("the chat template builds too much text")


def _joined(separator: str, pieces: Iterable[Any], characters: int = _MAX_TEXT) -> str:
    texts = []
    for piece in pieces:
        texts.append(str(piece))
        characters -= len(texts[-1]) + len(separator)
        if characters < 0:
            raise TemplateLimitError("the chat template writes too long a text")
    return separator.join(texts)


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = {"**": left.bit_length() * max(right, 0), "*": left.bit_length() + right.bit_length()}.get(operator, 0)
    if bits > _MAX_INTEGER_BITS:
        raise TemplateLimitError("the chat template computes with too large a number")


def _check_percents(pattern: str, weight: int) -> None:
    """Of a ``%`` format for arguments of this weight. A width follows the percent sign, or the name in brackets."""
    _check_fields(re.findall(r"[%)][-#0 +]*([\d*]*\.?[\d*]*)", pattern), weight, refused="*")


def _check_braces(pattern: str, weight: int) -> None:
    """Of a ``str.format``. A field may name an argument but no part of it: that may be longer than what was weighed."""
    fields = [(name, spec or "") for _, name, spec, _ in Formatter().parse(pattern) if name is not None]
    if any("." in name or "[" in name for name, _ in fields):
        raise TemplateLimitError("the chat template formats parts of an argument")
    _check_fields([spec for _, spec in fields], weight, refused="{")


def _check_fields(specs: list[str], weight: int, *, refused: str) -> None:
    """Widths are written as digits, not given as arguments; and each field may write all that there is."""
    if any(refused in spec for spec in specs):
        raise TemplateLimitError("the chat template formats to a width that is not written there")
    widths = sum(int(digits) for spec in specs for digits in re.findall(r"\d+", spec))
    _allow(widths + len(specs) * (_LONGEST_NUMBER + weight))


def _pad_cost(text: str, width: int = 0, *_: Any) -> int:
    return max(len(text), width)


def _replace_cost(text: str, old: str, new: str, count: int = -1, **_: Any) -> int:
    times = text.count(old) if count < 0 else min(count, text.count(old))
    return len(text) + times * len(new)


def _search_cost(text: str, sep: str | None = None, *_: Any, **__: Any) -> int:
    """Every character may be compared with every other; short separators and sets of characters are at no cost."""
    return len(text) * (len(sep or "") // 16)


_COSTS_OF_METHODS: dict[str, Callable[..., int]] = {
    "center": _pad_cost,
    "ljust": _pad_cost,
    "rjust": _pad_cost,
    "zfill": _pad_cost,
    "expandtabs": lambda text, tabsize=8: len(text) + text.count("\t") * max(tabsize, 0),
    "replace": _replace_cost,
    "translate": lambda text, table: len(text) * max([1, *(len(v) for v in dict(table).values() if isinstance(v, str))]),
    "strip": _search_cost,
    "lstrip": _search_cost,
    "rstrip": _search_cost,
    "rfind": _search_cost,
    "rindex": _search_cost,
    "rsplit": _search_cost,
    "rpartition": _search_cost,
}


def _method(name: str, value: Any, *args: Any) -> Any:
    """A method of texts as a filter."""
    text = str(value)
    _allow(_COSTS_OF_METHODS[name](text, *args))
    return getattr(text, name)(*args)


def _center(value: Any, width: int = 80) -> Any:
    return _method("center", value, width)


@pass_context
def _format(context: Context, value: Any, *args: Any, **kwargs: Any) -> str:
    _check_percents(str(value), sum(map(_budget(context).weigh, (*args, *kwargs.values()))))
    return str(value) % (kwargs or args)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    lines = str(value).splitlines() or [""]
    _allow(len(str(value)) + len(lines) * (width if isinstance(width, int) else len(width)))
    margin = " " * width if isinstance(width, int) else width
    head, tail = lines[0], [margin + line if line or blank else line for line in lines[1:]]
    ending = "\n" if str(value).endswith("\n") else ""
    return "\n".join([margin + head if first and (head or blank) else head, *tail]) + ending


@pass_environment
def _join(environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = value if attribute is None else (environment.getitem(item, attribute) for item in value)
    return _joined(str(d), items)


def _replace(s: Any, old: str, new: str, count: int | None = None) -> Any:
    return _method("replace", s, str(old), str(new), -1 if count is None else count)


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > 100 or method not in ("common", "ceil", "floor"):
        raise TemplateLimitError("the chat template rounds to an impossible number of digits")
    if method == "common":
        return round(value, precision)
    shifted = value * 10.0**precision
    return float(-(-shifted // 1) if method == "ceil" else shifted // 1) / 10.0**precision


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
    items = iterable if attribute is None else map(make_attrgetter(environment, attribute), iterable)
    return sum(items, start + 0)  # of numbers: lists, each copied into the next, are refused here


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without the HTML escapes of Jinja's own filter."""
    if max([indent or 0, *map(len, separators or ())]) > _MAX_JSON_INDENT:
        raise TemplateLimitError("the chat template indents JSON too far")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None:
        return encoder.encode(value)
    return _joined("", _budget(context).admit(encoder.iterencode(value)))  # a margin can be longer than what it is before


def _trim(value: Any, chars: str | None = None) -> Any:
    return _method("strip", value, chars)


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
    "sum": _sum,
    "tojson": _tojson,
    "trim": _trim,
}
