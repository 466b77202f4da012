"""What is sent: prompts as texts with the lengths that belong to them, and when each is due.

Owns the datasets and the arrival process. Everything random has a seed. Lengths are those of the given token counter, without
special tokens.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from octavo.bench.serve.options import LoadOptions
from octavo.bench.serve.tokens import TokenCounter
from octavo.bench.sharegpt import CHARACTERS_PER_TOKEN, MIN_LEN, Conversations, first_pair, sharegpt_file
from octavo.config import ConfigError

MAX_PROMPT = 1024
MAX_TOTAL = 2048
"""Longest ShareGPT prompt, and prompt with answer, in tokens: the limits of ``vllm bench serve``."""

_BATCH = 64
_RUN_SEEDS = 2**32
_WARMUP_SEEDS = 2**64
_ADJUSTMENTS = 8
_ONSETS = ("b", "br", "ch", "d", "f", "g", "gl", "h", "k", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "tr", "v", "w")
_NUCLEI = ("a", "ai", "e", "ea", "i", "o", "oo", "u")
_CODAS = ("", "", "l", "m", "n", "nd", "r", "s", "st", "t")


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """One request: its text, its length, and how much is to be generated."""

    text: str
    input_len: int
    output_len: int


class Work(msgspec.Struct, frozen=True):
    """All that one run sends. ``seed`` is of its arrivals."""

    seed: int
    prompts: list[Prompt]
    warmups: list[Prompt]


def make_work(options: LoadOptions, tokens: TokenCounter, *, runs: int = 1) -> list[Work]:
    """For each run ``options.num_prompts`` prompts and ``options.num_warmups`` before them, of which none helps another in a
    prefix cache: conversations in one random order, as far as the file reaches, or texts of a seed of their own. Raises
    ``ConfigError``."""
    seeds = [options.seed + run * _RUN_SEEDS for run in range(runs)]
    count, warmups = options.num_prompts, options.num_warmups
    if options.dataset_name == "sharegpt":
        all_of_them = msgspec.structs.replace(options, num_prompts=runs * (count + warmups))
        found = iter(make_prompts(all_of_them, tokens, seed=options.seed))
        return [Work(seed, list(islice(found, count)), list(islice(found, warmups))) for seed in seeds]
    before = msgspec.structs.replace(options, num_prompts=warmups)
    return [
        Work(
            seed,
            make_prompts(options, tokens, seed=seed),
            make_prompts(before, tokens, seed=seed + _WARMUP_SEEDS) if warmups else [],
        )
        for seed in seeds
    ]


def make_prompts(options: LoadOptions, tokens: TokenCounter, *, seed: int) -> list[Prompt]:
    """``options.num_prompts`` prompts of the dataset that was asked for. Raises ``ConfigError``."""
    random = np.random.default_rng([seed, 0x5E])
    if options.dataset_name == "sharegpt":
        path = sharegpt_file(options.dataset_path, progress=True)
        return _sharegpt(path, options, tokens, random)
    if options.dataset_path is not None:
        raise ConfigError("--dataset-path is the file of --dataset-name sharegpt")
    if options.dataset_name == "random":
        return _random(options, tokens, random)
    return _prefix_repetition(options, tokens, random)


def arrivals(count: int, rate: float, *, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start until each request is due: gaps drawn from a gamma distribution of this shape (1: exponential, a
    Poisson process), then stretched so that the last request is due after ``count / rate`` seconds."""
    if math.isinf(rate):
        return [0.0] * count
    gaps = np.random.default_rng([seed, 0xA7]).gamma(burstiness, 1 / (rate * burstiness), count)
    due = np.cumsum(gaps)
    return (due * (count / rate / due[-1])).tolist() if due[-1] > 0 else [i / rate for i in range(1, count + 1)]


def _sharegpt(path: Path, options: LoadOptions, tokens: TokenCounter, random: np.random.Generator) -> list[Prompt]:
    """First question and first answer of conversations in random order; of few that fit, some are asked again."""
    conversations = Conversations(path)
    order = random.permutation(len(conversations))
    found: list[Prompt] = []
    for first in range(0, len(order), _BATCH):
        pairs = list(_pairs(conversations, order[first : first + _BATCH].tolist()))
        ids = tokens.encode_batch([text for pair in pairs for text in pair], add_special_tokens=False) if pairs else []
        for (text, _), prompt, answer in zip(pairs, ids[::2], ids[1::2], strict=True):
            output_len = options.sharegpt_output_len or len(answer)
            if min(len(prompt), output_len) >= MIN_LEN and len(prompt) <= MAX_PROMPT and len(prompt) + output_len <= MAX_TOTAL:
                found.append(Prompt(text, len(prompt), output_len))
        if len(found) >= options.num_prompts:
            return found[: options.num_prompts]
    if not found:
        raise ConfigError(f"{path}: no conversation fits; it should hold turns from 'human' and 'gpt'")
    print(
        f"octavo: warning: {path} has {len(found)} conversations that fit, for {options.num_prompts} requests: some are sent "
        "again, and a prefix cache knows them",
        file=sys.stderr,
        flush=True,
    )
    return [found[i % len(found)] for i in range(options.num_prompts)]


def _pairs(conversations: Conversations, numbers: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Texts too long to fit by any count are left out before anybody counts."""
    for number in numbers:
        pair = first_pair(conversations[number])
        if pair is not None and pair[0] and len(pair[0]) + len(pair[1]) <= MAX_TOTAL * CHARACTERS_PER_TOKEN:
            yield pair


def _random(options: LoadOptions, tokens: TokenCounter, random: np.random.Generator) -> list[Prompt]:
    def length(middle: int) -> int:
        spread = options.random_range_ratio
        return max(1, int(random.integers(math.floor(middle * (1 - spread)), math.ceil(middle * (1 + spread)) + 1)))

    maker = _TextMaker(tokens, random)
    prefix = maker.text(options.random_prefix_len) if options.random_prefix_len else ""
    found = []
    for _ in range(options.num_prompts):
        wanted = options.random_prefix_len + length(options.random_input_len)
        text, count = maker.extended(prefix, wanted)
        found.append(Prompt(text, count, length(options.random_output_len)))
    return found


def _prefix_repetition(options: LoadOptions, tokens: TokenCounter, random: np.random.Generator) -> list[Prompt]:
    """Prefixes that several prompts have in common, each with suffixes of its own, in random order."""
    maker, count = _TextMaker(tokens, random), options.prefix_repetition_num_prefixes
    prefixes = [maker.text(options.prefix_repetition_prefix_len) for _ in range(count)]
    wanted = options.prefix_repetition_prefix_len + options.prefix_repetition_suffix_len
    found = []
    for i in range(options.num_prompts):
        text, length = maker.extended(prefixes[i % count], wanted)
        found.append(Prompt(text, length, options.prefix_repetition_output_len))
    return [found[i] for i in random.permutation(len(found))]


class _TextMaker:
    """Texts of given lengths, of words that no language has: they are nobody's prefix by accident."""

    def __init__(self, tokens: TokenCounter, random: np.random.Generator) -> None:
        self._tokens = tokens
        self._random = random

    def text(self, length: int) -> str:
        return self.extended("", length)[0]

    def extended(self, prefix: str, length: int) -> tuple[str, int]:
        """``prefix`` with words after it, ``length`` tokens together, and the length that it has: cutting a text between two
        tokens and counting it anew may give another number, so it is cut again until it fits, or nearly."""
        text, best = prefix, (prefix, -1)
        for _ in range(_ADJUSTMENTS):
            ids = self._count(text)
            if best[1] < 0 or abs(len(ids) - length) < abs(best[1] - length):
                best = text, len(ids)
            if len(ids) == length:
                break
            short = length - len(ids)
            text = f"{text} {self._words(short)}".lstrip() if short > 0 else self._tokens.decode(ids[:length])
        return best

    def _count(self, text: str) -> list[int]:
        return self._tokens.encode_batch([text], add_special_tokens=False)[0] if text else []

    def _words(self, count: int) -> str:
        return " ".join(self._word() for _ in range(count))

    def _word(self) -> str:
        pick = self._random.integers
        syllables = int(pick(1, 4))
        return "".join(
            _ONSETS[pick(len(_ONSETS))] + _NUCLEI[pick(len(_NUCLEI))] + _CODAS[pick(len(_CODAS))] for _ in range(syllables)
        )
