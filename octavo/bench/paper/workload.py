"""What is served in these figures: ``Serve`` says all of one run; ``Traces`` has its requests ready.

Owns the traces that were read or drawn. ShareGPT is real; the others are drawn from stated distributions. Lengths are those of
the model's own tokenizer, except on the paper's machines, where they are scaled to the means that the paper reports.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from octavo.bench import traces
from octavo.bench.paper.driver import Arrival
from octavo.bench.sharegpt import TextEncoder, chatbot, sharegpt, sharegpt_file, trace_cache
from octavo.bench.traces import Trace, TraceRequest
from octavo.config import KVAllocation, PreemptionMode
from octavo.request import Request
from octavo.sampling_params import BeamSearch, SamplingParams

HERE = "here"
"""The machine that this runs on; any other name is one of the simulated ones."""

POLICIES: tuple[KVAllocation, ...] = ("paged", "orca-oracle", "orca-pow2", "orca-max", "fastertransformer")
POLICY_NAMES: dict[str, str] = {
    "paged": "paged",
    "orca-oracle": "Orca (Oracle)",
    "orca-pow2": "Orca (Pow2)",
    "orca-max": "Orca (Max)",
    "fastertransformer": "FasterTransformer",
}
TRACE_NAMES = {
    "sharegpt": "ShareGPT",
    "alpaca": "Alpaca lengths",
    "alpaca-text": "ShareGPT texts at Alpaca lengths",
    "chatbot": "chat",
    "translation-80": "one-shot prefix, 80 tokens",
    "translation-341": "five-shot prefix, 341 tokens",
}
SAMPLE = 2000
"""Requests of a trace; a run takes as many as it needs, from the first on, and begins anew at the end."""

SAMPLE_SEED = 0

DRAWS = 200
"""Samples of which a run takes the one that is most like its trace."""


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an engine under requests.

    ``machine``: ``HERE`` or a simulated one. ``rate`` is in requests a second, None: all are there at once. All lengths of the
    trace are divided by ``shrink``. ``pinned``: what all prompts begin with is computed and pinned before the first arrives.
    ``limit``: see ``driver.replay``.
    """

    machine: str
    trace: str
    num_requests: int
    kv_slots: int
    max_model_len: int
    max_num_seqs: int
    policy: KVAllocation = "paged"
    rate: float | None = None
    seed: int = 0
    shrink: int = 1
    block_size: int = 16
    n: int = 1
    beam_width: int = 0
    pinned: bool = False
    preemption_mode: PreemptionMode = "auto"
    max_num_batched_tokens: int = 2048
    limit: float | None = None

    @property
    def branches(self) -> int:
        return self.beam_width or self.n

    @property
    def prefix_len(self) -> int:
        """Tokens that all prompts begin with."""
        shared = int(self.trace.rpartition("-")[2]) if self.trace.startswith("translation") else 0
        return -(-shared // self.shrink)

    @property
    def name(self) -> str:
        """For progress, and the beginning of a file's name."""
        parts = [self.machine, self.trace, self.policy]
        parts += [f"block {self.block_size}"] if self.block_size != 16 else []
        parts += [f"width {self.beam_width}"] if self.beam_width else [f"n {self.n}"] if self.n > 1 else []
        parts += ["all at once" if self.rate is None else f"{self.rate:.3g} per s", f"seed {self.seed}"]
        return " ".join(parts)

    def params(self, output_len: int) -> SamplingParams:
        """Never ended by a token: the trace says how long outputs are."""
        if self.beam_width:
            beam = BeamSearch(width=self.beam_width)
            return SamplingParams(n=self.beam_width, beam=beam, temperature=0.0, max_tokens=output_len, ignore_eos=True)
        return SamplingParams(n=self.n, temperature=1.0 if self.n > 1 else 0.0, max_tokens=output_len, ignore_eos=True)


def spread(requests: Sequence[TraceRequest], count: int, seed: int) -> list[TraceRequest]:
    """``count`` of them in random order, evenly spread over their lengths: a short run has long requests and short ones as the
    whole trace has. Prompts are a few long ones among many short, and what sharing saves is a matter of their part of all
    tokens: so of many such draws the one is taken whose mean prompt and mean output are nearest to those of the trace. More
    than there are: all of them, again and again."""
    random = np.random.default_rng([seed, count])
    ordered = sorted(requests, key=lambda request: len(request.prompt_token_ids) + request.output_len)
    whole, left = divmod(count, len(ordered))
    chosen = ordered * whole
    if left:
        places = ((np.arange(left) + random.random((DRAWS, left))) * len(ordered) / left).astype(int)
        lengths = np.array([(len(request.prompt_token_ids), request.output_len) for request in ordered], float)
        means = lengths[places].mean(axis=1) / lengths.mean(axis=0)
        chosen += [ordered[place] for place in places[np.square(means - 1).sum(axis=1).argmin()]]
    return [chosen[i] for i in random.permutation(len(chosen))]


class Traces:
    """Traces by name, each read or drawn once. ``tokenizer`` is called when texts are needed."""

    def __init__(self, *, file: str | None, tokenizer: Callable[[], TextEncoder], vocab_size: int) -> None:
        self._file = file
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._known: dict[tuple[str, bool], Trace] = {}

    def arrivals(self, serve: Serve) -> list[Arrival]:
        """The requests of a run.

        Raises:
            ConfigError: ShareGPT is needed and not at hand.
        """
        trace = self.of(serve.trace, paper=serve.machine != HERE)
        chosen = msgspec.structs.replace(trace, requests=spread(trace.requests, serve.num_requests, serve.seed))
        if serve.rate is not None:
            chosen = traces.with_arrivals(chosen, rate=serve.rate, seed=serve.seed)
        return [self._arrival(serve, index, request) for index, request in enumerate(chosen.requests)]

    def _arrival(self, serve: Serve, index: int, request: TraceRequest) -> Arrival:
        prompt = request.prompt_token_ids
        shared = serve.prefix_len * serve.shrink
        own = max(1, -(-(len(prompt) - shared) // serve.shrink))
        kept = prompt[: serve.prefix_len] + prompt[shared : shared + own]
        output_len = max(1, round(request.output_len / serve.shrink))
        seed = serve.seed * 1_000_003 + index
        params = serve.params(output_len)
        made = Request(id=str(index), prompt_token_ids=kept, params=params, seed=seed, arrival_time=0.0)
        return Arrival(request.arrival if serve.rate is not None else 0.0, made, output_len, serve.branches)

    def of(self, name: str, *, paper: bool) -> Trace:
        """``paper``: with the lengths that the paper's tokenizer gave."""
        if (name, paper) not in self._known:
            self._known[name, paper] = self._scaled(self.of(name, paper=False)) if paper else self._make(name)
        return self._known[name, paper]

    def _scaled(self, trace: Trace) -> Trace:
        if trace.name != "sharegpt":
            return trace
        mean_input, mean_output = traces.PAPER_SHAREGPT_MEANS
        return traces.with_means(trace, mean_input=mean_input, mean_output=mean_output, vocab_size=self._vocab_size)

    def _make(self, name: str) -> Trace:
        size, vocab = SAMPLE, self._vocab_size
        if name == "alpaca":
            return traces.alpaca(num_requests=size, vocab_size=vocab, seed=SAMPLE_SEED)
        if name == "alpaca-text":
            return self._texts_at_alpaca_lengths()
        if name.startswith("translation-"):
            prefix = int(name.rpartition("-")[2])
            return traces.translation(num_requests=size, prefix_len=prefix, vocab_size=vocab, seed=SAMPLE_SEED)
        read: Any = {"sharegpt": sharegpt, "chatbot": chatbot}[name]
        file = sharegpt_file(self._file, progress=True)
        trace: Trace = read(file, self._tokenizer(), num_requests=size, seed=SAMPLE_SEED, cache_dir=trace_cache())
        return trace

    def _texts_at_alpaca_lengths(self) -> Trace:
        """Beginnings of real questions: what is drawn from a model after random tokens is like nothing that anyone asks."""
        lengths, texts = self.of("alpaca", paper=False), self.of("sharegpt", paper=False)
        order = np.random.default_rng(SAMPLE_SEED).permutation(len(lengths.requests))
        waiting = [lengths.requests[i] for i in order]
        requests = []
        for text in texts.requests:
            fits = next((i for i, r in enumerate(waiting) if len(r.prompt_token_ids) <= len(text.prompt_token_ids)), None)
            if fits is not None:
                drawn = waiting.pop(fits)
                ids = text.prompt_token_ids[: len(drawn.prompt_token_ids)]
                requests.append(TraceRequest(ids, drawn.output_len))
        description = lengths.description.replace("no real texts", "beginnings of ShareGPT questions")
        return Trace(
            name="alpaca-text", description=description.replace("; prompts of random token ids", ""), requests=requests
        )
