"""What each measurement may be asked: one struct each, whose fields are its flags.

Plain data, imports nothing of octavo: the command line reads it before anything heavy is loaded. Lengths are in tokens.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]


class ThroughputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``octavo bench throughput``."""

    num_prompts: Annotated[Positive, Meta(description="prompts in the batch")] = 8
    input_len: Annotated[Positive, Meta(description="tokens of each prompt")] = 32
    output_len: Annotated[Positive, Meta(description="tokens generated for each sequence")] = 128
    n: Annotated[int, Meta(ge=1, le=128, description="sequences for each prompt, sharing its blocks")] = 1
    repeat: Annotated[Positive, Meta(description="runs after a warm-up; the median counts")] = 3
    json: Annotated[bool, Meta(description="print one JSON object")] = False
    output_json: Annotated[str | None, Meta(description="write the JSON object to a file")] = None


class LatencyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``octavo bench latency``."""

    batch_size: Annotated[Positive, Meta(description="prompts computed together")] = 8
    input_len: Annotated[Positive, Meta(description="tokens of each prompt")] = 32
    output_len: Annotated[Positive, Meta(description="tokens generated for each sequence")] = 128
    n: Annotated[int, Meta(ge=1, le=128, description="sequences for each prompt, sharing its blocks")] = 1
    num_iters_warmup: Annotated[int, Meta(ge=0, description="batches before the measured ones")] = 2
    num_iters: Annotated[Positive, Meta(description="measured batches")] = 10
    json: Annotated[bool, Meta(description="print one JSON object")] = False
    output_json: Annotated[str | None, Meta(description="write the JSON object to a file")] = None


class PerplexityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``octavo bench perplexity``."""

    file: Annotated[tuple[str, ...], Meta(min_length=1, description="text to foretell, UTF-8; several are joined")]
    context_len: Annotated[int, Meta(ge=2, description="tokens in a window")] = 512
    stride: Annotated[
        Positive | None,
        Meta(description="from window to window; less than a window: more context for each; default: a window"),
    ] = None
    num_tokens: Annotated[Positive | None, Meta(description="of the text, from its beginning; default: all")] = None
    json: Annotated[bool, Meta(description="print one JSON object")] = False
    output_json: Annotated[str | None, Meta(description="write the JSON object to a file")] = None


class RooflineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``octavo bench roofline``."""

    batch_size: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=4096)], ...],
        Meta(min_length=1, description="sequences in a decode step; several: one step of each"),
    ] = (1,)
    context_len: Annotated[Annotated[int, Meta(ge=2)], Meta(description="tokens that each of them sees")] = 512
    prefill: Annotated[Positive | None, Meta(description="measure a step with a prompt of so many tokens, too")] = None
    num_iters: Annotated[int, Meta(ge=4, description="measured steps of each kind; the fastest quarter counts")] = 40
    json: Annotated[bool, Meta(description="print one JSON object")] = False
    output_json: Annotated[str | None, Meta(description="write the JSON object to a file")] = None
    plot: Annotated[str | None, Meta(description="draw ceilings and ops into a file, .svg or .png")] = None


class PaperOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``octavo bench paper``."""

    figure: Annotated[tuple[str, ...], Meta(description="names of figures; default: all")] = ()
    mode: Annotated[
        Literal["real", "simulated"] | None,
        Meta(description="this machine, or the paper's machines in virtual time; default: both"),
    ] = None
    quick: Annotated[bool, Meta(description="every figure in a few minutes: short runs, one seed, one simulated model")] = False
    out: Annotated[str, Meta(description="directory for tables, pictures and what was measured")] = "paper"
    sharegpt: Annotated[str | None, Meta(description="JSON file of ShareGPT conversations; default: a packaged one")] = None
    force: Annotated[bool, Meta(description="measure again what an earlier run has measured")] = False
