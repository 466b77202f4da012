"""Which bytes every token stands for, so that text is nothing but the tokens' bytes joined and read as UTF-8.

Owns the two ways in which vocabularies of large language models write bytes: the byte-level alphabet of GPT-2 and the
``<0xNN>`` byte fallback of SentencePiece. Knows nothing of encoding. The invariant: a token's bytes depend on the token alone,
so decoding is concatenation and can go on token by token, without ever looking at the whole output again.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.config import ConfigError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def byte_level_alphabet() -> dict[str, int]:
    """The 256 characters that stand for bytes in byte-level vocabularies (Radford et al. 2019): printable Latin-1 characters
    stand for themselves, the other bytes for the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a vocabulary's pieces become bytes.

    ``byte_level``: each character of a piece stands for one byte. ``byte_fallback``: a piece ``<0xNN>`` is that byte.
    ``replacements`` are made in every piece, in order (SentencePiece's ``▁`` for a space). ``lead`` is how many times
    ``lead_character`` is removed from the very beginning of a text, where encoding had put it.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    lead: int = 0
    lead_character: str = " "


def sentencepiece_decoding(*, space_prefix: bool) -> Decoding:
    """The decoding of SentencePiece vocabularies: ``▁`` is a space, and the first one may be the encoder's own."""
    return Decoding(byte_fallback=True, replacements=(("\u2581", " "),), lead=int(space_prefix))


def parse_decoder(state: bytes | str | None, *, source: str) -> Decoding:
    """Read the ``decoder`` section of a tokenizer.json. Raises ConfigError for kinds that no served model family uses."""
    spec = json.loads(state) if state else None
    if not isinstance(spec, dict):
        raise ConfigError(f"{source}: the tokenizer has no decoder; use a byte-level or SentencePiece tokenizer.")
    steps = spec.get("decoders", []) if spec.get("type") == "Sequence" else [spec]
    fields: dict[str, Any] = {}
    for step in steps:
        fields |= _decoder_step(step, fields, source)
    return Decoding(**fields)


def _decoder_step(step: Mapping[str, Any], so_far: Mapping[str, Any], source: str) -> dict[str, Any]:
    kind = step.get("type")
    replacements = so_far.get("replacements", ())
    if kind == "ByteLevel":
        return {"byte_level": True}
    if kind == "ByteFallback":
        return {"byte_fallback": True}
    if kind == "Fuse":
        return {}
    if kind == "Replace" and "String" in step.get("pattern", {}):
        return {"replacements": (*replacements, (step["pattern"]["String"], step["content"]))}
    if kind == "Strip" and not step.get("stop"):
        return {"lead": step.get("start", 0), "lead_character": step.get("content", " ")}
    if kind == "Metaspace":
        prefixed = step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True)
        return {"replacements": (*replacements, (step.get("replacement", "\u2581"), " ")), "lead": int(prefixed)}
    raise ConfigError(f"{source}: tokenizer decoder {kind!r} is not supported; use a byte-level or SentencePiece tokenizer.")


class TokenBytes:
    """Token id -> bytes, worked out once for each id that comes up.

    ``piece_of`` gives a vocabulary entry or None; ``added`` maps the ids of added tokens, which stand for themselves literally,
    to their text. An id outside the vocabulary (models pad theirs) stands for no bytes at all.
    """

    def __init__(self, decoding: Decoding, piece_of: Callable[[int], str | None], added: Mapping[int, str]) -> None:
        self.decoding = decoding
        self._piece_of = piece_of
        self._alphabet = byte_level_alphabet() if decoding.byte_level else {}
        self._bytes = {token_id: text.encode() for token_id, text in added.items()}

    def __call__(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        piece = self._piece_of(token_id) if 0 <= token_id < 2**32 else None
        if piece is None:
            return b""
        value = self._bytes[token_id] = self._decode_piece(piece)
        return value

    def _decode_piece(self, piece: str) -> bytes:
        if self.decoding.byte_fallback and (match := _BYTE_TOKEN.match(piece)):
            return bytes.fromhex(match[1])
        for old, new in self.decoding.replacements:
            piece = piece.replace(old, new)
        if self.decoding.byte_level:
            try:
                return bytes(map(self._alphabet.__getitem__, piece))
            except KeyError:  # not written in the alphabet, so the piece means itself
                return piece.encode()
        return piece.encode()
