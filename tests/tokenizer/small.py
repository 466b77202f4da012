"""Small vocabularies made on the spot: a byte-level one trained on the varied texts, and its GGUF metadata."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from tests.tokenizer.texts import varied_texts

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
FIXTURES = Path(__file__).parent / "fixtures"


@cache
def byte_level_json() -> str:
    """A tokenizer.json of about 900 tokens with three special ones, and one added token that is not special."""
    tokenizer = LibraryTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(varied_texts(600, seed=7), trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False)])
    return str(tokenizer.to_str())


def byte_level_directory(path: Path, **config: Any) -> Path:
    """A directory in Hugging Face layout; ``config`` goes into tokenizer_config.json."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(byte_level_json())
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[1], "eos_token": SPECIAL[2]}
    (path / "tokenizer_config.json").write_text(json.dumps(names | config))
    return path


@cache
def byte_level_arrays() -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types and merges as GGUF stores them."""
    spec = json.loads(byte_level_json())
    vocabulary = dict(spec["model"]["vocab"]) | {token["content"]: token["id"] for token in spec["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    kinds = {token["content"]: 3 if token["special"] else 4 for token in spec["added_tokens"]}
    return tokens, [kinds.get(token, 1) for token in tokens], [" ".join(merge) for merge in spec["model"]["merges"]]


def byte_level_metadata(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    """GGUF metadata; ``changes`` are keys without their ``tokenizer.ggml.``, None to leave one out."""
    tokens, types, merges = byte_level_arrays()
    values = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges,
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    } | changes  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


@cache
def sentencepiece_fixture() -> dict[str, Any]:
    fixture: dict[str, Any] = json.loads((FIXTURES / "sentencepiece.json").read_text())
    return fixture


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of the fixture's vocabulary; ``changes`` as above."""
    fixture = sentencepiece_fixture()
    values = {
        "model": "llama", "tokens": fixture["tokens"], "scores": fixture["scores"], "token_type": fixture["token_type"],
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    } | changes  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
