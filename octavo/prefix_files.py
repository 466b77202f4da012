"""From what an operator or a program wants pinned to token ids: text, a conversation's beginning, or a file with either.

Knows tokenizer and chat template, no engine. The invariant: the ids are a prefix of the ids of every prompt that begins with
the same text or the same messages, up to a token that the text after it may change.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.config import ConfigError
from octavo.sampling_params import ParameterError
from octavo.tokenizer import Tokenizer

MAX_FILE_BYTES = 16 * 2**20
_NEXT_TURNS = ("0", "A")
"""Two messages that begin differently: what conversations that go on with them have in common does not depend on either."""


def text_prefix(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text with the special tokens that a prompt starts with, but not those that one ends with."""
    with_special, bare = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
    for start in range(len(with_special) - len(bare) + 1):
        if with_special[start : start + len(bare)] == bare:
            return with_special[: start + len(bare)]
    return with_special


def chat_prefix(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The ids with which every conversation begins that begins with ``messages``, the generation prompt left out.

    Raises:
        ParameterError: the model has no chat template, or it refuses these messages.
    """
    role = "assistant" if messages[-1].get("role") == "user" else "user"
    first, second = (
        tokenizer.encode(
            tokenizer.apply_chat_template([*messages, {"role": role, "content": turn}], add_generation_prompt=False),
            add_special_tokens=False,
        )
        for turn in _NEXT_TURNS
    )
    length = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return first[:length]


def read_prefixes(files: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The token ids of each file: text, or with the ending ``.json`` messages (a list, or an object with ``messages``).

    Raises:
        ConfigError: a file cannot be read or used; the message names it.
    """
    return [_read(Path(file), tokenizer) for file in files]


def _read(file: Path, tokenizer: Tokenizer) -> list[int]:
    try:
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"--pin-prefix {file}: it has {size} bytes, at most {MAX_FILE_BYTES} are read")
        text = file.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"--pin-prefix {file}: {error.strerror or error}; name a file that can be read") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--pin-prefix {file}: it is not UTF-8 text") from None
    try:
        return chat_prefix(tokenizer, _messages(file, text)) if file.suffix == ".json" else text_prefix(tokenizer, text)
    except ParameterError as error:
        raise ConfigError(f"--pin-prefix {file}: {error}") from None


def _messages(file: Path, text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"--pin-prefix {file}: it is not JSON; text goes into a file with another ending") from None
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list) or not value or not all(_is_message(item) for item in value):
        raise ConfigError(
            f'--pin-prefix {file}: expected a list of messages such as [{{"role": "system", "content": "..."}}], '
            'or an object with such a list as "messages"'
        )
    return value


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value
