"""The composition root: a configuration becomes a running engine. The only place that picks concrete classes.

Two doors: ``load`` for whoever computes, ``open_frontend`` for whoever only needs text and limits.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from octavo.backends.base import Backend, BatchCapacity, KVCache, KVCacheSpec
from octavo.build_memory import check_context_fits, check_weights_fit, resolve_num_blocks, resolve_swap_space
from octavo.build_packed import PackingBackend, WeightsToKeep, find_packed
from octavo.build_resolve import (
    check_budgets,
    check_heads,
    kv_cache_spec,
    resolve_dtype,
    resolve_max_model_len,
    resolve_weight_format,
)
from octavo.config import ConfigError, EngineConfig, ModelConfig
from octavo.engine.engine import Engine
from octavo.engine.grammar import GrammarSource
from octavo.engine.scheduler import Scheduler
from octavo.engine.speculation import FEW
from octavo.executor.local import LocalExecutor
from octavo.layers.loader import Keep, WeightFormat, make_now
from octavo.memory.contiguous import ContiguousKVManager
from octavo.memory.interface import KVManager
from octavo.memory.kv_cache_manager import KVCacheManager
from octavo.models import Model, load_model
from octavo.quant.gguf import IN_NUMPY, Unpack
from octavo.quant.integer import Quantize, quantize
from octavo.sampling_params import ParameterError
from octavo.structured.matching import GrammarThread
from octavo.structured.vocabulary import Vocabulary, vocabulary_of
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.hub import resolve_model
from octavo.worker.isolation import Isolate, Probe
from octavo.worker.model_runner import ModelRunner

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Loaded:
    """A running engine and what people want to know about it. ``facts["phases"]``: seconds of each part of the start-up."""

    engine: Engine
    model_config: ModelConfig
    max_model_len: int
    facts: dict[str, Any]
    grammars: GrammarSource


@dataclass(frozen=True)
class Parts:
    """What an engine is assembled from: a loaded model and a cache for it, on one backend."""

    backend: Backend
    model: Model
    model_config: ModelConfig
    kv: KVManager
    cache: KVCache
    max_model_len: int
    weight_format: WeightFormat


@dataclass(frozen=True)
class Frontend:
    """What turns text into token ids and back, and the limits that a request must respect."""

    tokenizer: Any  # octavo.tokenizer.Tokenizer; imported late, because it is slow to import
    model_config: ModelConfig
    max_model_len: int
    vocab_size: int

    def vocabulary(self) -> Vocabulary:
        """What grammars must know of the model's tokens."""
        return vocabulary_of(self.tokenizer, vocab_size=self.vocab_size, eos_token_ids=self.model_config.eos_token_ids)


@dataclass
class _Stopwatch:
    """Seconds of each phase of the start-up, told to ``progress`` as it happens. A phase that finds no memory raises
    ``ConfigError``."""

    progress: Progress = lambda phase, fraction: None
    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        self.progress(name, 0.0)
        try:
            yield
        except MemoryError as error:
            raise ConfigError(
                f"there is not enough memory to {name}: lower --kv-cache-memory-bytes or --gpu-memory-utilization, "
                "--swap-space, --max-model-len or --max-num-batched-tokens"
            ) from error
        self.phases[name] = time.monotonic() - start


def load(
    config: EngineConfig,
    *,
    progress: Progress | None = None,
    on_backend: Callable[[Backend], None] = lambda backend: None,
    isolate: bool = False,
    probe: Probe | None = None,
) -> Loaded:
    """Build the engine. ``on_backend`` is given the backend before anything is computed. With ``isolate`` an error in a step
    ends the requests that cause it, without it is raised; ``probe``, for tests, may then make a sequence fail.

    Raises:
        ConfigError: the configuration cannot work, in one line that says what to change.
    """
    watch = _Stopwatch(progress) if progress else _Stopwatch()

    def shown(backend: Backend) -> Backend:
        on_backend(backend)
        return backend

    parts = load_parts(config, around=shown, watch=watch)
    grammars = GrammarThread(lambda: open_frontend(config).vocabulary())  # opened when the first grammar is asked for
    with watch.phase("start engine"):
        engine = assemble(config, parts, grammars=grammars, isolate=Isolate(probe) if isolate else None)
    spec, backend = parts.cache.spec, parts.backend
    return Loaded(
        engine=engine,
        model_config=parts.model_config,
        max_model_len=parts.max_model_len,
        grammars=grammars,
        facts={
            "model": config.model,
            "architecture": parts.model_config.architecture,
            "dtype": backend.compute_dtype,
            "weight_format": parts.weight_format,
            "activation_bits": config.activation_bits,
            "kv_cache_dtype": spec.dtype,
            "backend": backend.describe(),
            "isa": getattr(backend, "isa", config.backend),
            "block_size": config.block_size,
            "num_device_blocks": parts.cache.num_blocks,
            "num_host_blocks": parts.cache.num_host_blocks,
            "kv_cache_bytes": parts.cache.num_blocks * spec.bytes_per_block,
            "max_model_len": parts.max_model_len,
            "max_concurrency": parts.cache.num_blocks / (-(-parts.max_model_len // config.block_size)),
            "phases": watch.phases,
        },
    )


def pack(config: EngineConfig, progress: Progress) -> tuple[Path, int]:
    """Pack the weights of a model into a file, from which this machine starts it sooner. Returns the file and its size.

    Raises:
        ConfigError: as ``load``; the file cannot be written; this backend packs nothing that can be kept.
    """
    watch = _Stopwatch(progress)
    opened = _open_model(config, watch, lambda backend: backend)
    if opened.checkpoint.kind == "dummy" or not isinstance(opened.backend, PackingBackend):
        raise ConfigError("only weights of a real model, on --backend cpu, can be kept packed")
    kept = WeightsToKeep(opened.backend)
    _load_weights(config, opened, watch, kept.weight)
    with watch.phase("write"):
        return kept.write(opened.checkpoint, opened.weight_format, lambda fraction: watch.progress("write", fraction))


@dataclass(frozen=True)
class _OpenedModel:
    checkpoint: Checkpoint
    backend: Backend
    weight_format: WeightFormat
    spec: KVCacheSpec
    max_model_len: int
    memory_before: int
    least_weights: int


def _open_model(config: EngineConfig, watch: _Stopwatch, around: Callable[[Backend], Backend]) -> _OpenedModel:
    with watch.phase("open model"):
        checkpoint = _open(config, unpack=_unpacker(config))
        max_model_len = resolve_max_model_len(config, checkpoint.config)
        check_budgets(config, max_model_len)
    with watch.phase("start backend"):
        dtype = resolve_dtype(config, checkpoint.config)
        backend = around(make_backend(config, dtype))
        isa = getattr(backend, "isa", config.backend)
        weight_format = resolve_weight_format(config, checkpoint.kind, checkpoint.config, dtype=dtype, isa=isa)
        check_heads(config, checkpoint.config)
        memory_before = backend.available_memory()
        resolve_swap_space(config, memory_before)  # what cannot fit even alone is refused before anything is loaded
        spec = kv_cache_spec(config, checkpoint.config, dtype)
        least_weights = check_weights_fit(
            config,
            checkpoint.config,
            spec,
            weight_format=weight_format,
            dtype=dtype,
            stored_bytes=checkpoint.path.stat().st_size if checkpoint.config.integer_types else None,
            max_model_len=max_model_len,
            memory=memory_before,
        )
    return _OpenedModel(checkpoint, backend, weight_format, spec, max_model_len, memory_before, least_weights)


def _load_weights(config: EngineConfig, opened: _OpenedModel, watch: _Stopwatch, keep: Keep) -> Model:
    with watch.phase("load weights"):
        return load_model(
            opened.checkpoint.config,
            opened.checkpoint.source,
            opened.backend,
            max_model_len=opened.max_model_len,
            weight_format=opened.weight_format,
            quantize=_quantizer(config),
            progress=lambda fraction: watch.progress("load weights", fraction),
            keep=keep,
        )


def load_parts(
    config: EngineConfig,
    *,
    around: Callable[[Backend], Backend] = lambda backend: backend,
    watch: _Stopwatch | None = None,
) -> Parts:
    """Everything but the engine, for whoever looks inside. ``around`` may wrap the backend before anything is built on it.

    Raises:
        ConfigError: as ``load``.
    """
    watch = watch or _Stopwatch()
    opened = _open_model(config, watch, around)
    checkpoint, backend, spec = opened.checkpoint, opened.backend, opened.spec
    max_model_len, weight_format, memory_before = opened.max_model_len, opened.weight_format, opened.memory_before
    check_context_fits(config, spec, max_model_len=max_model_len, memory=memory_before, weight_bytes=opened.least_weights)
    packed = find_packed(checkpoint, weight_format, backend)
    model = _load_weights(config, opened, watch, packed.weight if packed else make_now)
    with watch.phase("allocate kv cache"):
        # A mapped file's memory counts as available, but this process needs it.
        weight_bytes = max(0, memory_before - backend.available_memory()) + (packed.file.num_bytes if packed else 0)
        num_blocks = resolve_num_blocks(
            config, spec, max_model_len=max_model_len, memory=memory_before, weight_bytes=weight_bytes
        )
        left = memory_before - weight_bytes - num_blocks * spec.bytes_per_block
        config = msgspec.structs.replace(config, swap_space=resolve_swap_space(config, left))
        name = f"{checkpoint.path}:{weight_format}:{config.activation_bits}"
        kv, cache = make_kv_cache(config, spec, backend, max_model_len=max_model_len, num_blocks=num_blocks, namespace=name)
    return Parts(backend, model, checkpoint.config, kv, cache, max_model_len, weight_format)


def make_kv_cache(
    config: EngineConfig, spec: KVCacheSpec, backend: Backend, *, max_model_len: int, num_blocks: int, namespace: str = ""
) -> tuple[KVManager, KVCache]:
    """The bookkeeping of ``num_blocks`` device blocks and the tensors that they stand for. ``namespace`` names the model in
    block hashes."""
    swappable = config.kv_allocation == "paged"
    num_host_blocks = int(config.swap_space * 2**30) // spec.bytes_per_block if swappable else 0
    kv = make_kv_manager(
        config,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        namespace=f"{namespace}:{backend.compute_dtype}:{spec.dtype}",
    )
    return kv, backend.kv_cache(spec, num_blocks=num_blocks, num_host_blocks=num_host_blocks)


def make_kv_manager(
    config: EngineConfig, *, max_model_len: int, num_blocks: int, num_host_blocks: int, namespace: str = ""
) -> KVManager:
    """The bookkeeping of a KV cache, as ``config.kv_allocation`` names it; there need be no tensors behind it. Host blocks are
    for "paged" alone.

    Raises:
        ConfigError: no sequence would ever fit.
    """
    if config.kv_allocation == "paged":
        return KVCacheManager(
            block_size=config.block_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_rows=config.max_num_seqs,
            max_blocks=-(-max_model_len // config.block_size),
            enable_prefix_caching=config.enable_prefix_caching,
            namespace=namespace,
        )
    contiguous = ContiguousKVManager(
        allocation=config.kv_allocation,
        block_size=config.block_size,
        num_blocks=num_blocks,
        num_rows=config.max_num_seqs,
        max_model_len=max_model_len,
    )
    smallest = contiguous.blocks_needed(prompt_len=1, max_len=2, num_sequences=1)
    if smallest > num_blocks:
        fitting = config.block_size << (num_blocks.bit_length() - 1)
        raise ConfigError(
            f"--kv-allocation {config.kv_allocation} reserves {smallest} blocks (a power of two) for every sequence, but "
            f"there are only {num_blocks}: set --max-model-len {fitting} or --num-gpu-blocks-override {smallest}"
        )
    return contiguous


def assemble(
    config: EngineConfig, parts: Parts, *, grammars: GrammarSource | None = None, isolate: Isolate | None = None
) -> Engine:
    """An engine over loaded parts, warmed up."""
    model_config, max_model_len = parts.model_config, parts.max_model_len
    runner = ModelRunner(
        parts.model,
        parts.cache,
        parts.backend,
        max_num_seqs=config.max_num_seqs,
        vocab_size=model_config.vocab_size,
        eos_token_ids=model_config.eos_token_ids,
        capture=None if config.enforce_eager else _largest_batch(config, max_model_len, model_config.vocab_size),
        isolate=isolate,
    )
    runner.warm_up()
    executor = LocalExecutor(runner)
    parts.cache.find_pages()
    scheduler = Scheduler(
        config,
        parts.kv,
        max_model_len=max_model_len,
        eos_token_ids=model_config.eos_token_ids,
        grammars=grammars,
    )
    return Engine(scheduler, executor, max_in_flight=2 if config.async_scheduling else 1)


def _largest_batch(config: EngineConfig, max_model_len: int, vocab_size: int) -> BatchCapacity:
    tokens = config.max_num_batched_tokens
    drafts = 0 if config.spec_method == "none" else config.spec_tokens * min(config.max_num_seqs, FEW)
    return BatchCapacity(
        tokens=tokens,
        sequences=config.max_num_seqs,
        blocks=-(-max_model_len // config.block_size),
        logits_rows=min(tokens, config.max_num_seqs + drafts),
        vocab_size=vocab_size,
    )


def open_frontend(config: EngineConfig) -> Frontend:
    """Tokenizer and limits, without weights.

    Raises:
        ConfigError: the model cannot be opened or has no usable tokenizer.
    """
    from octavo.tokenizer import open_tokenizer

    checkpoint = _open(config)
    return Frontend(
        tokenizer=open_tokenizer(checkpoint, override=config.tokenizer, chat_template=config.chat_template),
        model_config=checkpoint.config,
        max_model_len=resolve_max_model_len(config, checkpoint.config),
        vocab_size=checkpoint.config.vocab_size,
    )


def _open(config: EngineConfig, *, unpack: Unpack = IN_NUMPY) -> Checkpoint:
    path = resolve_model(config.model, revision=config.revision, progress=True)
    return open_checkpoint(path, load_format=config.load_format, seed=config.seed, unpack=unpack)


def _unpacker(config: EngineConfig) -> Unpack:
    """What unpacks GGUF blocks: native code where it is there anyway."""
    if config.backend == "reference":
        return IN_NUMPY
    from octavo.backends.cpu.topology import default_threads
    from octavo.backends.cpu.unpack import native_unpack

    return native_unpack(config.num_threads or default_threads())


def _quantizer(config: EngineConfig) -> Quantize:
    """What makes integers of plain weights: native code where it is there anyway."""
    if config.backend == "reference":
        return quantize
    from octavo.backends.cpu.quantize import native_quantize
    from octavo.backends.cpu.topology import default_threads

    return native_quantize(config.num_threads or default_threads(), isa=config.isa)


def make_backend(config: EngineConfig, dtype: str) -> Backend:
    """The one backend of this engine, by name.

    Raises:
        ConfigError: the kernels are not built, or this machine cannot run them as asked.
    """
    if config.backend == "reference":
        from octavo.backends.reference.backend import ReferenceBackend

        return ReferenceBackend(compute_dtype=dtype, activation_bits=config.activation_bits)
    from octavo.backends.cpu.backend import CpuBackend

    try:
        return CpuBackend(
            compute_dtype=dtype,
            isa=config.isa,
            num_threads=config.num_threads,
            activation_bits=config.activation_bits,
        )
    except ImportError as error:
        raise ConfigError(f"the native kernels are not built: run `pip install .` or `make native` ({error})") from error
    except ValueError as error:
        raise ConfigError(f"{error}; `octavo doctor` shows what this machine can run") from error


def pin_prefixes(engine: Engine, config: EngineConfig, prefixes: Sequence[Sequence[int]]) -> None:
    """Pin the prefixes of ``config.pin_prefix``, given as token ids in the same order.

    Raises:
        ConfigError: one of them cannot be pinned; the message names its file.
    """
    for file, token_ids in zip(config.pin_prefix, prefixes, strict=True):
        try:
            engine.pin_prefix(token_ids)
        except ParameterError as error:
            raise ConfigError(f"--pin-prefix {file}: {error}") from None
