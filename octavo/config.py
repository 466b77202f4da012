"""The user's choices (``EngineConfig``) and the model's facts (``ModelConfig``): frozen, validated, resolved once.

A leaf: imports nothing of octavo and reads no file. Command-line flags and environment variables are derived from the
fields here, so a default is written in one place.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")
Dtype = Literal["auto", "bfloat16", "float32", "half", "float16", "float"]
Quantization = Literal["auto", "none", "stored", "int8", "int4"]
KVCacheDtype = Literal["auto", "bfloat16", "float32", "int8"]
PreemptionMode = Literal["auto", "recompute", "swap"]
KVAllocation = Literal["paged", "orca-max", "orca-pow2", "orca-oracle", "fastertransformer"]
SchedulingPolicy = Literal["fcfs", "priority", "fair"]
Positive = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
_AT = re.compile(r" - at `\$\.?([^`]*)`$")


class ConfigError(ValueError):
    """The configuration cannot work. The message is one line and says what to change."""


class ContextTooLongError(ConfigError):
    """Sequences were asked for that are longer than the model was made for."""


class KVCacheTooLargeError(ConfigError):
    """Keys and values were asked for that memory does not hold beside the weights."""


def one_line(error: BaseException) -> str:
    """What went wrong elsewhere, as a part of a message of one line."""
    return " ".join(str(error).split())[:200].rstrip(".")


def complaint_of(error: msgspec.ValidationError) -> tuple[str, str]:
    """What is wrong, as the end of a sentence, and the path of the field that it is about; empty: all of it."""
    text = str(error)
    found = _AT.search(text)
    what = text[: found.start()] if found else text
    return f"{what[:1].lower()}{what[1:]}".replace("`", ""), found.group(1) if found else ""


def configured(struct: type[T], values: Mapping[str, Any], places: Mapping[str, str] | None = None) -> T:
    """``values`` as a configuration of that type, checked. Raises ``ConfigError``, naming the field, or what ``places`` calls
    it."""
    try:
        return msgspec.convert(values, struct)
    except msgspec.ValidationError as error:
        what, path = complaint_of(error)
        name = re.split(r"[.\[]", path)[0]
        raise ConfigError(f"{(places or {}).get(name, name)}: {what}") from None


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a user may choose about the engine. ``description`` is the help text of the flag of the same name."""

    model: Annotated[str, Meta(description="demo model alias, directory, .gguf file or hub id")]
    tokenizer: Annotated[str | None, Meta(description="directory or tokenizer.json to use instead of the model's own")] = None
    revision: Annotated[str | None, Meta(description="hub revision (branch, tag or commit)")] = None
    load_format: Annotated[
        Literal["auto", "safetensors", "gguf", "dummy"], Meta(description="where weights come from; dummy: random")
    ] = "auto"
    dtype: Annotated[
        Dtype,
        Meta(
            description="weights and activations; auto: bfloat16 unless the model is float32; half, float16: refused, as they "
            "are not computed on a CPU"
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Meta(
            description="of weights; stored: a GGUF file's own integers; none: plain numbers; int8, int4: done when loading; "
            "auto: stored where a file has integers, but none with AMX or --dtype float32"
        ),
    ] = "auto"
    activation_bits: Annotated[
        Literal[8, 16],
        Meta(description="of activations that meet integer weights; 16: as exact as plain numbers, 8: faster"),
    ] = 16
    kv_cache_dtype: Annotated[
        KVCacheDtype, Meta(description="of the KV cache; auto: as dtype; int8: with a scale for each token and kv head")
    ] = "auto"
    max_model_len: Annotated[Positive | None, Meta(description="longest prompt plus output in tokens; default: the model")] = (
        None
    )
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096, description="sequences computed at once")] = 128
    max_num_batched_tokens: Annotated[
        int, Meta(ge=1, le=2**20, description="tokens computed in one step; more: longer waits")
    ] = 512
    enable_chunked_prefill: Annotated[bool, Meta(description="split long prompts over steps")] = True
    block_size: Annotated[int, Meta(ge=1, le=256, description="tokens in one KV block")] = 16
    enable_prefix_caching: Annotated[bool, Meta(description="keep finished blocks for prompts that begin alike")] = True
    kv_allocation: Annotated[
        KVAllocation,
        Meta(
            description="of the KV cache; the others are baselines to compare with: contiguous regions of the longest length, "
            "of the output rounded up to a power of two, of the true length; fastertransformer: whole batches, longest length; "
            "they have no prefix caching and never preempt"
        ),
    ] = "paged"
    pin_prefix: Annotated[
        tuple[str, ...],
        Meta(
            description="files with prefixes to compute at the start and keep in the KV cache: the text that prompts begin "
            "with, or (.json) the messages that chats begin with, such as a system prompt"
        ),
    ] = ()
    gpu_memory_utilization: Annotated[
        Fraction | None, Meta(description="fraction of the device's usable memory for Octavo; default 0.4 on a CPU")
    ] = None
    kv_cache_memory_bytes: Annotated[Positive | None, Meta(description="exact size of the KV cache in bytes")] = None
    num_gpu_blocks_override: Annotated[Positive | None, Meta(description="exact number of device blocks")] = None
    swap_space: Annotated[
        float, Meta(ge=0, le=2**14, description="GiB of host memory for swapped-out blocks; up to 1: less if memory is short")
    ] = 1.0
    preemption_mode: Annotated[
        PreemptionMode,
        Meta(description="what happens to a group's blocks when they run out; auto: whichever is faster, as steps measure it"),
    ] = "auto"
    scheduling_policy: Annotated[SchedulingPolicy, Meta(description="order of the queue; fair: API keys take turns")] = "fcfs"
    async_scheduling: Annotated[bool, Meta(description="plan the next step while the current one is computed")] = True
    enforce_eager: Annotated[bool, Meta(description="run the model op by op instead of replaying a recording of it")] = False
    spec_method: Annotated[
        Literal["ngram", "none"],
        Meta(
            description="tokens guessed and verified beside the next one where few sequences run, outputs as without; "
            "ngram: by prompt lookup"
        ),
    ] = "ngram"
    spec_tokens: Annotated[int, Meta(ge=1, le=16, description="most of them in a step")] = 8
    max_logprobs: Annotated[int, Meta(ge=0, le=20, description="most log-probabilities a request may ask for")] = 20
    seed: Annotated[
        int, Meta(ge=-(2**63), le=2**63 - 1, description="of requests that bring none, when run offline; of dummy weights")
    ] = 0
    backend: Annotated[Literal["cpu", "reference"], Meta(description="where ops run")] = "cpu"
    isa: Annotated[
        Literal["auto", "generic", "avx2", "avx512", "avx512_bf16", "amx"],
        Meta(description="instruction set of the cpu backend; auto: the best this machine has"),
    ] = "auto"
    num_threads: Annotated[Positive | None, Meta(description="compute threads; default: the cores this process may use")] = None
    chat_template: Annotated[str | None, Meta(description="file with a Jinja chat template instead of the model's")] = None


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position scaling, as in a checkpoint's ``rope_scaling``/``rope_parameters``."""

    rope_type: Literal["default", "linear", "dynamic", "llama3", "yarn"]
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one checkpoint, whatever file format they came from. Sizes are counts of elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] | None = None
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    integer_types: tuple[str, ...] = ()
    """Types of a GGUF file's matrices that are stored as integers, such as Q4_1."""
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: dict[str, Any] = {}
    """Sampling defaults of generation_config.json: temperature, top_p, top_k, min_p, repetition_penalty."""

    def window_of(self, layer: int) -> int | None:
        """The sliding window of one layer in tokens, the current one included; None: the layer sees everything."""
        if self.sliding_layers is not None and not self.sliding_layers[layer]:
            return None
        return self.sliding_window
