"""Directories in Hugging Face layout, against transformers; decoding, bad words, and all that can be wrong with files."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config import ConfigError
from octavo.sampling_params import ParameterError
from octavo.token_bytes import Decoding, parse_decoder
from octavo.tokenizer import Tokenizer, open_tokenizer
from tests.tokenizer.small import SPECIAL, byte_level_directory, byte_level_metadata, sentencepiece_metadata
from tests.tokenizer.texts import varied_texts


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level_directory(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(directory))


def test_a_directory_encodes_and_decodes_like_transformers(tokenizer: Tokenizer, oracle: Any) -> None:
    texts = varied_texts(3000, seed=3)
    expected = oracle(texts)["input_ids"]
    assert tokenizer.encode_batch(texts) == expected
    for text, ids in zip(texts[:500], expected, strict=False):
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_gguf_and_directory_agree(tokenizer: Tokenizer) -> None:
    other = Tokenizer.from_gguf(byte_level_metadata("gpt-2"))
    texts = varied_texts(1500, seed=4)
    assert other.encode_batch(texts) == tokenizer.encode_batch(texts)


@settings(max_examples=300)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_decode_like_transformers(tokenizer: Tokenizer, oracle: Any, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    expected = oracle.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
    assert tokenizer.decode(ids, skip_special_tokens=skip, spaces_between_special_tokens=False) == expected


def test_ids_outside_the_vocabulary_decode_to_nothing(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab")
    for strange in (-1, tokenizer.vocab_size, 2**31, 2**40):
        assert tokenizer.decode([strange, *ids, strange]) == "ab"
        assert tokenizer.token_text(strange) == ""
        assert not tokenizer.is_special(strange)


def test_single_tokens(tokenizer: Tokenizer) -> None:
    for token_id in range(tokenizer.vocab_size):
        assert tokenizer.token_bytes(token_id).decode("utf-8", "replace") == tokenizer.token_text(token_id)
    (space_a,) = tokenizer.encode(" a")
    assert tokenizer.token_text(space_a) == " a"
    assert tokenizer.token_text(2) == "<|im_end|>"
    first_byte = tokenizer.encode("\U0010abcd")[0]
    assert tokenizer.token_bytes(first_byte) == b"\xf4"
    assert tokenizer.token_text(first_byte) == "\ufffd"


def test_sentencepiece_tokens_keep_their_space() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    ids = tokenizer.encode("the the", add_special_tokens=False)
    assert "".join(map(tokenizer.token_text, ids)) == " the the"
    assert tokenizer.decode(ids) == "the the"


def test_text_that_is_not_unicode_is_refused(tokenizer: Tokenizer) -> None:
    for call in (lambda: tokenizer.encode("a\ud800"), lambda: tokenizer.encode_batch(["a", "\udfff"])):
        with pytest.raises(ParameterError) as caught:
            call()
        assert caught.value.param == "prompt"


def test_bad_words_come_bare_and_after_a_space(tokenizer: Tokenizer) -> None:
    (spaced,) = tokenizer.encode(" a")
    (bare,) = tokenizer.encode("a")
    assert set(tokenizer.bad_words_ids(["a"])) == {(spaced,), (bare,)}
    assert set(tokenizer.bad_words_ids([" a"])) == {(spaced,), (bare,)}
    for sequences in (tokenizer.bad_words_ids(["New York!", "é 世界"]), tokenizer.bad_words_ids([" "])):
        assert sequences
        assert all(sequences)
    texts = {tokenizer.decode(ids) for ids in tokenizer.bad_words_ids(["world!!!"])}
    assert texts == {"world!!!", " world!!!"}
    assert tokenizer.bad_words_ids([]) == ()


def test_a_spaced_form_that_ends_in_the_bare_one_is_not_listed_twice() -> None:
    tokens, merges = [chr(0x120), "a", "b", "ab"], ["a b"]
    plain = Tokenizer.from_gguf(
        byte_level_metadata("gpt-2", tokens=tokens, token_type=None, merges=merges, bos_token_id=None, eos_token_id=None)
    )
    assert plain.encode(" ab") == [0, 3]
    assert plain.bad_words_ids(["ab"]) == ((3,),)


def test_tokenizer_json_alone_decides_what_is_put_around_a_text(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = byte_level_directory(tmp_path)
    spec = json.loads((path / "tokenizer.json").read_text())
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    spec["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (path / "tokenizer.json").write_text(json.dumps(spec))
    assert Tokenizer.from_directory(path).encode("")[0] == 1
    assert len(Tokenizer.from_directory(path).encode("a b c d e f g")) > 3, "serving never truncates silently"
    for flag in (True, False):
        byte_level_directory(tmp_path / str(flag), add_bos_token=flag)
        (tmp_path / str(flag) / "tokenizer.json").write_text(json.dumps(spec | {"truncation": None}))
        expected = AutoTokenizer.from_pretrained(str(tmp_path / str(flag)))("a b")["input_ids"]
        assert Tokenizer.from_directory(tmp_path / str(flag)).encode("a b") == expected


def test_tokens_that_only_the_configuration_names(tmp_path: Path) -> None:
    free = Tokenizer.from_directory(byte_level_directory(tmp_path / "plain")).vocab_size
    entry = {"content": "<extra>", "special": True}
    path = byte_level_directory(tmp_path / "more", added_tokens_decoder={str(free): entry})
    tokenizer = Tokenizer.from_directory(path)
    assert tokenizer.encode("<extra>") == [free]
    assert tokenizer.is_special(free)
    path = byte_level_directory(tmp_path / "wrong", added_tokens_decoder={"7": entry})
    with pytest.raises(ConfigError, match="<extra>"):
        Tokenizer.from_directory(path)


def _without_added_tokens(path: Path, **config: Any) -> Path:
    """The three special tokens are plain entries of the vocabulary, and whatever else was added is gone."""
    byte_level_directory(path, **config)
    spec = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(spec | {"added_tokens": []}))
    return path


_END = {"content": "<|endoftext|>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False, "special": True}


@pytest.mark.parametrize(
    ("config", "special"),
    [
        ({}, {1, 2}),
        ({"pad_token": {"__type": "AddedToken", **_END}}, {0, 1, 2}),
        ({"additional_special_tokens": ["<|endoftext|>", "<nowhere>"]}, {0, 1, 2}),
        ({"extra_special_tokens": [{"__type": "AddedToken", **_END}]}, {0, 1, 2}),
        ({"extra_special_tokens": {"image_token": "<|endoftext|>"}}, {0, 1, 2}),
        ({"added_tokens_decoder": {"0": _END}}, {0, 1, 2}),
        ({"added_tokens_decoder": {"0": _END}, "pad_token": "<|endoftext|>"}, {0, 1, 2}),
        ({"added_tokens_decoder": {"0": {**_END, "special": False}}, "unk_token": "<nowhere>", "sep_token": 5}, {1, 2}),
    ],
)
def test_tokens_that_only_the_configuration_calls_special(tmp_path: Path, config: dict[str, Any], special: set[int]) -> None:
    from transformers import AutoTokenizer

    path = _without_added_tokens(tmp_path, **config)
    tokenizer = Tokenizer.from_directory(path)
    assert tokenizer.special_token_ids == special
    assert tokenizer.vocab_size == len(json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]), "no id is made up"
    text = "<|im_start|>user\nhi<|im_end|> <|endoftext|>x"
    ids = tokenizer.encode(text)
    assert special.issubset(ids)
    assert tokenizer.decode(range(3)) == "".join(text for i, text in enumerate(SPECIAL) if i not in special)
    if "<nowhere>" not in str(config):  # transformers gives it an id
        oracle = AutoTokenizer.from_pretrained(str(path))
        assert ids == oracle(text)["input_ids"]
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == oracle.decode(ids, skip_special_tokens=skip)


def test_an_added_token_becomes_special_where_the_configuration_names_it(tmp_path: Path) -> None:
    path = byte_level_directory(tmp_path, pad_token="<tool call>")
    plain, named = Tokenizer.from_directory(byte_level_directory(tmp_path / "plain")), Tokenizer.from_directory(path)
    (marked,) = named.special_token_ids - plain.special_token_ids
    assert named.token_text(marked) == "<tool call>"
    text = "a <tool call> b<|im_end|>"
    assert named.encode(text) == plain.encode(text)
    assert (plain.decode(named.encode(text)), named.decode(named.encode(text))) == ("a <tool call> b", "a  b")
    assert named.vocab_size == plain.vocab_size


def test_special_tokens_map_names_what_the_configuration_does_not(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    path = _without_added_tokens(tmp_path, bos_token=None, eos_token=None, chat_template=template)
    names = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "additional_special_tokens": ["<|endoftext|>"],
    }
    (path / "special_tokens_map.json").write_text(json.dumps(names))
    tokenizer, messages = Tokenizer.from_directory(path), [{"role": "user", "content": "hi"}]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.special_token_ids == {0, 1, 2}
    shown = tokenizer.apply_chat_template(messages)
    assert shown == "<|im_start|>hi<|im_end|>"
    assert shown == AutoTokenizer.from_pretrained(str(path)).apply_chat_template(messages, tokenize=False)
    _without_added_tokens(tmp_path, eos_token="<|endoftext|>", chat_template=template)
    assert Tokenizer.from_directory(path).eos_token_id == 0, "tokenizer_config.json goes before the map"


def test_a_tokenizer_json_may_be_named_itself(directory: Path, tokenizer: Tokenizer) -> None:
    assert Tokenizer.from_directory(directory / "tokenizer.json").encode("a b") == tokenizer.encode("a b")


def test_open_tokenizer_takes_the_override_then_metadata_then_directory(directory: Path, tmp_path: Path) -> None:
    gguf = SimpleNamespace(path=tmp_path / "m.gguf", tokenizer_dir=None, gguf_metadata=sentencepiece_metadata())
    assert open_tokenizer(gguf).encode("a")[0] == 1
    assert open_tokenizer(gguf, override=str(directory)).encode("") == []
    assert open_tokenizer(SimpleNamespace(path=directory, tokenizer_dir=directory, gguf_metadata=None)).encode("") == []
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        open_tokenizer(SimpleNamespace(path=tmp_path, tokenizer_dir=None, gguf_metadata=None))


def _write(path: Path, name: str, text: str) -> Path:
    byte_level_directory(path)
    (path / name).write_text(text)
    return path


def test_what_is_wrong_with_files_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.model").write_bytes(b"")
    cases = [
        (tmp_path / "nowhere", "tokenizer.json is missing"),
        (tmp_path / "empty", "tokenizer.json is missing"),
        (tmp_path / "model", "it has tokenizer.model"),
        (_write(tmp_path / "a", "tokenizer.json", "{"), "tokenizer.json is broken"),
        (_write(tmp_path / "b", "tokenizer.json", "{}"), "tokenizer.json is broken"),
        (_write(tmp_path / "c", "tokenizer_config.json", "{"), "tokenizer_config.json is broken"),
        (_write(tmp_path / "d", "tokenizer_config.json", "[]"), "tokenizer_config.json is broken"),
        (_write(tmp_path / "h", "special_tokens_map.json", "{"), "special_tokens_map.json is broken"),
        (_write(tmp_path / "i", "special_tokens_map.json", "[]"), "special_tokens_map.json is broken"),
        (_write(tmp_path / "e", "tokenizer_config.json", '{"chat_template": 5}'), "chat_template"),
        (_write(tmp_path / "f", "tokenizer_config.json", '{"chat_template": "{% if %}"}'), "does not compile at line 1"),
        (_write(tmp_path / "g", "chat_template.jinja", "\n{{ x | nonsense }}"), "does not compile at line 2"),
    ]
    for path, complaint in cases:
        with pytest.raises(ConfigError) as caught:
            Tokenizer.from_directory(path)
        assert complaint in str(caught.value)
        assert "\n" not in str(caught.value)


def test_templates_of_a_directory_and_of_the_operator(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    path = byte_level_directory(tmp_path / "m", chat_template=named)
    assert Tokenizer.from_directory(path).apply_chat_template(messages) == "D"
    assert Tokenizer.from_directory(path).apply_chat_template(messages, tools=[{"type": "function"}]) == "T"
    (path / "chat_template.json").write_text('{"chat_template": "J"}')
    assert Tokenizer.from_directory(path).apply_chat_template(messages) == "J"
    (path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    assert Tokenizer.from_directory(path).apply_chat_template(messages) == "<|im_start|><|im_end|>"
    mine = tmp_path / "mine.jinja"
    with pytest.raises(ConfigError, match=r"mine\.jinja"):
        Tokenizer.from_directory(path, chat_template=mine)
    mine.write_text("mine")
    assert Tokenizer.from_directory(path, chat_template=mine).apply_chat_template(messages) == "mine"
    assert Tokenizer.from_gguf(byte_level_metadata(), chat_template=mine).apply_chat_template(messages) == "mine"
    with pytest.raises(ParameterError, match="no chat template"):
        Tokenizer.from_gguf(byte_level_metadata()).apply_chat_template(messages)


def test_decoders_of_known_kinds() -> None:
    llama = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    expected = Decoding(byte_fallback=True, replacements=(("\u2581", " "),), lead=1)
    assert parse_decoder(json.dumps(llama), source="x") == expected
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": False}
    assert parse_decoder(json.dumps(metaspace), source="x") == Decoding(replacements=(("\u2581", " "),))
    assert parse_decoder(json.dumps(metaspace | {"prepend_scheme": "first"}), source="x").lead == 1
    for unknown in (None, "null", '{"type": "WordPiece"}', '{"type": "Strip", "content": " ", "start": 0, "stop": 1}'):
        with pytest.raises(ConfigError, match=r"file\.json"):
            parse_decoder(unknown, source="file.json")
