"""What a block size costs: engines that differ in nothing else take the same steps in turn, in one process.

Owns those engines: one loaded model, one backend, and for each block size a cache, a scheduler and a runner of its own. Rates
of whole runs differ by several percent from one run to the next, because the machine does; steps that follow one another within
milliseconds see the same machine, so that ratios of pairs tell one percent. The first size is measured twice: what its two
engines differ by is what the comparison cannot tell.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import median, quantiles

import msgspec

from octavo.bench.paper.figure import Record
from octavo.bench.workload import request
from octavo.build import Parts, assemble, make_kv_cache
from octavo.build_resolve import kv_cache_spec
from octavo.clock import Clock
from octavo.config import EngineConfig
from octavo.engine.engine import Engine


def compare_steps(
    config: EngineConfig, parts: Parts, clock: Clock, *, sizes: Sequence[int], rows: int, lengths: tuple[int, int], rounds: int
) -> Record:
    """Seconds of decode steps of ``rows`` sequences and their cost over those of ``sizes[0]``, by block size as text; "again"
    is the second engine of ``sizes[0]``. ``lengths``: of prompts and of outputs. A round is all steps of all engines; one more,
    before them, does not count.

    ``cost`` is the median over all pairs of steps, ``low`` and ``high`` are the quartiles of the medians of rounds.
    """
    names, vocab_size = [*map(str, sizes), "again"], parts.model_config.vocab_size
    engines = [_engine(config, parts, size, rows=rows, lengths=lengths) for size in (*sizes, sizes[0])]
    seconds: list[list[list[float]]] = [[] for _ in engines]  # of each engine: rounds of steps
    for number in range(rounds + 1):
        for engine in engines:
            for i in range(rows):
                engine.add(request(number * rows + i, input_len=lengths[0], output_len=lengths[1], vocab_size=vocab_size))
        taken = _steps_in_turn(engines, clock)
        if number:
            for mine, steps in zip(seconds, taken, strict=True):
                mine.append(steps[1:])  # the first is the prompts'
    for engine in engines:
        engine.shutdown()
    return {
        "seconds": {name: median(chain(*mine)) for name, mine in zip(names, seconds, strict=True)},
        "cost": {name: _cost(seconds[0], mine) for name, mine in zip(names[1:], seconds[1:], strict=True)},
    }


def _cost(base: list[list[float]], mine: list[list[float]]) -> dict[str, float]:
    rounds = [[b / a - 1 for a, b in zip(first, second, strict=True)] for first, second in zip(base, mine, strict=True)]
    medians = [median(each) for each in rounds]
    low, _, high = quantiles(medians, n=4, method="inclusive") if len(medians) > 1 else medians * 3
    return {"cost": median(chain(*rounds)), "low": low, "high": high}


def _steps_in_turn(engines: Sequence[Engine], clock: Clock) -> list[list[float]]:
    """Seconds of each engine's steps. Each step another engine comes first, each round of that the order turns: none always
    follows the same one."""
    taken: list[list[float]] = [[] for _ in engines]
    step = 0
    while any(engine.has_work for engine in engines):
        order = [(step + i) % len(engines) for i in range(len(engines))]
        for i in order if step // len(engines) % 2 else reversed(order):
            start = clock()
            engines[i].step()
            taken[i].append(clock() - start)
        step += 1
    return taken


def _engine(config: EngineConfig, parts: Parts, block_size: int, *, rows: int, lengths: tuple[int, int]) -> Engine:
    """Its prompts take one step, then all sequences grow together."""
    mine = msgspec.structs.replace(
        config,
        block_size=block_size,
        max_num_seqs=rows,
        max_num_batched_tokens=rows * lengths[0],
        enable_prefix_caching=False,
        swap_space=0.0,
        async_scheduling=False,
    )
    spec = kv_cache_spec(mine, parts.model_config, parts.backend.compute_dtype)
    num_blocks = 2 * rows * -(-sum(lengths) // block_size)  # nobody waits for room to grow
    kv, cache = make_kv_cache(mine, spec, parts.backend, max_model_len=sum(lengths), num_blocks=num_blocks)
    return assemble(mine, replace(parts, kv=kv, cache=cache, max_model_len=sum(lengths)))
