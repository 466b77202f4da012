"""Runs steps of one shape, two ways: by the engine as it serves, and op by op with a clock around each.

Owns the loaded parts and the engine over them. Sequences get their context without computing it: the KV cache is filled
once with copies of one real block, and plans of prompts are answered instead of executed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import numpy as np

from octavo.backends.base import Batch
from octavo.bench.roofline.timed import Call, TimedBackend
from octavo.bench.workload import request
from octavo.build import Parts, assemble
from octavo.config import EngineConfig
from octavo.step import BlockCopies, ModelOutput, SchedulerOutput

T = TypeVar("T")
SETTLE = 2
"""Steps at the beginning of a run that do not count."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decode step of ``batch_size`` sequences that see ``context_len`` tokens each; or a prefill step, of one sequence whose
    ``context_len`` tokens are all computed."""

    batch_size: int
    context_len: int
    prefill: bool = False

    @property
    def rows_each(self) -> int:
        """Tokens computed for each sequence."""
        return self.context_len if self.prefill else 1


@dataclass(frozen=True, slots=True)
class EngineStep:
    """Seconds of one step whose parts follow one another. ``sampler`` is a part of ``worker``."""

    scheduler: float
    worker: float
    sampler: float
    commit: float


class Steps:
    """The same weights and cache for both ways."""

    def __init__(self, config: EngineConfig, parts: Parts, timed: TimedBackend) -> None:
        self._config = config
        self._parts = parts
        self._timed = timed
        self._engine = assemble(config, parts)
        self._numbers = count()
        self._fill_cache()

    def shutdown(self) -> None:
        self._engine.shutdown()

    def calls(self, shape: Shape) -> list[Call]:
        """The ops of one step, in order."""
        with self._timed.ops.recording() as calls:
            self._compute(self._batch(shape))
        return calls

    def eager(self, shape: Shape, times: int) -> list[list[float]]:
        """Seconds of each op of each of so many steps, called one by one."""
        batch = self._batch(shape)
        for _ in range(SETTLE):
            self._compute(batch)
        runs = []
        for _ in range(times):
            with self._timed.ops.timing() as seconds:
                self._compute(batch)
            runs.append(seconds)
        return runs

    def served(self, shape: Shape, times: int) -> tuple[list[float], list[EngineStep]]:
        """Seconds of each of so many steps of the engine as it is, and of as many whose parts do not overlap."""
        if shape.prefill:
            whole = [self._prefill(shape, self._whole_step) for _ in range(SETTLE + times)]
            parts = [self._prefill(shape, self._step_in_parts) for _ in range(SETTLE + times)]
        else:
            requests = self._start_decoding(shape, 2 * (SETTLE + times))
            parts = [self._step_in_parts() for _ in range(SETTLE + times)]
            whole = [self._whole_step() for _ in range(SETTLE + times)]
            for request_id in requests:
                self._engine.abort(request_id)
            self._drain()
        return whole[SETTLE:], parts[SETTLE:]

    def _whole_step(self) -> float:
        start = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - start

    def _step_in_parts(self) -> EngineStep:
        scheduler, executor = self._engine.scheduler, self._engine.executor
        start = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        if plan is None:
            raise RuntimeError("the engine has nothing to compute in the middle of a measurement")
        output = executor.submit(plan).result()
        computed = time.perf_counter()
        scheduler.commit(plan, output)
        return EngineStep(
            scheduler=planned - start,
            worker=computed - planned,
            sampler=output.timings.sampling,
            commit=time.perf_counter() - computed,
        )

    def _prefill(self, shape: Shape, step: Callable[[], T]) -> T:
        self._add(shape.context_len, output_len=1)
        result = step()
        self._drain()
        return result

    def _start_decoding(self, shape: Shape, steps: int) -> list[str]:
        """Requests whose prompts count as computed, so many that they see ``context_len`` on average in ``steps``."""
        prompt = max(1, shape.context_len - (steps + planning_steps(self._config, shape)) // 2)
        output = longest_sequence(self._config, shape, steps) - prompt
        requests = [self._add(prompt, output_len=output) for _ in range(shape.batch_size)]
        started: set[str] = set()
        while len(started) < shape.batch_size:
            plan = self._engine.scheduler.schedule()
            if plan is None:
                raise RuntimeError("the engine does not plan the prompts of a measurement")
            started |= {delta.request_id for delta in self._engine.scheduler.commit(plan, _invented(plan))}
        return requests

    def _add(self, input_len: int, *, output_len: int) -> str:
        made = request(
            next(self._numbers),
            input_len=input_len,
            output_len=output_len,
            vocab_size=self._parts.model_config.vocab_size,
        )
        self._engine.add(made)
        return made.id

    def _drain(self) -> None:
        while self._engine.has_work:
            self._engine.step()

    def _compute(self, batch: Batch) -> None:
        parts = self._parts
        hidden = parts.model.forward(batch, parts.cache, batch.logits_rows)
        parts.model.likeliest(hidden, batch.allowed)

    def _batch(self, shape: Shape) -> Batch:
        """Every sequence with blocks of its own."""
        block_size, sequences, rows = self._parts.cache.spec.block_size, shape.batch_size, shape.rows_each
        width = -(-shape.context_len // block_size)
        tables = np.arange(sequences * width, dtype=np.int32).reshape(sequences, width)
        positions = np.tile(np.arange(shape.context_len - rows, shape.context_len, dtype=np.int32), sequences)
        owner = np.repeat(np.arange(sequences), rows)
        arrays = {
            "input_ids": np.arange(sequences * rows, dtype=np.int32) % self._parts.model_config.vocab_size,
            "positions": positions,
            "slot_mapping": tables[owner, positions // block_size] * np.int32(block_size) + positions % block_size,
            "query_start": np.arange(0, sequences * rows + 1, rows, dtype=np.int32),
            "seq_lens": np.full(sequences, shape.context_len, np.int32),
            "block_tables": tables,
            "logits_rows": np.arange(rows - 1, sequences * rows, rows, dtype=np.int32),
        }
        return Batch(**{name: self._parts.backend.tensor(array) for name, array in arrays.items()})

    def _fill_cache(self) -> None:
        """Real numbers everywhere: memory that was never written is no memory yet, and costs nothing to read."""
        cache = self._parts.cache
        self._compute(self._batch(Shape(1, cache.spec.block_size, prefill=True)))
        copies = [(0, block) for block in range(1, cache.num_blocks)]
        self._parts.backend.ops.copy_blocks(cache, BlockCopies(swap_out=[], swap_in=[], copy=copies))


def planning_steps(config: EngineConfig, shape: Shape) -> int:
    """Steps in which the prompts of a batch are planned; the first sequences decode meanwhile."""
    return shape.batch_size * shape.context_len // max(1, config.max_num_batched_tokens - shape.batch_size) + 1


def longest_sequence(config: EngineConfig, shape: Shape, steps: int) -> int:
    """Tokens that a sequence of ``shape`` may reach while so many steps are measured."""
    return shape.context_len + 1 if shape.prefill else shape.context_len + steps + planning_steps(config, shape) + 2


def _invented(plan: SchedulerOutput) -> ModelOutput:
    """An answer to a plan that nobody computed: some token wherever one is due."""
    return ModelOutput(step_id=plan.step_id, token_ids=[[1] * len(sequence.sample_rows) for sequence in plan.sequences])
