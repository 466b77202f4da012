"""How long a step takes, from what it computes, reads and copies: ``StepWork`` in, ``StepTimings`` out.

Owns the counting of a plan's work and the model that divides it by a machine's limits. Knows no sequences and no clock; the
presets are in ``presets``, the model that is fitted to measured steps in ``fitted_cost``. Invariant: more work of any kind
never takes less time.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.step import SchedulerOutput, StepTimings


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step must do, in tokens.

    ``num_tokens`` go through the layers, ``num_rows`` of them through the output head. ``context_tokens``: all those
    whose keys and values the ``num_sequences`` read, each once; ``repeated_tokens``: how many more are read because several
    sequences share them, and ``shared_tokens`` those that are. ``attention_pairs``: (query, key) pairs. ``copied_tokens``
    move within the device, ``swapped_tokens`` between it and the host, a block's empty slots included.
    """

    num_tokens: int
    num_sequences: int
    num_rows: int
    context_tokens: int
    attention_pairs: int
    copied_tokens: int = 0
    swapped_tokens: int = 0
    repeated_tokens: int = 0
    shared_tokens: int = 0

    @property
    def read_tokens(self) -> int:
        """For each sequence, all tokens whose keys and values it reads."""
        return self.context_tokens + self.repeated_tokens


class CostModel(Protocol):
    """Seconds of a step on some machine."""

    def __call__(self, work: StepWork) -> StepTimings: ...


def work_of(plan: SchedulerOutput, *, block_size: int) -> StepWork:
    """The work of a plan."""
    tokens = rows = context = pairs = 0
    for seq in plan.sequences:
        count, start = len(seq.token_ids), seq.start
        tokens += count
        context += start + count
        pairs += count * start + count * (count + 1) // 2
        if seq.sample_rows:
            rows += 1 + seq.num_drafts
    copies = plan.copies
    shared, repeated = _shared_blocks(plan, block_size)
    return StepWork(
        num_tokens=tokens,
        num_sequences=len(plan.sequences),
        num_rows=rows,
        context_tokens=context - repeated * block_size,
        attention_pairs=pairs,
        copied_tokens=len(copies.copy) * block_size,
        swapped_tokens=(len(copies.swap_in) + len(copies.swap_out)) * block_size,
        repeated_tokens=repeated * block_size,
        shared_tokens=shared * block_size,
    )


def _shared_blocks(plan: SchedulerOutput, block_size: int) -> tuple[int, int]:
    """How many blocks several sequences of the plan read, and how many times more than once they are read in all."""
    ends = np.array([seq.start + len(seq.token_ids) for seq in plan.sequences], dtype=np.int64)
    tables = plan.block_tables
    if len(ends) < 2:
        return 0, 0
    # What shares a prefix shares its first block: most plans are done here.
    if len(np.unique(tables[:, 0])) == len(ends):
        return 0, 0
    full = ends // block_size  # nobody shares the last block while it is written
    readers = np.bincount(tables[np.arange(tables.shape[1]) < full[:, None]])
    return int(np.count_nonzero(readers > 1)), int(np.maximum(readers - 1, 0).sum())


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a step must know of a model. Parameters are counts; ``layer_parameters`` are those of all layers together, biases
    and norms left out. ``query_size`` is heads x head_dim, ``kv_size`` kv heads x head_dim."""

    name: str
    num_layers: int
    hidden_size: int
    layer_parameters: int
    head_parameters: int
    query_size: int
    kv_size: int
    bytes_per_value: int = 2

    @property
    def weight_bytes(self) -> int:
        """That every step reads."""
        return (self.layer_parameters + self.head_parameters) * self.bytes_per_value

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.kv_size * self.bytes_per_value


@dataclass(frozen=True, slots=True)
class Hardware:
    """One or several equal devices that share every layer (tensor parallelism). The limits are one device's data sheet, in
    bytes and operations a second; the efficiencies say which part of them a step reaches.

    ``step_overhead`` and ``sequence_overhead`` are seconds of host work between steps, ``reduction_latency`` of one exchange
    among the devices, of which each layer has two. What several sequences share comes out of ``cache_bytes`` of cache from the
    second one on, if a layer's part of it fits, at ``cache_bandwidth``.
    """

    name: str
    num_devices: int
    memory_bandwidth: float
    peak_flops: float
    host_bandwidth: float
    link_bandwidth: float
    weight_efficiency: float
    kv_efficiency: float
    flops_efficiency: float
    copy_efficiency: float
    step_overhead: float
    sequence_overhead: float
    reduction_latency: float
    cache_bytes: float
    cache_bandwidth: float


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """The time of each part of a step is the longer of its bytes over bandwidth and its operations over peak; the parts follow
    one another, as kernels do."""

    shape: ModelShape
    hardware: Hardware

    def __call__(self, work: StepWork) -> StepTimings:
        return StepTimings(copies=self._copies(work), forward=self._forward(work) if work.num_tokens else 0.0)

    def _forward(self, work: StepWork) -> float:
        shape, hardware = self.shape, self.hardware
        bandwidth = hardware.memory_bandwidth * hardware.num_devices
        flops = hardware.peak_flops * hardware.num_devices * hardware.flops_efficiency
        width = shape.bytes_per_value
        layers = max(
            shape.layer_parameters * width / (bandwidth * hardware.weight_efficiency),
            2 * shape.layer_parameters * work.num_tokens / flops,
        )
        head = max(
            shape.head_parameters * width / (bandwidth * hardware.weight_efficiency),
            2 * shape.head_parameters * work.num_rows / flops,
        )
        attention = max(
            self._reading(work),
            4 * shape.num_layers * shape.query_size * work.attention_pairs / flops,
        )
        host = hardware.step_overhead + hardware.sequence_overhead * work.num_sequences
        return layers + head * bool(work.num_rows) + attention + self._exchange(work) + host

    def _reading(self, work: StepWork) -> float:
        """Of keys and values."""
        shape, hardware = self.shape, self.hardware
        token = shape.kv_bytes_per_token / (hardware.num_devices * hardware.kv_efficiency)
        fits = shape.kv_bytes_per_token * work.shared_tokens <= hardware.cache_bytes * hardware.num_devices * shape.num_layers
        again = hardware.cache_bandwidth if fits else hardware.memory_bandwidth
        return token * (work.context_tokens / hardware.memory_bandwidth + work.repeated_tokens / again)

    def _exchange(self, work: StepWork) -> float:
        """Two sums over all devices in every layer; a ring moves each value 2 (n - 1) / n times."""
        shape, hardware = self.shape, self.hardware
        if hardware.num_devices == 1:
            return 0.0
        moved = 2 * (hardware.num_devices - 1) / hardware.num_devices
        values = work.num_tokens * shape.hidden_size * shape.bytes_per_value * moved
        return 2 * shape.num_layers * (hardware.reduction_latency + values / hardware.link_bandwidth)

    def _copies(self, work: StepWork) -> float:
        shape, hardware = self.shape, self.hardware
        token = shape.kv_bytes_per_token
        inside = 2 * token * work.copied_tokens / (hardware.memory_bandwidth * hardware.num_devices * hardware.kv_efficiency)
        outside = token * work.swapped_tokens / (hardware.host_bandwidth * hardware.num_devices * hardware.copy_efficiency)
        return inside + outside


def total_seconds(timings: StepTimings) -> float:
    """Of the parts of a step, which follow one another."""
    return timings.copies + timings.forward + timings.sampling
