"""Fig. 19: what it costs to bring preempted tokens back: moved from the host's memory, or computed again.

On this machine both memories are the same kind: moving is a copy, cheaper than over any bus.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from octavo.backends.base import Batch, KVCache, KVCacheSpec
from octavo.bench import drawing
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import Findings, Measured, Mode, Point, Record, Table, Verdict
from octavo.bench.paper.scenes import long_scene
from octavo.bench.paper.workload import Serve
from octavo.build import Parts
from octavo.step import BlockCopies

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

TOKENS = 256
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PRESSED = (4, 16, 64)
"""Block sizes of the end-to-end runs."""
WAYS = {"recompute": "recompute", "swap": "swap out and in"}
POOL_SPREAD = 16
"""The blocks lie anywhere in a pool of so many times their number."""


class SwapOrRecompute:
    """See ``Figure``."""

    name = "swap-or-recompute"
    number = "Fig. 19"
    title = "Swapping and recomputation"
    modes: tuple[Mode, ...] = ("real",)

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        rounds = 6 if bench.quick else 25
        made = [
            Point(f"{TOKENS} tokens, block size {size}", mode, {"kind": "overhead", "block": size, "rounds": rounds})
            for size in (SIZES[::2] if bench.quick else SIZES)
        ]
        for size in PRESSED[1:2] if bench.quick else PRESSED:
            for way in WAYS:
                count = 32 if bench.quick else 48
                serve = msgspec.structs.replace(long_scene(bench, block_size=size), preemption_mode=way, num_requests=count)
                spec = {"kind": "pressure", "block": size, "way": way, "serve": msgspec.structs.asdict(serve)}
                made.append(Point(f"under pressure, block size {size}, {way}", mode, spec))
        return made

    def measure(self, bench: Bench, point: Point) -> Record:
        if point.spec["kind"] == "pressure":
            run = bench.served(msgspec.convert(point.spec["serve"], Serve))
            return {
                "output_rate": run.output_rate,
                "seconds": run.seconds,
                "latency": run.normalized_latency,
                "preemptions": run.preemptions,
                "swapped_blocks": run.swapped_blocks,
            }
        size, rounds = point.spec["block"], point.spec["rounds"]
        spec = {"figure": self.name, "tokens": TOKENS, **point.spec}
        return bench.once(f"swap or recompute {size}", spec, lambda: compare(bench.parts(max_model_len=1024), size, rounds))

    def tables(self, findings: Findings) -> Sequence[Table]:
        found = findings.of("real")
        moved = [
            [m["block"], m["recompute"] * 1e3, m["swap"] * 1e3, m["swap"] / m["recompute"]]
            for m in found
            if m["kind"] == "overhead"
        ]
        note = f"{TOKENS} tokens, blocks anywhere in the pool; medians of {found[0]['rounds']} rounds that take both in turn."
        made = [Table("Overhead", ["block size", "recompute, ms", "swap out and in, ms", "swap / recompute"], moved, [note])]
        pressed = [
            [m["block"], WAYS[m["way"]], m["output_rate"], m["latency"], m["preemptions"], m["swapped_blocks"]]
            for m in found
            if m["kind"] == "pressure"
        ]
        columns = ["block size", "preempted groups are brought back by", "tokens/s", "normalized latency, s/token"]
        columns += ["preemptions", "blocks swapped"]
        return [*made, Table("Under pressure", columns, pressed, ["ShareGPT, all requests at once."])]

    def picture(self, findings: Findings) -> "Picture":
        found = findings.of("real")
        picture, (left, right) = drawing.sheet(2)
        overheads = [m for m in found if m["kind"] == "overhead"]
        drawing.frame(left, title=f"{TOKENS} tokens", x="tokens in a block", y="milliseconds")
        shown = [
            drawing.Curve(
                title, list(range(len(overheads))), [m[way] * 1e3 for m in overheads], drawing.COLORS[i], drawing.MARKERS[i]
            )
            for i, (way, title) in enumerate(WAYS.items())
        ]
        drawing.curves(left, shown)
        drawing.legend(left)
        left.set_yscale("log")
        left.set_xticks(range(len(overheads)), [str(m["block"]) for m in overheads])
        drawing.frame(right, title="Under pressure, ShareGPT", x="tokens in a block", y="tokens/s")
        sizes = list(dict.fromkeys(m["block"] for m in found if m["kind"] == "pressure"))
        both = [
            drawing.Bars(title, [_pressed(found, size, way)["output_rate"] for size in sizes], drawing.COLORS[i])
            for i, (way, title) in enumerate(WAYS.items())
        ]
        drawing.bars(right, [str(size) for size in sizes], both, numbers="{:.0f}")
        return picture

    def verdicts(self, findings: Findings) -> Sequence[Verdict]:
        found = findings.of("real")
        recompute = [m["recompute"] for m in found if m["kind"] == "overhead"]
        spread = max(recompute) / min(recompute)
        made = [Verdict("recomputation by block size, slowest over fastest", "does not depend on it", f"{spread:.2f}x")]
        ratios = {m["block"]: m["swap"] / m["recompute"] for m in found if m["kind"] == "overhead"}
        ours = ", ".join(f"{size}: {ratios[size]:.2f}" for size in (1, 16, 64, 256))
        made.append(Verdict("time of swapping over recomputing", "above 1 at small blocks, below at large", ours))
        for size in dict.fromkeys(m["block"] for m in found if m["kind"] == "pressure"):
            ratio = _pressed(found, size, "swap")["output_rate"] / _pressed(found, size, "recompute")["output_rate"]
            paper = "comparable" if 16 <= size <= 64 else "recompute wins" if size < 16 else "swap wins"
            made.append(Verdict(f"throughput of swap over recompute, block size {size}", paper, f"{ratio:.2f}x"))
        return made


def _pressed(found: Sequence[Measured], size: int, way: str) -> Measured:
    return next(m for m in found if m["kind"] == "pressure" and (m["block"], m["way"]) == (size, way))


def compare(parts: Parts, block_size: int, rounds: int) -> Record:
    """Seconds to move the tokens out and back in, and to compute them."""
    each, spec = TOKENS // block_size, parts.cache.spec
    layout = KVCacheSpec(spec.num_layers, spec.num_kv_heads, spec.head_dim, block_size, spec.dtype)
    cache = parts.backend.kv_cache(layout, num_blocks=POOL_SPREAD * each, num_host_blocks=POOL_SPREAD * each)
    random = np.random.default_rng(0)
    device, host = (random.permutation(POOL_SPREAD * each) for _ in range(2))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 2):
        first = number % POOL_SPREAD * each
        blocks = device[first : first + each].astype(np.int32)
        start = time.perf_counter()
        _compute(parts, cache, blocks)
        computed = time.perf_counter()
        pairs = [(int(a), int(b)) for a, b in zip(blocks, host[first : first + each], strict=True)]
        parts.backend.ops.copy_blocks(cache, BlockCopies(swap_out=pairs, swap_in=[], copy=[]))
        parts.backend.ops.copy_blocks(cache, BlockCopies(swap_out=[], swap_in=[(b, a) for a, b in pairs], copy=[]))
        moved = time.perf_counter()
        if number >= 2:
            seconds["recompute"].append(computed - start)
            seconds["swap"].append(moved - computed)
    return {way: median(times) for way, times in seconds.items()}


def _compute(parts: Parts, cache: KVCache, blocks: np.ndarray) -> None:
    """One step with all tokens of a prompt."""
    size = cache.spec.block_size
    positions = np.arange(TOKENS, dtype=np.int32)
    batch = Batch(
        input_ids=positions % parts.model_config.vocab_size,
        positions=positions,
        slot_mapping=(blocks[positions // size] * np.int32(size) + positions % size).astype(np.int32),
        query_start=np.array([0, TOKENS], np.int32),
        seq_lens=np.array([TOKENS], np.int32),
        block_tables=blocks.reshape(1, -1),
        logits_rows=np.array([TOKENS - 1], np.int32),
    )
    parts.model.logits(parts.model.forward(batch, cache, batch.logits_rows))
