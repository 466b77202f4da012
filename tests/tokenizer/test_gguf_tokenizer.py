"""GGUF vocabularies against the tokenizers they came from: SmolLM2's own, SentencePiece, and hand-checked splits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import ConfigError
from octavo.tokenizer import Tokenizer
from octavo.weights.gguf_file import GgufFile
from tests.tokenizer.small import byte_level_metadata, sentencepiece_fixture, sentencepiece_metadata
from tests.tokenizer.texts import varied_texts


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile(smollm2_path).metadata, source=str(smollm2_path))


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2_path: Path) -> Any:
    """transformers' reading of the same file, with the pre-tokenizer that SmolLM2 publishes (transformers drops the digits)."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits
    from tokenizers.pre_tokenizers import Sequence as InSequence
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    splits = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    oracle.backend_tokenizer.pre_tokenizer = InSequence(splits)
    return oracle


def test_smollm2_encodes_and_decodes_like_its_own_tokenizer(smollm2: Tokenizer, smollm2_oracle: Any) -> None:
    texts = varied_texts(4000, seed=11)
    expected = smollm2_oracle(texts, add_special_tokens=False)["input_ids"]
    assert smollm2.encode_batch(texts) == expected
    for text, ids in zip(texts, expected, strict=True):
        assert smollm2.decode(ids, skip_special_tokens=False) == text
        assert smollm2.decode(ids) == smollm2_oracle.decode(ids, skip_special_tokens=True)


def test_smollm2_decodes_any_ids_like_transformers(smollm2: Tokenizer, smollm2_oracle: Any) -> None:
    chosen = np.random.default_rng(5)
    for _ in range(1500):
        ids = chosen.integers(0, smollm2.vocab_size, chosen.integers(1, 30)).tolist()
        for skip in (True, False):
            assert smollm2.decode(ids, skip_special_tokens=skip) == smollm2_oracle.decode(ids, skip_special_tokens=skip)


def test_smollm2_facts_and_template(smollm2: Tokenizer, smollm2_oracle: Any) -> None:
    assert (smollm2.vocab_size, smollm2.bos_token_id, smollm2.eos_token_id) == (49152, 1, 2)
    assert smollm2.encode("a") == smollm2.encode("a", add_special_tokens=False)
    assert all(smollm2.is_special(i) for i in range(17))
    assert not smollm2.is_special(17)
    for messages in (
        [{"role": "user", "content": "Hi  there\n"}],
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}],
    ):
        for prompt in (True, False):
            expected = smollm2_oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert smollm2.apply_chat_template(messages, add_generation_prompt=prompt) == expected


def test_sentencepiece_vocabulary_encodes_like_sentencepiece() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    for text, ids, decoded in sentencepiece_fixture()["cases"]:
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.encode(text) == [1, *ids]
        assert tokenizer.decode(ids) == decoded
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_scores_count_and_not_the_order_of_the_vocabulary() -> None:
    fixture = sentencepiece_fixture()
    order = [*range(260), *np.random.default_rng(0).permutation(range(260, len(fixture["tokens"]))).tolist()]
    shuffled = {key: [fixture[key][i] for i in order] for key in ("tokens", "scores", "token_type")}
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(**shuffled))
    for text, ids, _ in fixture["cases"]:
        assert [order[i] for i in tokenizer.encode(text, add_special_tokens=False)] == ids


def test_sentencepiece_options() -> None:
    plain = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=False, add_bos_token=False, add_eos_token=True))
    ids = plain.encode(" a b")
    assert ids[-1] == 2
    assert plain.decode(ids) == " a b"
    assert plain.decode(plain.encode("a")) == "a"
    prefixed = Tokenizer.from_gguf(sentencepiece_metadata(scores=np.array(sentencepiece_fixture()["scores"], np.float32)))
    assert prefixed.decode(prefixed.encode("a")) == "a"
    # An encoder puts a space before every stretch of text between added tokens, as these models' tokenizer.json do.
    assert prefixed.decode(prefixed.encode("a<tool>b"), skip_special_tokens=False) == "<s> a<tool> b"


def test_a_sentencepiece_character_outside_the_vocabulary_becomes_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    ids = tokenizer.encode("\U0010abcd", add_special_tokens=False)
    assert [tokenizer.token_bytes(i) for i in ids[-4:]] == [b"\xf4", b"\x8a", b"\xaf", b"\x8d"]
    assert tokenizer.decode(ids) == "\U0010abcd"
    assert tokenizer.decode(ids[:-1]) == "\ufffd"


SPLITS = [
    ("smollm", "x12 3  45\n\n y's", ["x", "1", "2", " ", "3", "  ", "4", "5", "\n\n", " y", "'s"]),
    ("gpt-2", "x12 3  45\n\n y's", ["x", "12", " 3", " ", " 45", "\n\n", " y", "'s"]),
    ("llama-bpe", "x12345 3\n\n y'S.\n!a", ["x", "123", "45", " ", "3", "\n\n", " y", "'S", ".\n", "!a"]),
    ("qwen2", "x123 4\n\n y'S.\n!a", ["x", "1", "2", "3", " ", "4", "\n\n", " y", "'S", ".\n", "!a"]),
    ("stablelm2", "x123", ["x", "1", "2", "3"]),
    ("tekken", "camelCase12 a/\n", ["camel", "Case", "1", "2", " a", "/\n"]),
    ("gpt-4o", "camelCase1234 it's a/\n", ["camel", "Case", "123", "4", " it's", " a", "/\n"]),
    ("default", "a=b 12345", ["a", "=", "b", " ", "123", "45"]),
]


@pytest.mark.parametrize(("pre", "text", "pieces"), SPLITS, ids=[case[0] for case in SPLITS])
def test_pre_tokenizers_split_where_they_should(pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(pre))
    splitter = tokenizer._tokenizer.pre_tokenizer
    assert [text[begin:end] for _, (begin, end) in splitter.pre_tokenize_str(text)] == pieces


def test_whole_words_before_merges_and_normal_forms() -> None:
    tokens, merges = ["a", "b", "c", "ab", "bc", "abc"], ["b c", "a b", "ab c"]
    small = {"tokens": tokens, "token_type": None, "merges": merges, "bos_token_id": None, "eos_token_id": None}
    assert Tokenizer.from_gguf(byte_level_metadata("gpt-2", **small)).encode("abc") == [0, 4]
    assert Tokenizer.from_gguf(byte_level_metadata("llama-bpe", **small)).encode("abc") == [5]
    composed, decomposed = (Tokenizer.from_gguf(byte_level_metadata(pre)).encode("e\u0301") for pre in ("qwen2", "gpt-2"))
    assert composed != decomposed


def test_bos_and_eos_follow_the_metadata() -> None:
    assert Tokenizer.from_gguf(byte_level_metadata("llama-bpe")).encode("")[:1] == [1]
    assert Tokenizer.from_gguf(byte_level_metadata("llama-bpe", add_bos_token=False)).encode("") == []
    both = Tokenizer.from_gguf(byte_level_metadata(add_bos_token=True, add_eos_token=True))
    assert both.encode("") == [1, 2]
    assert both.encode("", add_special_tokens=False) == []


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata())
    ids = tokenizer.encode("x<tool call>y<|im_end|>")
    assert [tokenizer.is_special(i) for i in ids] == [False, False, False, True]
    assert tokenizer.decode(ids) == "x<tool call>y"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "x<tool call>y<|im_end|>"


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({}, "no tokenizer.ggml.model"),
        (byte_level_metadata(model="bert"), "'bert'"),
        (byte_level_metadata("nobody-knows"), "'nobody-knows'"),
        (byte_level_metadata(merges=None), "merges"),
        (byte_level_metadata(merges=["ab"]), "merges"),
        (byte_level_metadata(merges=["zz zz"]), "merges"),
        (byte_level_metadata(tokens=None), "tokens"),
        (byte_level_metadata(tokens=[1, 2]), "tokens"),
        (byte_level_metadata(tokens="abc"), "tokens"),
        (byte_level_metadata(token_type=[1]), "token_type has 1 entries"),
        (byte_level_metadata(bos_token_id=10**6), "bos_token_id 1000000"),
        (sentencepiece_metadata(scores=None), "scores"),
        (sentencepiece_metadata(scores=[0.0]), "scores has 1 entries"),
    ],
)
def test_broken_metadata_are_refused_in_one_line(metadata: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.gguf") as caught:
        Tokenizer.from_gguf(metadata, source="model.gguf")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
