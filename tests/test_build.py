"""Choices that the composition root makes: dtypes, context, and how many blocks."""

import contextlib
import math
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo import build, build_memory, build_resolve
from octavo.backends.base import KVCacheSpec
from octavo.backends.reference.backend import ReferenceBackend
from octavo.commands import flags, serve
from octavo.config import ConfigError, EngineConfig, ModelConfig, RopeScaling
from octavo.memory.contiguous import RESERVATIONS, ContiguousKVManager
from octavo.memory.interface import KVManager
from octavo.memory.kv_cache_manager import KVCacheManager
from octavo.models import load_model, matrix_sizes
from octavo.weights.hf_config import MAX_POSITIONS
from octavo.weights.source import DummySource
from tests.server.tiny import write_tiny_llama

GIB = 2**30
MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position_embeddings=4096,
)


def resolve(*, memory: int = 16 * GIB, weights: int = GIB, **changes: Any) -> tuple[int, KVCacheSpec]:
    config = EngineConfig(model="m", **changes)
    spec = build_resolve.kv_cache_spec(config, MODEL, build_resolve.resolve_dtype(config, MODEL))
    length = build_resolve.resolve_max_model_len(config, MODEL)
    return build_memory.resolve_num_blocks(config, spec, max_model_len=length, memory=memory, weight_bytes=weights), spec


def commands_in(message: str) -> list[dict[str, Any]]:
    """What each command that an error message proposes asks for, as the command itself would read it."""
    found = []
    for command in re.findall(r"`octavo serve ([^`]*)`", message):
        config = flags.configure(EngineConfig, serve.parser().parse_args(shlex.split(command)), {})
        assert config.model == "m"
        found.append({name: value for name, value in msgspec.structs.asdict(config).items() if name != "model"})
    return found


LARGE = msgspec.structs.replace(
    MODEL,
    vocab_size=128_000,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
)
STORED = int(4.9 * GIB)


def fit(*, memory: int, stored: bool, model: ModelConfig = LARGE, **changes: Any) -> None:
    """Whether a model of eight billion weights can be loaded, and whether there is a pool beside them."""
    config = EngineConfig(model="m", **changes)
    dtype, length = build_resolve.resolve_dtype(config, model), build_resolve.resolve_max_model_len(config, model)
    spec = build_resolve.kv_cache_spec(config, model, dtype)
    types = ("Q4_K",) if stored else ()
    model = msgspec.structs.replace(model, integer_types=types)
    kind = "gguf" if stored else "safetensors"
    weight_format = build_resolve.resolve_weight_format(config, kind, model, dtype=dtype, isa="avx512")
    build_memory.check_weights_fit(
        config,
        model,
        spec,
        weight_format=weight_format,
        dtype=dtype,
        stored_bytes=STORED if stored else None,
        max_model_len=length,
        memory=memory,
    )
    weights = {"stored": STORED, "int4": int(5.3 * GIB), "int8": int(8.0 * GIB)}.get(weight_format, 0)
    build_memory.resolve_num_blocks(config, spec, max_model_len=length, memory=memory, weight_bytes=weights)


@pytest.mark.parametrize(
    ("memory", "stored", "changes", "proposed"),
    [
        (11, True, {"quantization": "none"}, ["stored", "int8", "int4"]),
        (8, True, {"quantization": "none"}, ["stored", "int4"]),
        (6, True, {"quantization": "none"}, ["stored", "int4"]),
        (20, True, {"dtype": "float32"}, ["stored", "int8", "int4"]),
        (20, True, {"dtype": "float32", "quantization": "none"}, ["none", "stored", "int8"]),
        (4, True, {}, []),
        (10, False, {}, ["int8", "int4"]),
        (7, False, {"quantization": "int8"}, ["int4"]),
        (14, False, {"dtype": "float32"}, ["auto", "int8", "int4"]),
    ],
)
def test_weights_that_do_not_fit_are_told_before_they_are_loaded(
    memory: int, stored: bool, changes: dict[str, Any], proposed: list[str]
) -> None:
    with pytest.raises(ConfigError, match=f"at least .* GiB .* there are {memory}.0 GiB of memory to use") as caught:
        fit(memory=memory * GIB, stored=stored, **changes)
    commands = commands_in(str(caught.value))
    assert [command["quantization"] for command in commands] == proposed and "\n" not in str(caught.value)
    for command in commands:
        fit(memory=memory * GIB, stored=stored, **command)
    assert ("take a smaller model" in str(caught.value)) == (not proposed)


def test_swap_space_is_memory_that_there_is() -> None:
    for asked, memory in ((8.0, 8 * GIB), (1.0, 2 * GIB), (0.0, 0), (0.0, -1)):
        assert build_memory.resolve_swap_space(EngineConfig(model="m", swap_space=asked), memory) == asked
    with pytest.raises(ConfigError, match=r"--swap-space 9 is more than the 8\.0 GiB"):
        build_memory.resolve_swap_space(EngineConfig(model="m", swap_space=9.0), 8 * GIB)
    unused = EngineConfig(model="m", swap_space=9.0, preemption_mode="recompute")
    assert 7.5 < build_memory.resolve_swap_space(unused, 8 * GIB) <= 8.0
    little = EngineConfig(model="m")
    assert 0.2 < build_memory.resolve_swap_space(little, GIB // 2) < 0.5, "with room for what else the processes take"
    assert build_memory.resolve_swap_space(little, 0) == build_memory.resolve_swap_space(little, -GIB) == 0.0


def test_swap_space_is_beside_weights_and_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.backends.cpu.backend.CpuBackend.available_memory", lambda self: 3 * GIB)
    tiny = write_tiny_llama(tmp_path)

    def load(swap_space: float, pool: int) -> build.Parts:
        config = EngineConfig(model=str(tiny), block_size=256, swap_space=swap_space, kv_cache_memory_bytes=pool)
        return build.load_parts(config)

    cache = load(1.0, 5 * GIB // 2).cache
    assert 0 < cache.num_host_blocks * cache.spec.bytes_per_block < GIB // 2
    assert load(1.5, GIB).cache.num_host_blocks == 3 * GIB // 2 // cache.spec.bytes_per_block
    with pytest.raises(ConfigError, match=r"--swap-space 2\.5 is more than the 2\.0 GiB of memory that are left"):
        load(2.5, GIB)


def test_a_pool_by_share_leaves_the_swap_space_that_was_asked_for() -> None:
    def pool(**changes: Any) -> int:
        blocks, spec = resolve(memory=4 * GIB, gpu_memory_utilization=0.9, max_num_seqs=4096, **changes)
        return blocks * spec.bytes_per_block

    assert pool(swap_space=2.0) == GIB
    assert pool(swap_space=2.0, preemption_mode="recompute") == pool(swap_space=1.0) > GIB


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kv_cache_memory_bytes": 500 * GIB}, r"--kv-cache-memory-bytes asks for 500\.0 GiB"),
        ({"num_gpu_blocks_override": 10**12}, "--num-gpu-blocks-override asks for"),
        ({"kv_cache_memory_bytes": 15 * GIB + 2**20}, "--kv-cache-memory-bytes asks for"),
    ],
)
def test_a_pool_that_memory_does_not_hold_beside_the_weights(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"{words}.* beside the weights 15\.0 GiB of memory are left: ask for less"):
        resolve(**asked)
    assert resolve(kv_cache_memory_bytes=15 * GIB)[0] > 0


@pytest.mark.parametrize("asked", [{}, {"kv_cache_memory_bytes": 2**50}, {"num_gpu_blocks_override": 10**9}])
def test_a_context_that_memory_does_not_hold_is_told_before_anything_is_made(asked: dict[str, Any]) -> None:
    model = msgspec.structs.replace(LARGE, max_position_embeddings=1_000_000)

    def check(**changes: Any) -> None:
        config = EngineConfig(model="m", **changes)
        spec = build_resolve.kv_cache_spec(config, model, "bfloat16")
        length = build_resolve.resolve_max_model_len(config, model)
        build_memory.check_context_fits(config, spec, max_model_len=length, memory=16 * GIB, weight_bytes=STORED)
        weights = int(STORED * 1.05) + length * model.head_dim * 4
        build_memory.resolve_num_blocks(config, spec, max_model_len=length, memory=16 * GIB, weight_bytes=weights)

    with pytest.raises(
        ConfigError, match=r"one sequence of 1000000 tokens needs 122\.1 GiB of KV cache, .* 11\.1 GiB"
    ) as caught:
        check(**asked)
    (command,) = commands_in(str(caught.value))
    assert 50_000 < command["max_model_len"] < 90_000
    check(**command)
    with pytest.raises(ConfigError, match="Lower --max-model-len"):
        build_memory.check_context_fits(
            EngineConfig(model="m"),
            build_resolve.kv_cache_spec(EngineConfig(model="m"), model, "bfloat16"),
            max_model_len=10_000,
            memory=STORED,
            weight_bytes=STORED,
        )


def test_what_is_made_for_a_context_is_not_made_for_one_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.layers.rotary.rotary_table", lambda *arguments, **named: pytest.fail("was made"))
    tiny = write_tiny_llama(tmp_path, max_position_embeddings=MAX_POSITIONS)
    monkeypatch.setattr("octavo.backends.cpu.backend.CpuBackend.available_memory", lambda self: GIB)
    with pytest.raises(ConfigError, match=r"This would work: .* --max-model-len"):
        build.load(EngineConfig(model=str(tiny)))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("octavo.layers.rotary.rotary_table", "load weights"),
        ("octavo.backends.cpu.backend.CpuBackend.kv_cache", "allocate kv cache"),
        ("octavo.backends.cpu.backend.CpuBackend.capture", "start engine"),
    ],
)
def test_memory_that_runs_out_is_an_error_of_the_configuration(
    place: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **named: Any) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(place, fails)
    with pytest.raises(ConfigError, match=f"not enough memory to {words}: lower --kv-cache-memory-bytes .*--max-model-len"):
        build.load(EngineConfig(model=str(write_tiny_llama(tmp_path)), swap_space=0.0))


def test_a_context_is_shortened_where_only_that_makes_room() -> None:
    model = msgspec.structs.replace(LARGE, max_position_embeddings=131_072)
    with pytest.raises(ConfigError) as caught:
        fit(memory=8 * GIB, stored=True, model=model, quantization="none")
    commands = commands_in(str(caught.value))
    assert [command["quantization"] for command in commands] == ["stored", "int4"]
    for command in commands:
        assert 8_000 < command["max_model_len"] < 25_000
        fit(memory=8 * GIB, stored=True, model=model, **command)


@pytest.mark.parametrize(
    ("memory", "changes"), [(14, {}), (40, {"quantization": "none"}), (9, {"gpu_memory_utilization": 0.7})]
)
def test_weights_that_fit_are_loaded(memory: int, changes: dict[str, Any]) -> None:
    fit(memory=memory * GIB, stored=True, **changes)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_has_as_many_numbers_as_it_loads(tied: bool) -> None:
    class Counting(DummySource):
        layers = vocabulary = 0

        def check(self, name: str, shape: tuple[int, ...]) -> None:
            if name.startswith("model.layers."):
                self.layers += math.prod(shape)
            else:
                self.vocabulary += math.prod(shape)

    model = msgspec.structs.replace(MODEL, tie_word_embeddings=tied, head_dim=24)
    source = Counting()
    load_model(model, source, ReferenceBackend(), max_model_len=64)
    assert matrix_sizes(model) == (source.layers, source.vocabulary)


def test_a_share_of_memory_beside_the_weights_and_never_more_than_is_useful() -> None:
    blocks, spec = resolve(memory=GIB, weights=200 * 2**20)
    assert blocks == (int(GIB * 0.4) - 200 * 2**20) // spec.bytes_per_block
    assert resolve(memory=GIB, weights=200 * 2**20, gpu_memory_utilization=0.5)[0] > blocks
    assert resolve()[0] == 128 * 4096 // 16
    assert resolve(kv_cache_memory_bytes=10 * 2**20)[0] == 10 * 2**20 // spec.bytes_per_block
    assert resolve(num_gpu_blocks_override=300)[0] == 300
    in_int8, int8_spec = resolve(kv_cache_memory_bytes=10 * 2**20, kv_cache_dtype="int8")
    assert (in_int8, int8_spec.dtype) == (10 * 2**20 // (spec.bytes_per_block * (16 + 4) // 32), "int8")


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_cache_memory_bytes": 100_000},
        {"kv_cache_memory_bytes": 100_000, "dtype": "float32"},
        {"num_gpu_blocks_override": 7},
        {"memory": 30 * 2**20, "weights": 11 * 2**20},
        {"memory": 30 * 2**20, "weights": 13 * 2**20},
        {"memory": 20 * 2**20, "weights": 19 * 2**20},
    ],
)
def test_a_pool_that_is_too_small_is_told_with_commands_that_work(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(**changes)
    commands = commands_in(str(caught.value))
    assert commands and "\n" not in str(caught.value)
    machine = {name: changes[name] for name in ("memory", "weights") if name in changes}
    for command in commands:
        assert resolve(**machine, **command)[0] > 0


def test_keys_and_values_in_8_bits_are_proposed_where_they_would_do() -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype int8"):
        resolve(kv_cache_memory_bytes=1_500_000)
    assert resolve(kv_cache_memory_bytes=1_500_000, kv_cache_dtype="int8")[0] >= 256
    with pytest.raises(ConfigError, match=r"^(?!.*--kv-cache-dtype)"):
        resolve(kv_cache_memory_bytes=1_000_000)


def test_a_model_that_leaves_no_room_is_said_to() -> None:
    with pytest.raises(ConfigError, match="no room is left"):
        resolve(memory=20 * 2**20, weights=20 * 2**20)


def test_three_ways_when_the_machine_has_room() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(kv_cache_memory_bytes=100_000)
    assert len(commands_in(str(caught.value))) == 3


@pytest.mark.parametrize(
    ("asked", "stored", "expected"),
    [
        ("auto", "float32", "float32"),
        ("auto", "float16", "bfloat16"),
        ("auto", "bfloat16", "bfloat16"),
        ("float", "bfloat16", "float32"),
        ("bfloat16", "float32", "bfloat16"),
    ],
)
def test_dtype(asked: Any, stored: Any, expected: str) -> None:
    model = ModelConfig(**{name: getattr(MODEL, name) for name in MODEL.__struct_fields__} | {"dtype": stored})
    assert build_resolve.resolve_dtype(EngineConfig(model="m", dtype=asked), model) == expected


@pytest.mark.parametrize(
    ("scaling", "most"),
    [
        (None, 4096),
        (RopeScaling(rope_type="llama3", factor=8.0, original_max_position_embeddings=1024), 4096),
        (RopeScaling(rope_type="linear", factor=2.5), 10240),
        (RopeScaling(rope_type="dynamic", factor=2.0), 8192),
        (RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=4096), 16384),
        (RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=512), 4096),
    ],
)
def test_as_long_as_the_positions_stretch(scaling: RopeScaling | None, most: int) -> None:
    model = msgspec.structs.replace(MODEL, rope_scaling=scaling)
    assert build_resolve.resolve_max_model_len(EngineConfig(model="m"), model) == 4096
    assert build_resolve.resolve_max_model_len(EngineConfig(model="m", max_model_len=most), model) == most
    with pytest.raises(ConfigError, match=f"more than the {most} positions"):
        build_resolve.resolve_max_model_len(EngineConfig(model="m", max_model_len=most + 1), model)


@pytest.mark.parametrize(
    ("size", "backend", "fine"), [(104, "cpu", True), (100, "cpu", False), (264, "cpu", False), (100, "reference", True)]
)
def test_heads_without_kernels_are_refused_before_anything_is_loaded(size: int, backend: Any, fine: bool) -> None:
    config, model = EngineConfig(model="m", backend=backend), msgspec.structs.replace(MODEL, head_dim=size)
    with contextlib.nullcontext() if fine else pytest.raises(ConfigError, match=f"heads have {size} elements"):
        build_resolve.check_heads(config, model)


def manager(num_blocks: int, **changes: Any) -> KVManager:
    config = EngineConfig(model="m", max_model_len=1000, max_num_seqs=4, **changes)
    return build.make_kv_manager(config, max_model_len=1000, num_blocks=num_blocks, num_host_blocks=0)


def test_how_the_cache_is_allocated_is_chosen_by_name() -> None:
    assert isinstance(manager(63), KVCacheManager)
    for name in RESERVATIONS:
        assert isinstance(manager(64, kv_allocation=name), ContiguousKVManager)
    assert manager(63, kv_allocation="orca-oracle").device.num_blocks == 63, "shorter sequences fit"
    for name in ("orca-max", "fastertransformer"):
        message = f"{name} reserves 64 blocks .* only 63: set --max-model-len 512 or --num-gpu-blocks-override 64"
        with pytest.raises(ConfigError, match=message):
            manager(63, kv_allocation=name)


def test_what_is_reserved_is_never_swapped_and_never_shared() -> None:
    with pytest.raises(ConfigError, match="leave out --pin-prefix"):
        build_resolve.check_budgets(EngineConfig(model="m", kv_allocation="orca-max", pin_prefix=("file",)), 100)
    with pytest.raises(ConfigError, match="leave out --preemption-mode swap"):
        build_resolve.check_budgets(EngineConfig(model="m", kv_allocation="orca-max", preemption_mode="swap"), 100)
