"""What fits in memory: whether the weights do, and how many KV blocks beside them.

Decides by numbers alone. An error proposes commands that would work.
"""

import shlex
from dataclasses import replace
from typing import Any

import msgspec

from octavo.backends.base import KVCacheSpec
from octavo.config import ConfigError, EngineConfig, KVCacheTooLargeError, ModelConfig
from octavo.layers.loader import WeightFormat
from octavo.models import matrix_sizes

CPU_MEMORY_FRACTION = 0.4
"""Default share of a CPU's memory: the machine stays usable."""

_BITS = {"float32": 32.0, "bfloat16": 12.0}
"""Of a plain number in memory, at least: bfloat16 may be packed in twelve bits."""
_SPARE = 1.05
"""Weights in memory over the least that they can be, before they are said to fit."""
_BESIDE = 160 * 2**20
"""Bytes that the two processes of a server take beside weights and KV cache."""
_MOST = 0.95
"""Share of the memory that is left which a proposed command may take."""

_SHORTEST = 512
"""Tokens of context that are worth a command."""
_POOL_BY_SHARE: dict[str, Any] = {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": None}
"""The change of a command that leaves out the flags which give the KV cache a size."""


def resolve_swap_space(config: EngineConfig, memory: int) -> float:
    """GiB of host blocks: what was asked for, or of the little that nobody asked for what is left. ``memory`` is what this
    process can use beside weights and KV cache. Raises ``ConfigError`` where more was asked for than that."""
    asked = _swap_asked_for(config)
    free = max(0, memory if asked else memory - _BESIDE) / 2**30
    if asked > max(0, memory):
        raise ConfigError(
            f"--swap-space {config.swap_space:g} is more than the {free:.1f} GiB of memory that are left: ask for less"
        )
    return min(config.swap_space, free)


def _swap_asked_for(config: EngineConfig) -> int:
    """Bytes of host blocks that there have to be: up to 1 GiB is what nobody asked for."""
    is_used = config.kv_allocation == "paged" and config.preemption_mode != "recompute"
    return int(config.swap_space * 2**30) if is_used and config.swap_space > 1.0 else 0


def check_weights_fit(
    config: EngineConfig,
    model: ModelConfig,
    spec: KVCacheSpec,
    *,
    weight_format: WeightFormat,
    dtype: str,
    stored_bytes: int | None,
    max_model_len: int,
    memory: int,
) -> int:
    """Weights that are too large are refused before they are loaded; else the system ends the process on the way. Returns how
    many bytes they are at least.

    ``stored_bytes`` is the size of a file that has integers of its own. ``memory`` is what this process can use.

    Raises:
        ConfigError: the weights, as small as they can be as asked, are more than that; the message names commands that would
            work.
    """

    def least(weight_format: WeightFormat, dtype: str) -> int:
        if weight_format == "stored" and stored_bytes is not None:
            return stored_bytes
        layers, vocabulary = matrix_sizes(model)
        of_layers = of_vocabulary = _BITS[dtype]
        if weight_format in ("int8", "int4"):
            of_layers, of_vocabulary = (8.5 if weight_format == "int8" else 5.0), 8.5
        return int(layers * of_layers + vocabulary * of_vocabulary) // 8

    needed = least(weight_format, dtype)
    if needed <= memory:
        return needed
    smaller: list[tuple[WeightFormat, str, dict[str, Any]]] = [
        ("stored", dtype, {"quantization": "stored"}),
        ("int8", dtype, {"quantization": "int8"}),
        ("int4", dtype, {"quantization": "int4"}),
    ]
    if dtype == "float32" and weight_format == "plain" and (config.quantization == "none" or stored_bytes is None):
        smaller.insert(0, (weight_format, "bfloat16", {"dtype": "bfloat16"}))
    ways = [
        _command(config, **changes, **room)
        for as_format, as_dtype, changes in smaller
        if (as_format != "stored" or stored_bytes is not None)
        and (room := _room_for(config, spec, max_model_len, memory, int(least(as_format, as_dtype) * _SPARE) + _BESIDE))
        is not None
    ]
    advice = f"These would work: {', or '.join(ways[:3])}" if ways else "Free memory, or take a smaller model"
    kind = dtype if weight_format == "plain" else weight_format
    raise ConfigError(
        f"the weights of {config.model} are at least {needed / 2**30:.1f} GiB ({kind}), and there are "
        f"{memory / 2**30:.1f} GiB of memory to use. {advice}"
    )


def check_context_fits(config: EngineConfig, spec: KVCacheSpec, *, max_model_len: int, memory: int, weight_bytes: int) -> None:
    """Sequences that are too long are refused before anything is made for them.

    ``memory`` is what this process can use, ``weight_bytes`` what weights are of it at least.

    Raises:
        KVCacheTooLargeError: one sequence of ``max_model_len`` would be more than that; the message names a command that would
            work.
    """
    blocks = -(-max_model_len // config.block_size)
    if weight_bytes + blocks * _bytes_per_block(spec) <= memory:
        return
    room = _room_for(config, spec, max_model_len, memory, int(weight_bytes * _SPARE) + _BESIDE)
    advice = "Lower --max-model-len, or free memory"
    if room is not None:
        advice = f"This would work: {_command(config, **_POOL_BY_SHARE, **room)}"
    raise KVCacheTooLargeError(
        f"one sequence of {max_model_len} tokens needs {blocks * spec.bytes_per_block / 2**30:.1f} GiB of KV cache, and "
        f"beside the weights {(memory - weight_bytes) / 2**30:.1f} GiB of memory are left. {advice}"
    )


def _bytes_per_block(spec: KVCacheSpec) -> int:
    """Of a sequence: its keys and values, and the rotations of its positions in float32."""
    return spec.bytes_per_block + spec.block_size * spec.head_dim * 4


def _room_for(
    config: EngineConfig, spec: KVCacheSpec, max_model_len: int, memory: int, weight_bytes: int
) -> dict[str, Any] | None:
    """What to change for one sequence to fit beside so many bytes of weights; None: nothing does it."""
    per_sequence = -(-max_model_len // config.block_size)
    blocks = (int(memory * _MOST) - weight_bytes) // _bytes_per_block(spec)
    if blocks >= per_sequence:
        share = (weight_bytes + per_sequence * _bytes_per_block(spec)) / memory + 0.01
        return {"gpu_memory_utilization": round(share, 2)} if share > _fraction(config) else {}
    length = blocks * config.block_size
    return {"gpu_memory_utilization": _MOST, "max_model_len": length} if length >= _SHORTEST else None


def _fraction(config: EngineConfig) -> float:
    return CPU_MEMORY_FRACTION if config.gpu_memory_utilization is None else config.gpu_memory_utilization


def _command(config: EngineConfig, **changes: Any) -> str:
    """`octavo serve` as it was asked for but for the changes, in backquotes. A change to None leaves a flag out."""
    words = ["octavo", "serve", config.model]
    for field in msgspec.structs.fields(config):
        value = changes.get(field.name, getattr(config, field.name))
        if field.name == "model" or value is None or value == field.default:
            continue
        flag = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *(value if isinstance(value, tuple) else [str(value)])]
    return f"`{shlex.join(words)}`"


def resolve_num_blocks(config: EngineConfig, spec: KVCacheSpec, *, max_model_len: int, memory: int, weight_bytes: int) -> int:
    """Device blocks: what was asked for, or what the memory share leaves beside the weights, and never more than is useful.

    ``memory`` is what this process could use before it loaded ``weight_bytes`` of weights.

    Raises:
        ConfigError: one sequence of ``max_model_len`` would not fit; the message names commands that would work.
        KVCacheTooLargeError: what was asked for is more than the memory that the weights leave.
    """
    per_sequence = -(-max_model_len // config.block_size)
    if config.num_gpu_blocks_override is not None:
        num_blocks = config.num_gpu_blocks_override
    elif config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // spec.bytes_per_block
    else:
        useful = (config.max_num_seqs + len(config.pin_prefix)) * per_sequence
        share = min(int(memory * _fraction(config)), memory - _swap_asked_for(config))
        num_blocks = min(useful, max(0, share - weight_bytes) // spec.bytes_per_block)
    if num_blocks < per_sequence:
        raise ConfigError(_pool_too_small(config, spec, num_blocks, max_model_len, memory, weight_bytes))
    if num_blocks * spec.bytes_per_block > memory - weight_bytes:
        flag = "--kv-cache-memory-bytes" if config.num_gpu_blocks_override is None else "--num-gpu-blocks-override"
        raise KVCacheTooLargeError(
            f"{flag} asks for {num_blocks * spec.bytes_per_block / 2**30:.1f} GiB of KV cache, and beside the weights "
            f"{max(0, memory - weight_bytes) / 2**30:.1f} GiB of memory are left: ask for less"
        )
    return num_blocks


def _fits_as(dtype: str, config: EngineConfig, spec: KVCacheSpec, num_blocks: int, max_model_len: int) -> bool:
    """Whether a pool of the same bytes would do with keys and values in ``dtype``."""
    if config.num_gpu_blocks_override is not None:
        return False
    needed = -(-max_model_len // config.block_size) * replace(spec, dtype=dtype).bytes_per_block
    return needed <= num_blocks * spec.bytes_per_block


def _pool_too_small(
    config: EngineConfig, spec: KVCacheSpec, num_blocks: int, max_model_len: int, memory: int, weight_bytes: int
) -> str:
    """One line with the numbers and up to three commands that would work."""
    needed = -(-max_model_len // config.block_size) * spec.bytes_per_block
    ways: list[dict[str, Any]] = []
    if num_blocks > 0:
        ways.append({"max_model_len": num_blocks * config.block_size})
    smaller = {"float32": "bfloat16", "bfloat16": "int8"}.get(spec.dtype)
    if smaller and _fits_as(smaller, config, spec, num_blocks, max_model_len):
        ways.append({"kv_cache_dtype": smaller})
    enough = (needed + weight_bytes) / memory + 0.01 if memory else 2.0
    if enough <= 1.0:
        ways.append({**_POOL_BY_SHARE, "gpu_memory_utilization": round(enough, 2)})
        ways.append({**_POOL_BY_SHARE, "kv_cache_memory_bytes": needed})
    left = int((memory - weight_bytes) * 0.9) // spec.bytes_per_block
    if not ways and left > 0:
        ways.append(
            {
                **_POOL_BY_SHARE,
                "max_model_len": left * config.block_size,
                "kv_cache_memory_bytes": left * spec.bytes_per_block,
            }
        )
    if not ways:
        mib = 2**20
        return f"the weights take {weight_bytes / mib:.0f} of the {memory / mib:.0f} MiB there are to use: no room is left"
    commands = ", or ".join(_command(config, **way) for way in ways[:3])
    return (
        f"one sequence of {max_model_len} tokens needs {needed / 2**20:.0f} MiB of KV cache, but the pool has "
        f"{num_blocks * spec.bytes_per_block / 2**20:.0f} MiB ({num_blocks} blocks of {config.block_size} tokens). "
        f"These would work: {commands}"
    )
