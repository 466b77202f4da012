"""The composition root of simulations: the real scheduler and memory manager over an executor in virtual time.

The counterpart of ``build.load``: no weights, no device, no tensors. The configuration means what it means there.
"""

from dataclasses import dataclass

from octavo.build import make_kv_manager
from octavo.build_resolve import check_budgets
from octavo.clock import VirtualClock
from octavo.config import ConfigError, EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.scheduler import Scheduler
from octavo.executor.cost_model import CostModel
from octavo.executor.presets import PRESETS, Preset
from octavo.executor.simulated import SimulatedExecutor


@dataclass(frozen=True)
class Simulated:
    """An engine in virtual time. Whoever drives it moves ``clock`` on when there is nothing to compute."""

    engine: Engine
    clock: VirtualClock
    executor: SimulatedExecutor
    max_model_len: int
    vocab_size: int


def simulate(
    config: EngineConfig,
    cost: CostModel,
    *,
    num_blocks: int,
    max_model_len: int,
    vocab_size: int,
    num_host_blocks: int = 0,
) -> Simulated:
    """An engine whose steps take what ``cost`` says. Of ``config`` count the fields of scheduling and of memory, except that
    sizes in blocks are given here. No token ends a sequence: its length is its request's ``max_tokens``.

    Raises:
        ConfigError: the configuration cannot work, or a sequence of ``max_model_len`` tokens would not fit.
    """
    check_budgets(config, max_model_len)
    if num_blocks * config.block_size < max_model_len:
        raise ConfigError(
            f"one sequence of {max_model_len} tokens does not fit into {num_blocks} blocks of {config.block_size} tokens: "
            "simulate a shorter context or more KV slots"
        )
    clock = VirtualClock()
    kv = make_kv_manager(
        config,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        max_model_len=max_model_len,
        namespace="simulated",
    )
    scheduler = Scheduler(config, kv, max_model_len=max_model_len, clock=clock)
    executor = SimulatedExecutor(cost, clock, config.block_size, vocab_size)
    engine = Engine(scheduler, executor, max_in_flight=2 if config.async_scheduling else 1)
    return Simulated(engine, clock, executor, max_model_len, vocab_size)


def simulate_preset(config: EngineConfig, preset: Preset) -> Simulated:
    """One of the paper's machines, with ``config.swap_space`` GiB for what is swapped out. Raises ``ConfigError``."""
    block_bytes = preset.shape.kv_bytes_per_token * config.block_size
    return simulate(
        config,
        preset.cost,
        num_blocks=preset.num_blocks(config.block_size),
        max_model_len=config.max_model_len or preset.max_model_len,
        vocab_size=preset.vocab_size,
        num_host_blocks=int(config.swap_space * 2**30) // block_bytes,
    )


def preset_named(name: str) -> Preset:
    """Raises ``ConfigError`` that lists the names there are."""
    if name not in PRESETS:
        raise ConfigError(f"no simulated machine {name!r}; there are: {', '.join(PRESETS)}")
    return PRESETS[name]
