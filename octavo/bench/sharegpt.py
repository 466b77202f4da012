"""Traces of real conversations: the ShareGPT file, read object by object, and what is made of it.

Owns the file's format, the filters and the cache of tokenized samples. The file may be cut off: its last, incomplete
conversation is not there. Memory stays bounded: the file is mapped, its conversations are found by their braces, and only those
that are drawn are decoded.
"""

import hashlib
import mmap
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from octavo.bench.traces import PAPER_SHAREGPT_MEANS, Trace, TraceRequest
from octavo.config import ConfigError

MIN_LEN = 4
"""Tokens that a prompt and an output must have to count, as in vLLM's benchmarks: shorter ones are accidents."""

MAX_PROMPT = 1024
MAX_TOTAL = 2048
CHAT_PROMPT = 1024
CHAT_OUTPUT = 1024
CHARACTERS_PER_TOKEN = 16
"""More than text has: what is longer than this times a limit of tokens need not be tokenized to be known as too long."""

_BATCH = 256
_HUMANS, _MODELS = {"human", "user"}, {"gpt", "chatgpt", "assistant", "bing", "bard"}
_PIECE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{}]', re.DOTALL)


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


def sharegpt(
    path: Path,
    tokenizer: TextEncoder,
    *,
    num_requests: int,
    seed: int = 0,
    cache_dir: Path | None = None,
    progress: bool = False,
) -> Trace:
    """First question and first answer of ``num_requests`` conversations, drawn without repetition: prompt token ids and output
    length by ``tokenizer``. Left out, as in vLLM's benchmarks, are prompts or outputs under 4 tokens, prompts over 1,024 and
    pairs over 2,048. A tokenized sample is kept in ``cache_dir``. Raises ``ConfigError``."""
    rule = _Rule("sharegpt", _first_pair, _whole_pair)
    requests = _cached(rule, path, tokenizer, num_requests, seed, cache_dir, progress)
    means = "{} and {}".format(*PAPER_SHAREGPT_MEANS)
    return Trace(
        name="sharegpt",
        description=(
            f"ShareGPT, first question and first answer of {len(requests)} conversations drawn with seed {seed}; prompts and "
            f"outputs of at least {MIN_LEN} tokens, prompts of at most {MAX_PROMPT}, together at most {MAX_TOTAL}; the paper's "
            f"means, with another tokenizer and selection, are {means}"
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
    rule = _Rule("chatbot", _last_round, _cut_pair)
    requests = _cached(rule, path, tokenizer, num_requests, seed, cache_dir, progress)
    return Trace(
        name="chatbot",
        description=(
            f"ShareGPT, the last question of {len(requests)} conversations of two or more rounds, drawn with seed {seed}, "
            f"after their history; prompts cut to the last {CHAT_PROMPT} tokens, outputs to {CHAT_OUTPUT}"
        ),
        requests=requests,
    )


class _Rule(msgspec.Struct, frozen=True):
    """What becomes of a conversation: ``texts`` picks prompt and output or nothing, ``lengths`` cuts or refuses their ids."""

    name: str
    texts: Callable[[Conversation], tuple[str, str] | None]
    lengths: Callable[[list[int], list[int]], TraceRequest | None]


def _first_pair(conversation: Conversation) -> tuple[str, str] | None:
    turns = conversation.conversations
    if len(turns) < 2 or turns[0].speaker not in _HUMANS or turns[1].speaker not in _MODELS:
        return None
    prompt, output = turns[0].value, turns[1].value
    return None if max(len(prompt), len(output)) > MAX_TOTAL * CHARACTERS_PER_TOKEN else (prompt, output)


def _whole_pair(prompt: list[int], output: list[int]) -> TraceRequest | None:
    short = len(prompt) < MIN_LEN or len(output) < MIN_LEN
    long = len(prompt) > MAX_PROMPT or len(prompt) + len(output) > MAX_TOTAL
    return None if short or long else TraceRequest(prompt, len(output))


def _last_round(conversation: Conversation) -> tuple[str, str] | None:
    turns = conversation.conversations
    answers = [i for i, turn in enumerate(turns) if i and turn.speaker in _MODELS and turns[i - 1].speaker in _HUMANS]
    if len(answers) < 2:
        return None
    history = "\n".join(turn.value for turn in turns[: answers[-1]])
    return history[-CHAT_PROMPT * CHARACTERS_PER_TOKEN :], turns[answers[-1]].value[: CHAT_OUTPUT * CHARACTERS_PER_TOKEN]


def _cut_pair(prompt: list[int], output: list[int]) -> TraceRequest | None:
    if len(prompt) < MIN_LEN or len(output) < MIN_LEN:
        return None
    return TraceRequest(prompt[-CHAT_PROMPT:], min(len(output), CHAT_OUTPUT))


def _cached(
    rule: _Rule,
    path: Path,
    tokenizer: TextEncoder,
    num_requests: int,
    seed: int,
    cache_dir: Path | None,
    progress: bool,
) -> list[TraceRequest]:
    file = None
    if cache_dir is not None:
        file = cache_dir / f"{rule.name}-{_key(rule, path, tokenizer, num_requests, seed)}.msgpack"
        if (kept := _read_kept(file, num_requests)) is not None:
            return kept
    requests = _draw(rule, Conversations(path), tokenizer, num_requests, seed, progress)
    if file is not None:
        _keep(file, requests)
    return requests


def _key(rule: _Rule, path: Path, tokenizer: TextEncoder, num_requests: int, seed: int) -> str:
    """Names a sample: another file, tokenizer, size or seed has another name."""
    try:
        state = path.resolve().stat()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    probe = tokenizer.encode_batch(["The quick brown fox: 0123456789, naïve façade — λ 中文", "def f(x):\n\treturn x"])
    facts: list[Any] = [rule.name, state.st_size, state.st_mtime_ns, tokenizer.vocab_size, probe, num_requests, seed]
    facts += [MIN_LEN, MAX_PROMPT, MAX_TOTAL, CHAT_PROMPT, CHAT_OUTPUT]
    return hashlib.sha256(msgspec.msgpack.encode(facts)).hexdigest()[:16]


def _read_kept(file: Path, num_requests: int) -> list[TraceRequest] | None:
    try:
        kept = msgspec.msgpack.decode(file.read_bytes(), type=list[TraceRequest])
    except (OSError, msgspec.DecodeError):
        return None
    return kept if len(kept) <= num_requests else None


def _keep(file: Path, requests: list[TraceRequest]) -> None:
    """Whole or not at all: a cache that cannot be written is no error."""
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.msgpack.encode(requests))
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)


def _draw(
    rule: _Rule, conversations: Conversations, tokenizer: TextEncoder, num_requests: int, seed: int, progress: bool
) -> list[TraceRequest]:
    """Conversations in random order until enough of them fit."""
    from tqdm import tqdm

    order = list(range(len(conversations)))
    random.Random(seed).shuffle(order)
    found: list[TraceRequest] = []
    with tqdm(total=num_requests, desc=f"tokenize {rule.name}", unit="request", disable=not progress, leave=False) as bar:
        for first in range(0, len(order), _BATCH):
            picked = (rule.texts(conversations[i]) for i in order[first : first + _BATCH])
            pairs = [pair for pair in picked if pair is not None]
            ids = tokenizer.encode_batch([text for pair in pairs for text in pair], add_special_tokens=False) if pairs else []
            made = (rule.lengths(prompt, output) for prompt, output in zip(ids[::2], ids[1::2], strict=True))
            fitting = [request for request in made if request is not None][: num_requests - len(found)]
            found += fitting
            bar.update(len(fitting))
            if len(found) == num_requests:
                return found
    if not found:
        raise ConfigError(f"{conversations.path}: no conversation fits; it should hold turns from 'human' and 'gpt'")
    return found
