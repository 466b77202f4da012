"""What is pinned begins every prompt that begins with it; a file that cannot be used is named."""

import json
from pathlib import Path

import pytest

from octavo.config import ConfigError
from octavo.prefix_files import MAX_FILE_BYTES, chat_prefix, read_prefixes, text_prefix
from octavo.tokenizer import Tokenizer
from tests.server.tiny import TEMPLATE
from tests.tokenizer.small import byte_level_directory

SYSTEM = {"role": "system", "content": "You are a patient teacher of mathematics."}
# A template that folds the system prompt into the first question, and takes no conversation without one.
FOLDED = (
    "{% set s = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% if messages|selectattr('role', 'equalto', 'user')|list|length == 0 %}{{ raise_exception('no question') }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}<|im_start|>user\n{% if loop.index0 <= 1 %}{{ s }}\n\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% elif m['role'] == 'assistant' %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
)


def tokenizer(directory: Path, template: str | None = TEMPLATE) -> Tokenizer:
    return Tokenizer.from_directory(byte_level_directory(directory, chat_template=template))


def test_text_begins_like_a_prompt(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path)
    prefix = text_prefix(tok, "Once upon a time\n")
    assert prefix == tok.encode("Once upon a time\n")
    assert tok.encode("Once upon a time\nthere was")[: len(prefix)] == prefix


def test_special_tokens_at_the_end_are_no_part_of_a_prefix(tmp_path: Path) -> None:
    class Ending(Tokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            bare = super().encode(text, add_special_tokens=False)
            return [1, *bare, 2] if add_special_tokens else bare

    tok = Ending.from_directory(byte_level_directory(tmp_path, chat_template=TEMPLATE))
    assert text_prefix(tok, "one two") == [1, *tok.encode("one two", add_special_tokens=False)]


@pytest.mark.parametrize("template", [TEMPLATE, FOLDED])
@pytest.mark.parametrize(
    "messages",
    [[SYSTEM], [SYSTEM, {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]],
    ids=["system", "few-shot"],
)
def test_conversations_begin_with_their_messages(tmp_path: Path, template: str, messages: list[dict[str, str]]) -> None:
    tok = tokenizer(tmp_path, template)
    prefix = chat_prefix(tok, messages)
    assert SYSTEM["content"] in tok.decode(prefix, skip_special_tokens=False)
    for question in ("What is a prime?", "why", "3"):
        text = tok.apply_chat_template([*messages, {"role": "user", "content": question}])
        assert tok.encode(text, add_special_tokens=False)[: len(prefix)] == prefix


def test_files(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path / "model")
    text, chat, whole = tmp_path / "story.txt", tmp_path / "system.json", tmp_path / "request.json"
    text.write_text("Once upon a time")
    chat.write_text(json.dumps([SYSTEM]))
    whole.write_text(json.dumps({"model": "m", "messages": [SYSTEM]}))
    found = read_prefixes([str(text), str(chat), str(whole)], tok)
    assert found == [text_prefix(tok, "Once upon a time"), chat_prefix(tok, [SYSTEM]), chat_prefix(tok, [SYSTEM])]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gone.txt", None, "No such file"),
        ("bytes.txt", b"\xff\xfe", "not UTF-8"),
        ("large.txt", b"a" * (MAX_FILE_BYTES + 1), "at most"),
        ("broken.json", b"{", "not JSON"),
        ("deep.json", b"[" * 200_000, "not JSON"),
        ("number.json", b"3", "expected a list of messages"),
        ("empty.json", b"[]", "expected a list of messages"),
        ("roles.json", b'[{"content": "x"}]', "expected a list of messages"),
        ("roles.json", b'{"messages": [{"role": "user"}]}', "expected a list of messages"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_prefixes([str(file)], tokenizer(tmp_path / "model"))
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    file = tmp_path / "system.json"
    file.write_text(json.dumps([SYSTEM]))
    with pytest.raises(ConfigError, match="chat template"):
        read_prefixes([str(file)], tokenizer(tmp_path / "model", None))
