"""Fig. 18b: the block size, end to end: small blocks cost attention, large ones waste memory; and what a size costs by itself,
step by step."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.bench import drawing
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import Findings, Measured, Mode, Point, Record, Table, Verdict
from octavo.bench.paper.paired_steps import compare_steps
from octavo.bench.paper.scenes import PRESET_TITLES, long_scene, scene
from octavo.bench.paper.workload import HERE, TRACE_NAMES, Serve
from octavo.clock import WallClock

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATES = {"sharegpt": 2.0, "alpaca": 40.0}
"""Requests a second on the simulated OPT-13B: what blocks of 16 can just sustain."""
REPORTED = {"sharegpt": "16-128 best", "alpaca": "16 and 32 best"}
NEAR_BEST = 0.05
STEP_SIZES, STEP_ROWS, STEP_LENGTHS = (16, 8, 4, 32), 32, (32, 128)
"""Sizes whose steps are taken in turn, against the first; sequences, and the lengths of their prompts and outputs."""
SMALLER, COST = 8, 0.02
"""A size that wastes little, and what it may cost."""


class BlockSize:
    """See ``Figure``."""

    name = "block-size"
    number = "Fig. 18b"
    title = "Block size, end to end"
    modes: tuple[Mode, ...] = ("real", "simulated")

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        made = []
        for trace, rate in RATES.items():
            for size in SIZES[::2] if bench.quick else SIZES:
                if mode == "simulated":
                    seconds = 100 if bench.quick else 600
                    count = min(round(rate * seconds), 6000)
                    serve = scene(bench, "opt-13b", trace, num_requests=count)
                    serve = msgspec.structs.replace(serve, rate=rate, block_size=size, limit=2.0)
                elif trace == "sharegpt":
                    serve = long_scene(bench, block_size=size)
                else:
                    serve = msgspec.structs.replace(scene(bench, HERE, trace), block_size=size)
                spec = {"kind": "run", "trace": trace, "block": size, "serve": msgspec.structs.asdict(serve)}
                made.append(Point(f"{trace} block size {size}", mode, spec))
        if mode == "real":
            steps = {
                "sizes": list(STEP_SIZES[:2] if bench.quick else STEP_SIZES),
                "rows": STEP_ROWS,
                "lengths": list(STEP_LENGTHS),
                "rounds": 2 if bench.quick else 8,
            }
            made.append(Point("steps in turn", mode, {"kind": "steps", **steps}))
        return made

    def measure(self, bench: Bench, point: Point) -> Record:
        if point.spec["kind"] == "steps":
            return bench.once(f"{self.name} {point.key}", point.spec, lambda: _compare(bench, point.spec))
        run = bench.served(msgspec.convert(point.spec["serve"], Serve))
        return {
            "output_rate": run.whole_rate,
            "latency": run.normalized_latency,
            "requests_at_once": run.requests_at_once,
            "tokens_of_allocated": run.tokens_of_allocated,
            "gave_up": run.gave_up,
        }

    def tables(self, findings: Findings) -> Sequence[Table]:
        made = []
        for mode in findings.modes:
            for trace, rate in RATES.items():
                rows = [
                    [m["block"], m[_measure(mode)], m["requests_at_once"], f"{m['tokens_of_allocated']:.1%}"]
                    for m in _of(findings.of(mode), trace)
                ]
                columns = ["block size", _unit(mode), "requests at once", "allocated slots that hold tokens"]
                note = (
                    "All requests are there at once."
                    if mode == "real"
                    else f"{rate:g} requests a second. Simulated steps cost the same with every block size: this is what "
                    "memory alone does."
                )
                made.append(Table(_title(mode, trace), columns, rows, [note]))
        return made + [_step_table(m) for m in findings.of("real") if m["kind"] == "steps"]

    def picture(self, findings: Findings) -> "Picture":
        panels = [(mode, trace) for mode in findings.modes for trace in RATES]
        picture, axes = drawing.sheet(2, -(-len(panels) // 2), height=3.2)
        for place, (mode, trace) in zip(axes, panels, strict=True):
            found = _of(findings.of(mode), trace)
            drawing.frame(place, title=_title(mode, trace), x="tokens in a block", y=_unit(mode))
            values = [m[_measure(mode)] for m in found]
            shown = drawing.Bars("", values, drawing.COLORS[0 if mode == "real" else 3])
            drawing.bars(place, [str(m["block"]) for m in found], [shown], numbers="{:.0f}" if mode == "real" else "{:.2f}")
        return picture

    def verdicts(self, findings: Findings) -> Sequence[Verdict]:
        made = []
        for trace in RATES if findings.of("real") else ():
            found = _of(findings.of("real"), trace)
            best = max(m["output_rate"] for m in found)
            good = [m["block"] for m in found if m["output_rate"] >= (1 - NEAR_BEST) * best]
            ours = ", ".join(map(str, good)) + f" within {NEAR_BEST:.0%} of the best"
            made.append(Verdict(f"best block sizes, {_title('real', trace)}", REPORTED[trace], ours))
        return made + [_step_verdict(m) for m in findings.of("real") if m["kind"] == "steps"]


def _of(found: Sequence[Measured], trace: str) -> list[Measured]:
    return [m for m in found if m["kind"] == "run" and m["trace"] == trace]


def _compare(bench: Bench, spec: Mapping[str, Any]) -> Record:
    lengths = (spec["lengths"][0], spec["lengths"][1])
    parts = bench.parts(max_model_len=sum(lengths))
    return compare_steps(
        bench.config, parts, WallClock(), sizes=spec["sizes"], rows=spec["rows"], lengths=lengths, rounds=spec["rounds"]
    )


def _step_table(m: Measured) -> Table:
    first, others = m["sizes"][0], [*map(str, m["sizes"][1:]), "again"]
    rows: list[list[str | float | None]] = [[str(first), m["seconds"][str(first)] * 1e3, None, None]]
    for name in others:
        cost = m["cost"][name]
        shown = f"{first}, a second engine" if name == "again" else name
        rows.append([shown, m["seconds"][name] * 1e3, f"{cost['cost']:+.1%}", f"{cost['low']:+.1%} to {cost['high']:+.1%}"])
    notes = [
        f"Steps of {m['rows']} sequences with {m['lengths'][0]} tokens of prompt, up to {m['lengths'][1]} of output, not those "
        "of the prompts. Engines that share the model take each step in turn. Cost: median over pairs of steps; then the "
        f"middle half of {m['rounds']} rounds. The second engine of {first} shows how far to trust them."
    ]
    return Table(
        f"Decode steps, {PRESET_TITLES[HERE]}", ["block size", "ms", f"cost against {first}", "in rounds"], rows, notes
    )


def _step_verdict(m: Measured) -> Verdict:
    cost, again = m["cost"][str(SMALLER)]["cost"], m["cost"]["again"]["cost"]
    first = m["sizes"][0]
    what = f"a step with blocks of {SMALLER} against {first}, {m['rows']} sequences, {PRESET_TITLES[HERE]}"
    return Verdict(what, "", f"{cost:+.1%} ({first} against itself {again:+.1%})", f"<= {COST:.0%}", cost <= COST)


def _measure(mode: Mode) -> str:
    return "output_rate" if mode == "real" else "latency"


def _unit(mode: Mode) -> str:
    return "tokens/s" if mode == "real" else "normalized latency, s/token"


def _title(mode: Mode, trace: str) -> str:
    return f"{PRESET_TITLES[HERE if mode == 'real' else 'opt-13b']}, {TRACE_NAMES[trace]}"
