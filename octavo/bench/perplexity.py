"""``octavo bench perplexity``: how well a model foretells a text as it is computed here, so what a quantization costs.

The text is cut into windows, as is usual: each token is foretold once, from the tokens of its window before it. Behind the
token that the tokenizer puts before a text, if it does, a window's first token is foretold too.
"""

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from octavo.bench.options import PerplexityOptions
from octavo.bench.report import bar, check_writable, emit
from octavo.build import Loaded, load, open_frontend
from octavo.config import ConfigError, EngineConfig
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.tokenizer import Tokenizer


class PerplexityResult(msgspec.Struct, frozen=True, kw_only=True):
    """``perplexity`` is exp of the mean negative log-probability of ``tokens`` tokens; ``error`` its standard error."""

    perplexity: float
    error: float
    tokens: int
    windows: int
    context_len: int
    stride: int
    seconds: float


class Window(NamedTuple):
    """``token_ids``, of which those from ``first`` on are foretold."""

    token_ids: list[int]
    first: int


def windows_of(token_ids: Sequence[int], *, lead: Sequence[int], context_len: int, stride: int) -> list[Window]:
    """Windows of up to ``context_len`` tokens, each beginning ``stride`` after the one before, ``lead`` put before each. What a
    window before has foretold is context alone."""
    made, done = [], 0
    for begin in range(0, len(token_ids), stride):
        end = min(begin + context_len, len(token_ids))
        window = [*lead, *token_ids[begin:end]]
        first = max(1, len(lead) + done - begin)
        if first < len(window):
            made.append(Window(window, first))
        done = end
        if end == len(token_ids):
            break
    return made


def logprobs_of(loaded: Loaded, windows: Sequence[Window]) -> list[float]:
    """Log-probabilities of all tokens that are foretold, in order. Progress goes to a terminal only."""
    engine = loaded.engine
    for number, window in enumerate(windows):
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        engine.add(
            Request(id=str(number), prompt_token_ids=window.token_ids, params=params, seed=0, arrival_time=time.monotonic())
        )
    found: dict[str, list[float]] = {}
    with bar(len(windows), "Windows") as shown:
        while engine.has_work:
            for delta in engine.step():
                if delta.prompt_logprobs is not None:
                    entries = delta.prompt_logprobs[windows[int(delta.request_id)].first - 1 :]
                    found[delta.request_id] = [entry.logprob for entry in entries]
                    shown.update()
    return [logprob for number in range(len(windows)) for logprob in found[str(number)]]


def run(config: EngineConfig, options: PerplexityOptions) -> PerplexityResult:
    """Raises ``ConfigError`` for a text that cannot be read or is too short, and for windows that the model has no room for."""
    text = "".join(_read(file) for file in options.file)
    frontend = open_frontend(config)
    tokenizer: Tokenizer = frontend.tokenizer
    lead = _lead(tokenizer)
    longest = frontend.max_model_len - len(lead) - 1  # a request has room for one token of its own
    if options.context_len > longest:
        raise ConfigError(f"--context-len {options.context_len} is more than the {longest} tokens that the model has room for")
    stride = options.stride or options.context_len
    if stride > options.context_len:
        raise ConfigError(
            f"--stride {stride} is more than --context-len {options.context_len}: tokens between would be left out"
        )
    token_ids = tokenizer.encode(text, add_special_tokens=False)[: options.num_tokens]
    windows = windows_of(token_ids, lead=lead, context_len=options.context_len, stride=stride)
    if not windows:
        raise ConfigError(f"--file {' '.join(options.file)}: a text of {len(token_ids)} tokens has none to foretell")
    loaded = load(config)
    start = time.perf_counter()
    logprobs = logprobs_of(loaded, windows)
    seconds = time.perf_counter() - start
    loaded.engine.shutdown()
    perplexity = math.exp(-math.fsum(logprobs) / len(logprobs))
    return PerplexityResult(
        perplexity=perplexity,
        error=perplexity * statistics.pstdev(logprobs) / math.sqrt(len(logprobs)),
        tokens=len(logprobs),
        windows=len(windows),
        context_len=options.context_len,
        stride=stride,
        seconds=seconds,
    )


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file {file}: cannot be read as text ({error})") from None


def _lead(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer puts before a text."""
    bare, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    return whole[: next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)]


def text(result: PerplexityResult) -> str:
    """One line of what it is, one of how it was found."""
    rate = result.tokens / result.seconds
    return (
        f"Perplexity: {result.perplexity:.4f} +/- {result.error:.4f}\n"
        f"{result.tokens} tokens in {result.windows} windows of {result.context_len}, {rate:.0f} tokens/s"
    )


def main(config: EngineConfig, options: PerplexityOptions) -> None:
    """Measure and report."""
    check_writable(options.output_json, "--output-json")
    result = run(config, options)
    emit(result, text(result), as_json=options.json, output_json=options.output_json)
