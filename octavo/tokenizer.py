"""Text to token ids and back, and messages to a prompt: one ``Tokenizer`` for a model, whatever file it came from.

Owns reading tokenizer.json with its companions and the rules of decoding; GGUF vocabularies are built in ``gguf_tokenizer``,
templates rendered in ``chat_template``, output decoded as it grows in ``detokenizer``. Knows nothing of models and requests.
The invariant: ``decode(a + b)`` is ``decode(a) + decode(b)`` wherever the cut is not inside a character. The ``tokenizers``
library is imported when the first tokenizer is built, so that importing octavo stays fast.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from octavo.config import ConfigError, one_line
from octavo.sampling_params import ParameterError
from octavo.token_bytes import Decoding, TokenBytes, parse_decoder

if TYPE_CHECKING:
    from octavo.chat_template import ChatTemplate

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """A model's vocabulary with its encoder, its decoder and its chat template.

    ``library_tokenizer`` is a ``tokenizers.Tokenizer``. ``special_tokens`` are the named ones (``bos_token``, ``eos_token``
    and so on) as text; chat templates see them. Instances never change after construction; threads can share them.
    """

    def __init__(
        self,
        library_tokenizer: Any,
        decoding: Decoding,
        *,
        special_tokens: Mapping[str, str],
        chat_template: "ChatTemplate | None" = None,
    ) -> None:
        self._tokenizer = library_tokenizer
        added = library_tokenizer.get_added_tokens_decoder()
        self.token_bytes = TokenBytes(decoding, library_tokenizer.id_to_token, {i: token.content for i, token in added.items()})
        self.decoding = decoding
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        self.vocab_size: int = library_tokenizer.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")

    @classmethod
    def from_directory(cls, path: str | Path, *, chat_template: str | Path | None = None) -> "Tokenizer":
        """Read a directory in Hugging Face layout, or a tokenizer.json with its companions beside it.

        tokenizer.json alone decides what is put around a text (as in transformers, ``add_bos_token`` beside it says nothing).
        ``chat_template`` is a template file of the operator's that replaces the model's own. Raises ConfigError, one line that
        names the file, when something is missing or broken.
        """
        path = Path(path)
        file = path if path.suffix == ".json" else path / "tokenizer.json"
        config = _read_companions(file.parent)
        library_tokenizer = _load_tokenizer_json(file)
        _add_configured_tokens(library_tokenizer, config)
        _mark_special_tokens(library_tokenizer, config)
        decoder = library_tokenizer.decoder
        decoding = parse_decoder(decoder.__getstate__() if decoder is not None else None, source=str(file))
        template = _operator_template(chat_template) or _directory_template(file.parent, config)
        return cls(library_tokenizer, decoding, special_tokens=_named_tokens(config), chat_template=template)

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], *, source: str = "the GGUF file", chat_template: str | Path | None = None
    ) -> "Tokenizer":
        """Build from the ``tokenizer.*`` metadata of a GGUF file, named ``source`` in errors. Raises ConfigError."""
        from octavo.chat_template import ChatTemplate
        from octavo.gguf_tokenizer import build

        built = build(metadata, source=source)
        named = built.special_tokens
        bos, eos = (named.get("bos_token") if built.add_bos else None), (named.get("eos_token") if built.add_eos else None)
        _set_bos_eos(built.library_tokenizer, bos=bos, eos=eos)
        template = _operator_template(chat_template)
        own = metadata.get("tokenizer.chat_template")
        if template is None and isinstance(own, str) and own:
            template = ChatTemplate.compile({"default": own}, source=f"{source} (tokenizer.chat_template)")
        return cls(built.library_tokenizer, built.decoding, special_tokens=named, chat_template=template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Text -> ids. ``add_special_tokens`` puts bos (and eos) around it where the model wants them; special tokens written
        in the text become their ids either way. Raises ParameterError for text that is not valid Unicode."""
        ids: list[int] = self._tokenizer.encode(_valid(text), add_special_tokens=add_special_tokens).ids
        return ids

    def offsets(self, text: str, *, add_special_tokens: bool = True) -> list[tuple[int, int]]:
        """For each token of ``encode`` the characters of ``text`` that it stands for, from and up to; (0, 0) for what was put
        around the text. Raises ParameterError for text that is not valid Unicode."""
        found: list[tuple[int, int]] = self._tokenizer.encode(_valid(text), add_special_tokens=add_special_tokens).offsets
        return found

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Several texts -> ids of each, on several threads."""
        if len(texts) == 1:  # the library's thread pool is not worth waking up
            return [self.encode(texts[0], add_special_tokens=add_special_tokens)]
        encodings = self._tokenizer.encode_batch_fast([_valid(t) for t in texts], add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def decode(
        self, ids: Iterable[int], *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """Ids -> text. Bytes that are no valid UTF-8 become U+FFFD, one for each maximal bad part; ids outside the vocabulary
        are left out. ``spaces_between_special_tokens`` is accepted for compatibility: decoding never puts in a space that
        is not in a token, so both values mean the same."""
        hidden = self.special_token_ids if skip_special_tokens else frozenset()
        text = b"".join([self.token_bytes(i) for i in ids if i not in hidden]).decode("utf-8", "replace")
        return strip_lead(text, self.decoding.lead_character, self.decoding.lead)[0]

    def token_text(self, token_id: int) -> str:
        """One token as text, its leading space included; what log-probabilities show. Parts of characters become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def piece(self, token_id: int) -> str:
        """The token as the vocabulary writes it, as in "Ġworld"; "" outside."""
        return self._tokenizer.id_to_token(token_id) or ""

    def is_special(self, token_id: int) -> bool:
        """Whether ``skip_special_tokens`` leaves the token out of text."""
        return token_id in self.special_token_ids

    def bad_words_ids(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The token sequences to ban for each word: as it begins a text, and as it follows a space when that differs."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = tuple(self.encode(word.lstrip() or word, add_special_tokens=False))
            spaced = tuple(self.encode(" " + word.lstrip(), add_special_tokens=False))
            if bare:
                found[bare] = None
            if spaced and (not bare or spaced[-len(bare) :] != bare):
                found[spaced] = None
        return tuple(found)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> str:
        """Messages -> prompt text, by the model's template; encode it with ``add_special_tokens=False``.

        ``continue_final_message`` leaves the last message open so that the model goes on with it. ``warn`` takes a sentence
        about what is passed over. Raises ParameterError.
        """
        if self.chat_template is None:
            raise ParameterError(
                "This model has no chat template. Use text completions, or start with --chat-template FILE.", param="messages"
            )
        return self.chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            documents=documents,
            template_kwargs=template_kwargs,
            warn=warn,
            special_tokens=self.special_tokens,
        )

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        token_id: int | None = None if token is None else self._tokenizer.token_to_id(token)
        return token_id


class TokenizerSource(Protocol):
    """Where a model keeps its tokenizer; an opened checkpoint is one."""

    @property
    def path(self) -> Path: ...

    @property
    def tokenizer_dir(self) -> Path | None: ...

    @property
    def gguf_metadata(self) -> Mapping[str, Any] | None: ...


def open_tokenizer(source: TokenizerSource, *, override: str | None = None, chat_template: str | None = None) -> Tokenizer:
    """A checkpoint's tokenizer, or the one in ``override`` (a directory or a tokenizer.json); ``chat_template`` is a file that
    replaces the model's template. Raises ConfigError."""
    if override is not None:
        return Tokenizer.from_directory(override, chat_template=chat_template)
    if source.gguf_metadata is not None:
        return Tokenizer.from_gguf(source.gguf_metadata, source=str(source.path), chat_template=chat_template)
    return Tokenizer.from_directory(source.tokenizer_dir or source.path, chat_template=chat_template)


def strip_lead(text: str, character: str, count: int) -> tuple[str, int]:
    """Remove up to ``count`` leading ``character``s. Returns the rest and how many could still be removed from a text that goes
    on after it: none once anything else has begun."""
    while count and text.startswith(character):
        text, count = text[len(character) :], count - 1
    return text, 0 if text else count


def _valid(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ParameterError("The text has an unpaired surrogate; send valid Unicode.", param="prompt") from None
    return text


def _load_tokenizer_json(file: Path) -> Any:
    from tokenizers import Tokenizer as LibraryTokenizer

    if not file.is_file():
        others = [name for name in ("tokenizer.model", "vocab.json") if (file.parent / name).is_file()]
        hint = f" (it has {others[0]}; save it once with a fast tokenizer of transformers)" if others else ""
        raise ConfigError(f"{file} is missing{hint}; put it there or name another directory with --tokenizer.")
    try:
        library_tokenizer = LibraryTokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ConfigError(f"{file} is broken: {one_line(error)}; download it again.") from None
    library_tokenizer.no_truncation()
    library_tokenizer.no_padding()
    return library_tokenizer


def _read_companions(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json, and where it is silent special_tokens_map.json, which alone names the tokens of some models."""
    config = _read_config(directory / "tokenizer_config.json")
    return _read_config(directory / "special_tokens_map.json") | {k: v for k, v in config.items() if v is not None}


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is broken: {one_line(error)}; download it again.") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is broken: not a JSON object; download it again.")
    return config


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: _text_of(config.get(name)) for name in _SPECIAL_NAMES}
    return {name: text for name, text in texts.items() if text is not None}


def _text_of(entry: Any) -> str | None:
    """A token is written as a string or as an object with ``content``."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _added_token(text: str, entry: Any) -> Any:
    """The library's token; its flags are those of ``entry``, if that is an object."""
    from tokenizers import AddedToken

    written = entry if isinstance(entry, dict) else {}
    flags = {flag: bool(written.get(flag, False)) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return AddedToken(text, **flags)


def _add_configured_tokens(library_tokenizer: Any, config: Mapping[str, Any]) -> None:
    """Tokens that only tokenizer_config.json names; their ids must be those the model was trained with."""
    entries = config.get("added_tokens_decoder")
    if not isinstance(entries, dict):
        return
    for key in sorted(entries, key=lambda k: int(k) if str(k).isdecimal() else 0):
        content = _text_of(entries[key])
        if content is None or library_tokenizer.token_to_id(content) is not None:
            continue
        library_tokenizer.add_tokens([_added_token(content, entries[key])])
        if str(library_tokenizer.token_to_id(content)) != str(key):
            raise ConfigError(
                f"tokenizer_config.json gives {content!r} the id {key}, which tokenizer.json does not leave free."
            )


def _mark_special_tokens(library_tokenizer: Any, config: Mapping[str, Any]) -> None:
    """Tokens that only the configuration calls special: found in text before anything else, left out of output text. One that
    has no id is given none, as the model may have no embedding for it."""
    added = {token.content: token for token in library_tokenizer.get_added_tokens_decoder().values()}
    marked = []
    for text, entry in {_text_of(entry): entry for entry in _special_entries(config)}.items():
        if text is None or library_tokenizer.token_to_id(text) is None:
            continue
        token = added.get(text, _added_token(text, entry))
        if text not in added or not token.special:
            token.special = True
            marked.append(token)
    library_tokenizer.add_tokens(marked)


def _special_entries(config: Mapping[str, Any]) -> list[Any]:
    """What a configuration calls special, as it is written. The entries with an id come last, for their flags to count."""
    found = [config.get(name) for name in _SPECIAL_NAMES]
    for extra in (config.get("additional_special_tokens"), config.get("extra_special_tokens")):
        found += extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else []
    by_id = config.get("added_tokens_decoder")
    entries = by_id.values() if isinstance(by_id, dict) else []
    return found + [entry for entry in entries if isinstance(entry, dict) and entry.get("special")]


def _set_bos_eos(library_tokenizer: Any, *, bos: str | None, eos: str | None) -> None:
    """Make encoding put ``bos`` before and ``eos`` after every text; None: nothing there."""
    from tokenizers.processors import TemplateProcessing

    single = ([bos] if bos else []) + ["$A"] + ([eos] if eos else [])
    used = [(token, library_tokenizer.token_to_id(token)) for token in dict.fromkeys(t for t in (bos, eos) if t)]
    library_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=used)


def _operator_template(file: str | Path | None) -> "ChatTemplate | None":
    if file is None:
        return None
    from octavo.chat_template import ChatTemplate

    return ChatTemplate.compile({"default": _read_text(Path(file))}, source=str(file))


def _directory_template(directory: Path, config: Mapping[str, Any]) -> "ChatTemplate | None":
    """A model's own templates: chat_template.jinja before chat_template.json before tokenizer_config.json."""
    from octavo.chat_template import ChatTemplate

    file = directory / "chat_template.jinja"
    if file.is_file():
        return ChatTemplate.compile({"default": _read_text(file)}, source=str(file))
    file = directory / "chat_template.json"
    found = _read_config(file).get("chat_template")
    if found is None:
        file, found = directory / "tokenizer_config.json", config.get("chat_template")
    if found is None:
        return None
    if isinstance(found, list):
        found = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
    named = {"default": found} if isinstance(found, str) else found
    if not isinstance(named, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in named.items()):
        raise ConfigError(f"{file}: chat_template is neither a text nor a list of named templates; correct or remove it.")
    return ChatTemplate.compile(named, source=str(file)) if named else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The chat template {file} cannot be read: {one_line(error)}.") from None
