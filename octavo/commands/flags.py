"""Flags from the fields of a configuration type, so that a name, a default, a limit and a help text are written once.

A field ``max_num_seqs`` is the flag ``--max-num-seqs`` and the environment variable ``OCTAVO_MAX_NUM_SEQS``; a flag wins over
the environment, and both over the default. Values are checked by the type itself.
"""

import argparse
import re
import shutil
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from octavo.commands import COMMANDS, USAGE_ERROR
from octavo.config import ConfigError, configured

T = TypeVar("T")
Options = tuple[type[Any], ...]
"""Configuration types."""
PREFIX = "OCTAVO_"
_SUFFIXES = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")
_METAVARS = {
    "tokenizer": "PATH",
    "chat_template": "FILE",
    "pin_prefix": "FILE",
    "output_json": "FILE",
    "plot": "FILE",
    "input_file": "FILE",
    "output_file": "FILE",
    "api_keys_file": "FILE",
    "usage_log": "FILE",
    "otlp_traces_endpoint": "URL",
    "file": "FILE",
}
_WIDEST = 110
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Parser(argparse.ArgumentParser):
    """One line and status 64 for what the user can put right."""

    def __init__(self, *, prog: str, description: str, usage: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            usage=usage,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        self.set_defaults(command=prog)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}; see {self.prog} --help", file=sys.stderr, flush=True)
        sys.exit(USAGE_ERROR)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        terminal = shutil.get_terminal_size(fallback=(_WIDEST, 24)).columns
        super().__init__(prog, max_help_position=34, width=min(_WIDEST, terminal))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """A switch that is off is shown under its name alone, any other with the way to turn it off; both always work."""
        if isinstance(action, argparse.BooleanOptionalAction):
            name = action.option_strings[0]
            return name if action.const is False else f"--[no-]{name[2:]}"
        return super()._format_action_invocation(action)


class Field(msgspec.Struct, frozen=True):
    """A field as a flag: what it takes, what the help says."""

    name: str
    kind: Literal["bool", "int", "float", "str", "list"]
    optional: bool
    choices: tuple[str, ...]
    help: str
    default: Any
    of_numbers: bool = False
    """A list of whole numbers, not of texts."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def fields_of(struct: type[Any]) -> list[Field]:
    """Every field of a configuration type, in order."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return [_field(field, hints[field.name]) for field in msgspec.structs.fields(struct)]


def _field(field: Any, hint: Any) -> Field:
    description = ""
    while typing.get_origin(hint) is typing.Annotated:
        hint, *extras = typing.get_args(hint)
        description = next((extra.description for extra in extras if getattr(extra, "description", None)), description)
    members = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    optional = type(None) in members
    (base,) = [member for member in members if member is not type(None)]
    while typing.get_origin(base) is typing.Annotated:
        base = typing.get_args(base)[0]
    choices: tuple[str, ...] = ()
    if typing.get_origin(base) is Literal:
        values = typing.get_args(base)
        choices, base = tuple(map(str, values)), type(values[0])
    kind: Any = "list" if typing.get_origin(base) is tuple else base.__name__
    of_numbers = kind == "list" and _is_int(typing.get_args(base)[0])
    return Field(field.name, kind, optional, choices, description, field.default, of_numbers)


def _is_int(hint: Any) -> bool:
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    return hint is int


def add_flags(parser: argparse.ArgumentParser, struct: type[Any], *, title: str, skip: Sequence[str] = ()) -> None:
    """Adds a flag for every field of ``struct`` but those to ``skip``. None of them has a default for argparse."""
    group = parser.add_argument_group(title)
    fields = [field for field in fields_of(struct) if field.name not in skip]
    example = next((field for field in fields if "_" in field.name), fields[0])
    parser.epilog = (
        parser.epilog or f"Each flag can also be set in the environment: {example.flag} as {example.variable}, and so on."
    )
    for field in fields:
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(field), "dest": field.name}
        if field.kind == "bool":
            group.add_argument(field.flag, action=argparse.BooleanOptionalAction, **options).const = field.default
        elif field.kind == "list":
            group.add_argument(field.flag, action="extend", nargs="+", metavar=_metavar(field), **options)
        else:
            group.add_argument(field.flag, metavar=_metavar(field), **options)


def _metavar(field: Field) -> str:
    if field.choices:
        return "{" + ",".join(field.choices) + "}"
    if field.name in _METAVARS:
        return _METAVARS[field.name]
    if field.of_numbers:
        return "N"
    return {"int": "N", "float": "X"}.get(field.kind, field.name.rpartition("_")[2].upper())


def _help(field: Field) -> str:
    """The description with the default at its end, the type's own or the one that the description tells of."""
    text, *told = re.split("; default:? ", field.help, maxsplit=1)
    if not told and field.default not in (None, (), msgspec.NODEFAULT):
        told = [_shown(field)]
    return text.replace("%", "%%") + "".join(f" (default: {default})" for default in told)


def _shown(field: Field) -> str:
    if field.kind == "bool":
        return "on" if field.default else "off"
    if field.kind == "list":
        return " ".join(map(str, field.default))
    if field.kind == "int" and field.default >= 2**20 and field.default % 2**20 == 0:
        return f"{field.default // 2**20}M"
    return f"{field.default:g}" if field.kind == "float" else str(field.default)


def read(
    parser: Parser,
    options: Options,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    also_known: Options = (),
) -> tuple[argparse.Namespace, list[Any]]:
    """All that a command does with what it is given: the flags as they are parsed, and one configuration for each of
    ``options``. Variables of ``also_known`` are none to warn of. Raises ``ConfigError``, naming the flag or the variable."""
    parsed = parser.parse_args(arguments)
    take_model(parsed)
    warn_of_unknown(environment, options + also_known)
    return parsed, [configure(struct, parsed, environment) for struct in options]


def configure(struct: type[T], arguments: argparse.Namespace, environment: Mapping[str, str]) -> T:
    """A configuration from flags and environment. Raises ``ConfigError``, naming the flag or the variable."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for field in fields_of(struct):
        given = getattr(arguments, field.name, None)
        if given is not None:
            values[field.name], places[field.name] = _value(field, given, field.flag), field.flag
        elif field.variable in environment:
            text: Any = environment[field.variable]
            given = [part.strip() for part in text.split(",")] if field.kind == "list" else text
            values[field.name], places[field.name] = _value(field, given, field.variable), field.variable
    missing = [f for f in fields_of(struct) if f.default is msgspec.NODEFAULT and f.name not in values]
    if missing:
        raise ConfigError(_say_which(missing[0], arguments))
    return configured(struct, values, places)


def _say_which(field: Field, arguments: argparse.Namespace) -> str:
    """What is missing, and where it goes."""
    command = arguments.command
    example = f", as in {command} smollm2" if field.name == "model" else ""
    what = f"say which {field.name.replace('_', ' ')} ({field.help}){example}; see {command} --help"
    taken = _taken_by_a_list(arguments) if field.name == "model" else None
    if taken is None:
        return what
    name, value = taken
    return f"{what}; --{name.replace('_', '-')} took {value}: if that is the model, put it first"


def _taken_by_a_list(arguments: argparse.Namespace) -> tuple[str, str] | None:
    """A flag of several values and the last of them, which may have been meant as MODEL."""
    lists = ((name, given) for name, given in vars(arguments).items() if isinstance(given, list) and len(given) > 1)
    return next(((name, given[-1]) for name, given in lists), None)


def _value(field: Field, given: Any, place: str) -> Any:
    """Text as what the field takes; limits are checked later, by the type."""
    if field.kind == "list":
        return _items(field, given, place)
    if field.kind in ("bool", "str") and not isinstance(given, str):
        return given
    if field.choices and given not in field.choices:
        raise ConfigError(f"{place}: {given!r} is not one of {', '.join(field.choices)}")
    try:
        if field.kind == "bool":
            return _boolean(given)
        if field.kind == "int":
            return None if field.optional and given in ("-1", "auto") else _integer(given)
        return float(given) if field.kind == "float" else given
    except ValueError:
        wanted = {"bool": "true or false", "int": "a whole number, as 8192 or 8K", "float": "a number"}[field.kind]
        raise ConfigError(f"{place}: {given!r} is not {wanted}") from None


def _items(field: Field, given: Sequence[str], place: str) -> tuple[Any, ...]:
    try:
        return tuple(map(_integer, given)) if field.of_numbers else tuple(given)
    except ValueError:
        raise ConfigError(f"{place}: {' '.join(given)!r} is not a list of whole numbers") from None


def _integer(text: str) -> int:
    """8192, 8K = 8 * 1024, 8k = 8 * 1000, 1.5k = 1500."""
    sized = _SIZE.fullmatch(text)
    return int(float(sized.group(1)) * _SUFFIXES[sized.group(2)]) if sized else int(text)


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in (*_TRUE, *_FALSE):
        raise ValueError(text)
    return lowered in _TRUE


def warn_of_unknown(environment: Mapping[str, str], structs: Options) -> None:
    """A line on stderr for each ``OCTAVO_*`` variable that is no field of ``structs``, nor of another command."""
    known = _variables(structs)
    unknown = [name for name in sorted(environment) if name.startswith(PREFIX) and name not in known]
    if not unknown:
        return
    of_others = {name for module, _ in COMMANDS.values() for name in _variables(import_module(module).OPTIONS)}
    for name in unknown:
        if name not in of_others:
            print(f"octavo: warning: {name} sets nothing{_nearest(name, known)}", file=sys.stderr, flush=True)


def _variables(structs: Options) -> list[str]:
    return [field.variable for struct in structs for field in fields_of(struct)]


def _nearest(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


def add_model(parser: argparse.ArgumentParser, *, more_help: str = "") -> None:
    """The model as the one positional argument, or as ``--model``."""
    text = f"demo model alias (smollm2), directory, .gguf file or hub id{more_help}"
    parser.add_argument("model", nargs="?", metavar="MODEL", default=argparse.SUPPRESS, help=text)
    parser.add_argument("--model", dest="model_flag", metavar="MODEL", default=argparse.SUPPRESS, help="the same as MODEL")


def take_model(arguments: argparse.Namespace) -> None:
    """Puts ``--model`` in the place of the positional argument. Raises ``ConfigError`` when both are given and differ."""
    flag = getattr(arguments, "model_flag", None)
    if flag is None:
        return
    if getattr(arguments, "model", flag) != flag:
        raise ConfigError(f"two models are given: {arguments.model} and --model {flag}")
    arguments.model = flag
