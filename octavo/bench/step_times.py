"""Steps of many shapes on a real engine, timed: what the cost model of this machine is fitted to.

Owns the spread of shapes. Plans are written by hand and given to the executor, so a sequence has a context without anybody
computing it; the cache holds real numbers, because memory that was never written is no memory yet. The engine must be idle, and
what its prefix cache knows is overwritten: measure before serving, on an engine of its own.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from octavo.bench.report import progress
from octavo.build import Loaded
from octavo.config import EngineConfig
from octavo.executor.cost_model import work_of
from octavo.executor.fitted_cost import Observation
from octavo.sampling_params import SamplingParams
from octavo.step import BlockCopies, ScheduledSequence, SchedulerOutput

BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
CONTEXTS = (16, 128, 512, 1536)
CHUNKS = (16, 64, 128, 256, 512, 1024)
COPIES = (1, 8, 64)
"""Shapes are combined from these: sequences, tokens of context, tokens of a prompt, blocks that are copied."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """``decodes`` sequences of ``context`` tokens that compute one more each, and beside them a prompt of which ``chunk``
    tokens follow ``chunk_start`` computed ones."""

    decodes: int
    context: int
    chunk: int = 0
    chunk_start: int = 0

    @property
    def num_tokens(self) -> int:
        return self.decodes + self.chunk


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step of an engine may have."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int

    def admit(self, shape: StepShape) -> bool:
        """Whether a step of this shape is possible. Sequences may share blocks: attention does not notice."""
        sequences = shape.decodes + bool(shape.chunk)
        longest = max(shape.context + 1 if shape.decodes else 0, shape.chunk_start + shape.chunk)
        return (
            sequences <= self.max_num_seqs
            and shape.num_tokens <= self.max_num_batched_tokens
            and longest <= min(self.max_model_len, self.num_blocks * self.block_size)
        )


def spread(limits: Limits) -> list[StepShape]:
    """Decodes by batch and context, prompts by length and what came before, and some of both in one step."""
    decodes = [StepShape(batch, context) for batch in BATCHES for context in CONTEXTS]
    prompts = [StepShape(0, 0, chunk, start) for chunk in CHUNKS for start in (0, 512, 1024)]
    mixed = [StepShape(batch, 512, chunk, 0) for batch in (2, 8, 24, 64) for chunk in (32, 128, 512)]
    return [shape for shape in (*decodes, *prompts, *mixed) if limits.admit(shape)]


def measure_steps(
    loaded: Loaded, config: EngineConfig, *, repeat: int = 5, shapes: Sequence[StepShape] | None = None
) -> list[Observation]:
    """Seconds of steps of each shape, from handing over the plan to having its tokens, by an engine that was loaded with
    ``config``: the median of ``repeat``, taken in rounds over all shapes, so that a slow moment of the machine hits many shapes
    once instead of one often."""
    kv = loaded.engine.scheduler.kv
    limits = Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=loaded.max_model_len,
        block_size=kv.block_size,
        num_blocks=kv.device.num_blocks,
    )
    chosen = [shape for shape in (spread(limits) if shapes is None else shapes) if limits.admit(shape)]
    maker = _PlanMaker(limits)
    plans = [maker.step(shape) for shape in chosen] + maker.copies(kv.host.num_blocks)
    for plan in maker.fill():
        _run(loaded, plan)
    seconds: list[list[float]] = [[] for _ in plans]
    for number in progress((repeat + 1) * len(plans), "steps"):
        took = _run(loaded, plans[number % len(plans)])
        if number >= len(plans):  # the first round only wakes everything up
            seconds[number % len(plans)].append(took)
    return [
        Observation(work_of(plan, block_size=kv.block_size), statistics.median(times))
        for plan, times in zip(plans, seconds, strict=True)
    ]


def _run(loaded: Loaded, plan: SchedulerOutput) -> float:
    start = time.perf_counter()
    loaded.engine.executor.submit(plan).result()
    return time.perf_counter() - start


class _PlanMaker:
    """Plans by hand. Blocks are dealt round the pool, so that sequences share them only when there are too few."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._next_block = 0
        self._numbers = count()

    def step(self, shape: StepShape) -> SchedulerOutput:
        sequences = [self._sequence(row, shape.context, 1) for row in range(shape.decodes)]
        if shape.chunk:
            sequences.append(self._sequence(shape.decodes, shape.chunk_start, shape.chunk))
        return self._plan(sequences)

    def fill(self) -> list[SchedulerOutput]:
        """One block computed, then copied to all others."""
        size, blocks = self._limits.block_size, self._limits.num_blocks
        self._next_block = 0
        first = self._plan([self._sequence(0, 0, min(size, self._limits.max_model_len))])
        return [first, self._plan([], [(0, block) for block in range(1, blocks)])]

    def copies(self, num_host_blocks: int) -> list[SchedulerOutput]:
        """Steps that only copy: within the device, and to the host and back."""
        counts = [n for n in COPIES if 2 * n <= self._limits.num_blocks]
        inside = [self._plan([], [(i, n + i) for i in range(n)]) for n in counts]
        across = [[(i, i) for i in range(n)] for n in counts if n <= num_host_blocks]
        outside = [self._plan([], swap_out=pairs, swap_in=pairs) for pairs in across]
        return inside + outside

    def _plan(
        self,
        sequences: list[ScheduledSequence],
        copy: Sequence[tuple[int, int]] = (),
        swap_out: Sequence[tuple[int, int]] = (),
        swap_in: Sequence[tuple[int, int]] = (),
    ) -> SchedulerOutput:
        longest = max((seq.start + len(seq.token_ids) for seq in sequences), default=0)
        width = -(-longest // self._limits.block_size)
        tables = np.array([self._blocks(width) for _ in sequences], np.int32).reshape(len(sequences), width)
        copies = BlockCopies(swap_out=list(swap_out), swap_in=list(swap_in), copy=list(copy))
        return SchedulerOutput(step_id=next(self._numbers), sequences=sequences, block_tables=tables, copies=copies)

    def _blocks(self, number: int) -> np.ndarray:
        blocks = (self._next_block + np.arange(number)) % self._limits.num_blocks
        self._next_block += number
        return blocks

    def _sequence(self, row: int, start: int, number: int) -> ScheduledSequence:
        return ScheduledSequence(
            seq_id=row,
            row=row,
            start=start,
            token_ids=[1 + (row + i) % 50 for i in range(number)],
            prompt_len=start + number,
            sample_rows=(row,),
            seeds=(row,),
            params=SamplingParams(temperature=0.0),
        )
