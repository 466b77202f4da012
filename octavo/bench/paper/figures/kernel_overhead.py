"""Fig. 18a: attention over paged keys and values against the same kernel over contiguous ones.

Contiguous: each sequence's context in one block of its own. Paged: in blocks that lie anywhere, as in a pool that has been in
use for long. Both hold the same numbers, and the results are the same bits: that is checked before anything is timed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.base import AttentionShape, Backend, Batch, KVCache, KVCacheSpec
from octavo.bench import drawing
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import Findings, Measured, Mode, Point, Record, Table, Verdict
from octavo.build import Parts
from octavo.step import BlockCopies

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

BATCHES, CONTEXTS = (1, 8, 32), (128, 512, 2048)
BLOCK_SIZES = (16, 8, 4)
EVICTED = 128 << 20
"""Bytes read before each pass over the layers, so that no layout finds in the cache what another does not: in a step of a model
it is the weights that come between."""
COPIES = 2
"""Layouts of contiguous ones and of the first block size, in places of their own: where memory lies is worth a few percent."""
SETTLE = 4
"""Rounds that do not count."""
WANTED = 0.05
REPORTED = "20-26 %"


class KernelOverhead:
    """See ``Figure``."""

    name = "kernel-overhead"
    number = "Fig. 18a"
    title = "Attention over paged keys and values against contiguous ones"
    modes: tuple[Mode, ...] = ("real",)

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        contexts, work, most = (CONTEXTS[:2], 1 << 16, 100) if bench.quick else (CONTEXTS, 1 << 18, 200)
        rounds = {(batch, context): min(most, max(24, work // (batch * context))) for batch in BATCHES for context in contexts}
        return [
            Point(
                f"batch {batch} context {context}", mode, {"batch": batch, "context": context, "rounds": rounds[batch, context]}
            )
            for batch in BATCHES
            for context in contexts
        ]

    def measure(self, bench: Bench, point: Point) -> Record:
        batch, context, rounds = (point.spec[name] for name in ("batch", "context", "rounds"))
        return bench.once(
            f"kernel {point.key}",
            {"kind": self.name, **point.spec, "block_sizes": list(BLOCK_SIZES), "copies": COPIES},
            lambda: compare(bench.parts(max_model_len=64), batch=batch, context=context, rounds=rounds),
        )

    def tables(self, findings: Findings) -> Sequence[Table]:
        found = findings.of("real")
        columns = ["batch", "context", "contiguous, µs", *(f"blocks of {s}, µs" for s in BLOCK_SIZES), *map(_over, BLOCK_SIZES)]
        rows = [
            [
                m["batch"],
                m["context"],
                m["contiguous"] * 1e6,
                *(m["paged"][str(size)] * 1e6 for size in BLOCK_SIZES),
                *(f"{m['overhead'][str(size)]:+.1%}" for size in BLOCK_SIZES),
            ]
            for m in found
        ]
        notes = [
            "Time of one layer's attention in a decode step, all layers in turn; medians. Rounds take the layouts in turn, "
            "two of contiguous and of blocks of 16, each with nothing of it in the cache; the overhead is the median of the "
            "rounds' own. Blocks lie in random order."
        ]
        return [Table("Decode steps", columns, rows, notes)]

    def picture(self, findings: Findings) -> "Picture":
        found = findings.of("real")
        picture, (left, right) = drawing.sheet(2)
        drawing.frame(left, title="Blocks of 16", x="", y="time over that of contiguous", percent=True)
        contexts = sorted({m["context"] for m in found})
        shown = [
            drawing.Bars(f"batch {batch}", [1 + _overhead(found, batch, context, 16) for context in contexts], color)
            for batch, color in zip(BATCHES, drawing.COLORS, strict=False)
        ]
        drawing.bars(left, [f"context {context}" for context in contexts], shown, numbers="{:.1%}")
        drawing.level(left, 1 + WANTED, f"wanted: below {1 + WANTED:.0%}")
        drawing.level(left, 1.23, "the paper: 120-126 %")
        left.set_ylim(0, 1.6)
        left.set_xlim(-0.5, len(contexts) + 0.15)  # room for what the lines mean
        left.legend(loc="upper left", ncols=len(shown), fontsize=7.5, edgecolor=drawing.GRID)
        drawing.frame(right, title="By block size", x="", y="median overhead over batches and contexts", percent=True)
        overheads = [median(m["overhead"][str(size)] for m in found) for size in BLOCK_SIZES]
        drawing.bars(
            right, [f"blocks of {s}" for s in BLOCK_SIZES], [drawing.Bars("", overheads, drawing.COLORS[0])], numbers="{:.1%}"
        )
        return picture

    def verdicts(self, findings: Findings) -> Sequence[Verdict]:
        overheads = [m["overhead"]["16"] for m in findings.of("real")]
        what, wanted = "paged attention over contiguous, block size 16", f"<= {WANTED:.0%}"
        middle, worst = median(overheads), max(overheads)
        most = max(findings.of("real"), key=lambda m: float(m["overhead"]["16"]))
        shape = f"batch {most['batch']}, context {most['context']}"
        return [
            Verdict(f"{what}, median over shapes", REPORTED, f"{middle:+.1%}", wanted, middle <= WANTED),
            Verdict(f"{what}, worst shape ({shape})", REPORTED, f"{worst:+.1%}", wanted, worst <= WANTED),
        ]


@dataclass(frozen=True)
class Layout:
    """A cache with every sequence's context in it, and the batch that reads it."""

    cache: KVCache
    batch: Batch


def compare(parts: Parts, *, batch: int, context: int, rounds: int) -> Record:
    """Seconds of one layer, and overheads, of contiguous and of each block size."""
    model, backend = parts.model_config, parts.backend
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim)
    random = np.random.default_rng(0)
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    prompt = random.standard_normal((context, width)).astype(np.float32)
    row = random.standard_normal((batch, width)).astype(np.float32)
    spec = parts.cache.spec
    layouts = {
        size: [_layout(backend, _spec_of(spec, size), shape, prompt, batch=batch, random=random) for _ in range(copies)]
        for size, copies in ((context, COPIES), *((size, COPIES if size == BLOCK_SIZES[0] else 1) for size in BLOCK_SIZES))
    }

    def attention(layout: Layout, layer: int) -> np.ndarray:
        scale = shape.head_dim**-0.5
        return np.asarray(backend.ops.attention(layout.cache, layer, row, layout.batch, shape, scale=scale, window=None))

    for size in BLOCK_SIZES:
        if not np.array_equal(attention(layouts[size][0], 0), attention(layouts[context][0], 0)):
            raise RuntimeError(f"blocks of {size} give another result than contiguous keys and values")
    return _timed(layouts, attention, context=context, layers=spec.num_layers, rounds=rounds)


def _timed(
    layouts: dict[int, list[Layout]],
    attention: Callable[[Layout, int], np.ndarray],
    *,
    context: int,
    layers: int,
    rounds: int,
) -> Record:
    seconds: dict[int, list[float]] = {size: [] for size in layouts}
    ratios: dict[int, list[float]] = {size: [] for size in BLOCK_SIZES}
    others = np.ones(EVICTED // 8)
    for number in range(rounds + SETTLE):
        taken: dict[int, list[float]] = {size: [] for size in layouts}
        for copy in range(COPIES):
            for size, copies in layouts.items():
                if copy == len(copies) or (size in BLOCK_SIZES[1:] and number % 4):
                    continue
                others.sum()
                start = time.perf_counter()
                for layer in range(layers):
                    attention(copies[copy], layer)
                taken[size].append((time.perf_counter() - start) / layers)
        if number < SETTLE:
            continue
        for size, times in taken.items():
            seconds[size] += times
            if size in ratios and times:
                ratios[size].append(mean(times) / mean(taken[context]))
    return {
        "contiguous": median(seconds[context]),
        "paged": {str(size): median(seconds[size]) for size in BLOCK_SIZES},
        "overhead": {str(size): median(ratios[size]) - 1 for size in BLOCK_SIZES},
    }


def _spec_of(spec: KVCacheSpec, block_size: int) -> KVCacheSpec:
    return KVCacheSpec(spec.num_layers, spec.num_kv_heads, spec.head_dim, block_size, spec.dtype)


def _layout(
    backend: Backend, spec: KVCacheSpec, shape: AttentionShape, prompt: np.ndarray, *, batch: int, random: np.random.Generator
) -> Layout:
    """Keys and values of ``prompt``, computed once in each layer and copied for all sequences."""
    context, each = len(prompt), -(-len(prompt) // spec.block_size)
    cache = backend.kv_cache(spec, num_blocks=each * batch, num_host_blocks=0)
    order = random.permutation(each * batch) if each > 1 else np.arange(batch)
    tables = order.astype(np.int32).reshape(batch, each)
    positions = np.arange(context, dtype=np.int32)
    slots = tables[0, positions // spec.block_size] * np.int32(spec.block_size) + positions % spec.block_size
    first = Batch(
        input_ids=positions,
        positions=positions,
        slot_mapping=slots.astype(np.int32),
        query_start=np.array([0, context], np.int32),
        seq_lens=np.array([context], np.int32),
        block_tables=tables[:1],
        logits_rows=np.array([0], np.int32),
    )
    for layer in range(spec.num_layers):
        backend.ops.attention(cache, layer, prompt, first, shape, scale=1.0, window=None)
    copies = [(int(source), int(target)) for row in tables[1:] for source, target in zip(tables[0], row, strict=True)]
    backend.ops.copy_blocks(cache, BlockCopies(swap_out=[], swap_in=[], copy=copies))
    # The newest token's place is written again and again: as in a decode step, and to no effect on what comes before it.
    last = tables[:, (context - 1) // spec.block_size] * np.int32(spec.block_size) + np.int32((context - 1) % spec.block_size)
    step = Batch(
        input_ids=np.zeros(batch, np.int32),
        positions=np.full(batch, context - 1, np.int32),
        slot_mapping=last.astype(np.int32),
        query_start=np.arange(batch + 1, dtype=np.int32),
        seq_lens=np.full(batch, context, np.int32),
        block_tables=tables,
        logits_rows=np.arange(batch, dtype=np.int32),
    )
    return Layout(cache, step)


def _overhead(found: Sequence[Measured], batch: int, context: int, size: int) -> float:
    value: float = next(m["overhead"][str(size)] for m in found if (m["batch"], m["context"]) == (batch, context))
    return value


def _over(size: int) -> str:
    return f"overhead at {size}"
