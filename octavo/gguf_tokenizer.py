"""Builds a tokenizer from GGUF metadata (``tokenizer.ggml.*``): byte-level BPE and SentencePiece vocabularies.

Owns the table of pre-tokenizers, by the names that GGUF files give them, and the merges of SentencePiece vocabularies, which
GGUF stores as scores. Knows nothing of reading the file. The invariant: ids come out as the model's original tokenizer
gives them; a kind that cannot be reproduced exactly is refused instead of approximated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.config import ConfigError
from octavo.token_bytes import Decoding, sentencepiece_decoding

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD_HEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = rf"{_WORD_HEAD}{_UPPER}*{_LOWER}+|{_WORD_HEAD}{_UPPER}+{_LOWER}*|\p{{N}}{_TAIL}"
_GPT4O = rf"{_WORD_HEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD_HEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}{_TAIL}"


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """Expressions that split a text one after the other, matches and gaps alike becoming pieces. ``whole_words``: a piece that
    is itself in the vocabulary is that token, whatever its merges say. ``add_bos`` when the file does not say."""

    splits: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_DIGITS_GPT2 = _PreTokenizer((r"\p{N}", _GPT2))
_PLAIN_GPT2 = _PreTokenizer((_GPT2,))
_LLAMA_BPE = _PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN = _PreTokenizer((_QWEN2,), nfc=True)

_PRE_TOKENIZERS: dict[str, _PreTokenizer] = {
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,
    "command-r": _DIGITS_GPT2,
    "codeshell": _DIGITS_GPT2,
    "exaone": _DIGITS_GPT2,
    "minerva-7b": _DIGITS_GPT2,
    "gpt-2": _PLAIN_GPT2,
    "phi-2": _PLAIN_GPT2,
    "mpt": _PLAIN_GPT2,
    "olmo": _PLAIN_GPT2,
    "jais": _PLAIN_GPT2,
    "trillion": _PLAIN_GPT2,
    "granite-docling": _PLAIN_GPT2,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "falcon3": _LLAMA_BPE,
    "pixtral": _LLAMA_BPE,
    "lfm2": _LLAMA_BPE,
    "smaug-bpe": _PreTokenizer((_LLAMA3,)),
    "dbrx": _PreTokenizer((_LLAMA3,)),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "megrez": _PreTokenizer((_QWEN2,)),
    "stablelm2": _PreTokenizer((_QWEN2,)),
    "hunyuan": _PreTokenizer((_QWEN2,)),
    "tekken": _PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    "gpt-4o": _PreTokenizer((_GPT4O,)),
    "llama4": _PreTokenizer((_GPT4O,)),
    "default": _PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The checked arrays of the metadata. ``types`` and ``scores`` run beside ``tokens``."""

    tokens: list[str]
    types: list[int]
    scores: list[float]
    source: str


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """What the metadata describe: a ``tokenizers.Tokenizer`` that adds nothing around a text yet, how it decodes, the named
    special tokens, and which of them belong around every text."""

    library_tokenizer: Any
    decoding: Decoding
    special_tokens: dict[str, str]
    add_bos: bool
    add_eos: bool


def build(metadata: Mapping[str, Any], *, source: str) -> GgufVocabulary:
    """Raises ConfigError, one line that begins with ``source``, for what is missing, broken or of an unknown kind."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        wanted = f"tokenizer.ggml.model is {kind!r}" if kind else "there is no tokenizer.ggml.model"
        raise ConfigError(
            f"{source}: {wanted}; octavo reads gpt2 and llama vocabularies. Use --tokenizer with a tokenizer.json."
        )
    vocabulary = _read_vocabulary(metadata, source, with_scores=kind == "llama")
    make = _build_byte_level if kind == "gpt2" else _build_sentencepiece
    library_tokenizer, decoding, adds_bos = make(metadata, vocabulary)
    _mark_added_tokens(library_tokenizer, vocabulary)
    return GgufVocabulary(
        library_tokenizer,
        decoding,
        _special_tokens(metadata, vocabulary),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    )


def _read_vocabulary(metadata: Mapping[str, Any], source: str, *, with_scores: bool) -> _Vocabulary:
    tokens = _array(metadata, "tokens", source)
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise _broken(source, "tokenizer.ggml.tokens is missing or not a list of texts")
    types = _array(metadata, "token_type", source) or [_NORMAL] * len(tokens)
    scores = _array(metadata, "scores", source)
    if with_scores and not scores:
        raise _broken(source, "tokenizer.ggml.scores is missing, which a SentencePiece vocabulary needs")
    for name, values in (("token_type", types), ("scores", scores)):
        if values and len(values) != len(tokens):
            raise _broken(source, f"tokenizer.ggml.{name} has {len(values)} entries for {len(tokens)} tokens")
    return _Vocabulary(tokens, types, scores, source)


def _broken(source: str, what: str) -> ConfigError:
    return ConfigError(f"{source}: {what}; the file is broken, download it again.")


def _array(metadata: Mapping[str, Any], name: str, source: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return []
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _broken(source, f"tokenizer.ggml.{name} is not an array")
    return list(value)


def _build_byte_level(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[Any, Decoding, bool]:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import BPE
    from tokenizers.normalizers import NFC
    from tokenizers.pre_tokenizers import ByteLevel, Split
    from tokenizers.pre_tokenizers import Sequence as InSequence

    source = vocabulary.source
    name = metadata.get("tokenizer.ggml.pre", "default")
    rules = _PRE_TOKENIZERS.get(name)
    if rules is None:
        raise ConfigError(
            f"{source}: pre-tokenizer {name!r} is unknown to octavo; use --tokenizer with the model's tokenizer.json."
        )
    merges = [(left, right) for left, _, right in (str(m).partition(" ") for m in _array(metadata, "merges", source))]
    if not merges or not all(left and right for left, right in merges):
        raise _broken(source, "tokenizer.ggml.merges is missing or has an entry that is not a pair")
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    try:
        tokenizer = Tokenizer(BPE(ids, merges, ignore_merges=rules.whole_words))
    except Exception as error:  # the library raises bare Exception
        raise _broken(source, f"tokenizer.ggml.merges does not fit the vocabulary ({error})") from None
    splits = [Split(Regex(expression), "isolated") for expression in rules.splits]
    tokenizer.pre_tokenizer = InSequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    if rules.nfc:
        tokenizer.normalizer = NFC()
    return tokenizer, Decoding(byte_level=True), rules.add_bos


def _build_sentencepiece(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[Any, Decoding, bool]:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.normalizers import Prepend, Replace
    from tokenizers.normalizers import Sequence as InSequence

    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    unk_token = vocabulary.tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(vocabulary.tokens) else None
    byte_fallback = all(f"<0x{byte:02X}>" in ids for byte in range(256))
    merges = _merges_from_scores(vocabulary, ids)
    tokenizer = Tokenizer(BPE(ids, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=byte_fallback))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = Replace(" ", "\u2581")
    tokenizer.normalizer = InSequence([Prepend("\u2581"), spaces] if prefix else [spaces])
    return tokenizer, sentencepiece_decoding(space_prefix=prefix), True


def _merges_from_scores(vocabulary: _Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the two neighbours whose union has the best score. The same as merges: every way to part a piece into
    two pieces, the best piece's first. Pieces that never come out of merging (control, byte, unused) take no part."""
    normal = {t for t, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == _NORMAL}
    scored: list[tuple[float, tuple[str, str]]] = []
    for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True):
        if token in normal and len(token) > 1:
            parts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in normal and token[i:] in normal]
            parts.sort(key=lambda part: (ids[part[0]], ids[part[1]]))
            scored.extend((-score, part) for part in parts)
    scored.sort(key=lambda entry: entry[0])
    return [part for _, part in scored]


def _mark_added_tokens(library_tokenizer: Any, vocabulary: _Vocabulary) -> None:
    """Control and user-defined tokens are found in text before anything else; the first kind is left out of output text."""
    from tokenizers import AddedToken

    by_type: dict[int, list[Any]] = {_CONTROL: [], _UNKNOWN: [], _USER_DEFINED: []}
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in by_type and token:
            by_type[kind].append(AddedToken(token, special=kind != _USER_DEFINED, normalized=False))
    library_tokenizer.add_special_tokens(by_type[_CONTROL] + by_type[_UNKNOWN])
    library_tokenizer.add_tokens(by_type[_USER_DEFINED])


def _special_tokens(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> dict[str, str]:
    named = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is None:
            continue
        if not isinstance(token_id, int) or not 0 <= token_id < len(vocabulary.tokens):
            raise _broken(vocabulary.source, f"tokenizer.ggml.{key}_token_id {token_id} is outside the vocabulary")
        named[name] = vocabulary.tokens[token_id]
    return named
