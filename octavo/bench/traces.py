"""What clients send in a measurement: ``Trace``, requests with prompts, output lengths and arrival times.

Owns the records, Poisson arrivals and the traces that are drawn from stated distributions; those made of real conversations are
in ``sharegpt``. Knows no engine. Everything random has a seed: the same call gives the same trace.
"""

import msgspec
import numpy as np

PAPER_SHAREGPT_MEANS = (161.31, 337.99)
"""Mean input and output tokens of the ShareGPT trace that the PagedAttention paper used."""

PAPER_ALPACA_MEANS = (19.31, 58.45)
"""The same of its Alpaca trace."""

SENTENCE_MEAN = 25.0
GERMAN_PER_ENGLISH = 1.41
"""Tokens of LLaMA's tokenizer in an English sentence of WMT16's English-German test set, and those of its translation for each.
The published set has 2,999 pairs of 237 bytes together, German 1.14 times as long as English: 111 and 127 bytes. The tokenizer
makes a token of 4.43 bytes of English and of 3.58 of German, on 38 sentences of such sets: 25.0 and 35.4 tokens."""

SENTENCE_SHAPE = 2.5
"""Of the gamma distribution of sentence lengths: an assumption."""

ALPACA_INPUT_SHAPE = 4.0


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """``arrival`` is in seconds since the trace began."""

    prompt_token_ids: list[int]
    output_len: int
    arrival: float = 0.0


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in order of arrival. ``description`` says where prompts and lengths come from, for whoever reads a result."""

    name: str
    description: str
    requests: list[TraceRequest]

    @property
    def mean_input(self) -> float:
        return sum(len(request.prompt_token_ids) for request in self.requests) / max(1, len(self.requests))

    @property
    def mean_output(self) -> float:
        return sum(request.output_len for request in self.requests) / max(1, len(self.requests))

    @property
    def duration(self) -> float:
        """Until the last arrival."""
        return self.requests[-1].arrival if self.requests else 0.0


def with_arrivals(trace: Trace, *, rate: float, seed: int = 0, num_requests: int | None = None) -> Trace:
    """The same requests, arriving as a Poisson process of ``rate`` requests a second. With ``num_requests`` so many, beginning
    anew when the trace ends."""
    if not rate > 0:
        raise ValueError(f"requests arrive at a positive rate, not {rate}")
    count = len(trace.requests) if num_requests is None else num_requests
    gaps = np.random.default_rng([seed, 0x0A]).exponential(1.0 / rate, count)
    requests = [
        msgspec.structs.replace(trace.requests[i % len(trace.requests)], arrival=float(moment))
        for i, moment in enumerate(np.cumsum(gaps))
    ]
    return msgspec.structs.replace(trace, requests=requests)


def alpaca(*, num_requests: int, vocab_size: int, seed: int = 0, max_len: int = 2048) -> Trace:
    """Short instructions: lengths drawn around the published means, because the texts are not at hand."""
    random = np.random.default_rng([seed, 0x0B])
    mean_input, mean_output = PAPER_ALPACA_MEANS
    inputs = _gamma(random, mean_input, ALPACA_INPUT_SHAPE, num_requests)
    outputs = random.geometric(1.0 / mean_output, num_requests)
    requests = [
        TraceRequest(_random_ids(random, int(prompt), vocab_size), int(output))
        for prompt, output in zip(np.minimum(inputs, max_len // 2), np.minimum(outputs, max_len // 2), strict=True)
    ]
    return Trace(
        name="alpaca",
        description=(
            f"Alpaca-like, no real texts: inputs gamma (shape {ALPACA_INPUT_SHAPE:g}, mean {mean_input}), outputs geometric "
            f"(mean {mean_output}), the published means; prompts of random token ids; seed {seed}"
        ),
        requests=requests,
    )


def translation(*, num_requests: int, prefix_len: int, vocab_size: int, seed: int = 0) -> Trace:
    """Instructions with examples, the same ``prefix_len`` tokens for all, then one sentence; the answer is its translation."""
    random = np.random.default_rng([seed, 0x0C])
    prefix = _random_ids(random, prefix_len, vocab_size)
    lengths = _gamma(random, SENTENCE_MEAN, SENTENCE_SHAPE, num_requests)
    requests = [
        TraceRequest(prefix + _random_ids(random, int(length), vocab_size), max(1, round(length * GERMAN_PER_ENGLISH)))
        for length in lengths
    ]
    return Trace(
        name=f"translation-{prefix_len}",
        description=(
            f"translation-like, no real texts: a shared prefix of {prefix_len} tokens, then sentences of gamma length (mean "
            f"{SENTENCE_MEAN:g}, WMT16's by LLaMA's tokenizer; shape {SENTENCE_SHAPE:g}, an assumption), outputs "
            f"{GERMAN_PER_ENGLISH} times as long; random token ids; seed {seed}"
        ),
        requests=requests,
    )


def with_means(trace: Trace, *, mean_input: float, mean_output: float, vocab_size: int, max_len: int = 2048) -> Trace:
    """The trace with all lengths multiplied so that their means are the given ones: another tokenizer's view of the same texts.
    Prompts become random token ids. Nothing grows beyond ``max_len`` tokens, input and output together."""
    inputs = np.array([len(request.prompt_token_ids) for request in trace.requests], float)
    outputs = np.array([request.output_len for request in trace.requests], float)
    outputs = _scaled(outputs, mean_output, np.full(len(outputs), max_len * 3 // 4))
    inputs = _scaled(inputs, mean_input, max_len - outputs)
    random = np.random.default_rng(0x0D)
    requests = [
        TraceRequest(_random_ids(random, int(prompt), vocab_size), int(output), request.arrival)
        for prompt, output, request in zip(inputs, outputs, trace.requests, strict=True)
    ]
    description = f"{trace.description}; lengths scaled to means of {mean_input} and {mean_output} tokens, random token ids"
    return msgspec.structs.replace(trace, description=description, requests=requests)


def _scaled(lengths: np.ndarray, mean: float, limits: np.ndarray) -> np.ndarray:
    """Whole numbers of at least 1 and at most ``limits``, with nearly the ``mean``: what the limits cut off is given to the
    others in a few rounds."""
    factor = mean / max(1.0, float(lengths.mean()))
    scaled = lengths
    for _ in range(20):
        scaled = np.clip(np.rint(lengths * factor), 1, limits)
        factor *= mean / float(scaled.mean())
    return scaled.astype(np.int64)


def _gamma(random: np.random.Generator, mean: float, shape: float, count: int) -> np.ndarray:
    """Whole lengths of at least 1 whose mean is ``mean`` up to rounding."""
    return np.maximum(1, np.rint(random.gamma(shape, mean / shape, count))).astype(np.int64)


def _random_ids(random: np.random.Generator, length: int, vocab_size: int) -> list[int]:
    ids: list[int] = random.integers(0, vocab_size, length).tolist()
    return ids
