"""Fig. 14 and 15: several sequences for each prompt, by parallel sampling and by beam search: throughput, and memory saved.

Real texts, real draws and real beams of the model. Memory saved is the paper's measure, blocks saved by sharing as a part of
the blocks that there would be without it, of every request when it ends; the mean over time, in which long requests count for
more, stands beside it: the paper does not say when it counts. Requests are all there at once, nothing else is shared. Where
lengths are divided blocks are as well, or the ends of blocks, which nobody shares, would weigh more than in the paper.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from octavo.bench import drawing
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import Cell, Findings, Measured, Mode, Point, Record, Table, Verdict
from octavo.bench.paper.scenes import BRANCHED_POOLS, LONG_LEN, SMALL_LEN
from octavo.bench.paper.workload import HERE, POLICY_NAMES, TRACE_NAMES, Serve
from octavo.config import KVAllocation

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

WIDTHS = (2, 4, 6)
KINDS = {"sampling": "parallel sampling", "beams": "beam search"}
POLICIES: tuple[KVAllocation, ...] = ("paged", "orca-oracle")
SAVED = {
    ("alpaca-text", "sampling"): (0.0609, 0.0979),
    ("alpaca-text", "beams"): (0.3756, 0.5516),
    ("sharegpt", "sampling"): (0.162, 0.305),
    ("sharegpt", "beams"): (0.443, 0.663),
}
"""What the paper reports for widths 2 to 6."""
REQUESTS = {
    (False, "sharegpt"): {1: 40, 2: 32, 4: 20, 6: 16},
    (False, "alpaca-text"): {1: 120, 2: 80, 4: 40, 6: 28},
    (True, "sharegpt"): {1: 24, 2: 12, 4: 8, 6: 6},
    (True, "alpaca-text"): {1: 36, 2: 18, 4: 10, 6: 8},
}
"""By whether the run is a quick one, trace and width."""
WANTED = {"sampling": 0.16, "beams": 0.44}
"""Of ShareGPT: within or above the paper's range."""
GAINS = {1: "1.3x", 6: "2.3x"}
"""Throughput over Orca (Oracle), Alpaca, OPT-13B: one sequence; beams of six."""


class SamplingAndBeams:
    """See ``Figure``."""

    name = "sampling-and-beams"
    number = "Fig. 14, 15"
    title = "Parallel sampling and beam search: throughput and memory saved by sharing"
    modes: tuple[Mode, ...] = ("real",)

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        """The policies take turns; in quick runs one comes after the other, which spares the time to load engines."""
        configurations = [("sampling", 1), *((kind, width) for kind in KINDS for width in WIDTHS)]
        turns = [(*configuration, policy) for configuration in configurations for policy in POLICIES]
        if bench.quick:
            turns.sort(key=lambda turn: POLICIES.index(turn[-1]))
        made = []
        for trace in BRANCHED_POOLS:
            for kind, width, policy in turns:
                serve = _serve(bench, trace, kind, width, policy)
                spec = {"trace": trace, "kind": kind, "width": width, "policy": policy}
                key = f"{trace} {kind} {width} {policy}"
                made.append(Point(key, mode, {**spec, "serve": msgspec.structs.asdict(serve)}))
        return made

    def measure(self, bench: Bench, point: Point) -> Record:
        run = bench.served(msgspec.convert(point.spec["serve"], Serve))
        return {
            "saved": run.saved_at_end,
            "saved_over_time": run.saved_by_sharing,
            "output_rate": run.whole_rate,
            "sequences_at_once": run.sequences_at_once,
            "copied_blocks": run.copied_blocks,
            "preemptions": run.preemptions,
        }

    def tables(self, findings: Findings) -> Sequence[Table]:
        found = findings.of("real")
        made = []
        for trace in _traces(found):
            rows: list[list[Cell]] = []
            for kind, width in _configurations(found):
                paged, oracle = (_find(found, trace, kind, width, policy) for policy in POLICIES)
                saved = [f"{paged[name]:.1%}" if width > 1 else None for name in ("saved", "saved_over_time")]
                rates = [paged["output_rate"], oracle["output_rate"], paged["output_rate"] / oracle["output_rate"]]
                at_once = [paged["sequences_at_once"], oracle["sequences_at_once"]]
                rows.append([KINDS[kind] if width > 1 else "one sequence", width, *saved, *rates, *at_once])
            columns = ["decoding", "width", "blocks saved", "over time", "tokens/s", "Orca (Oracle), tokens/s", "ratio"]
            serve = next(m["serve"] for m in found if m["trace"] == trace)
            lengths = "true lengths" if serve["shrink"] == 1 else f"lengths and blocks divided by {serve['shrink']}"
            notes = [
                f"{lengths[0].upper()}{lengths[1:]}, a pool of {serve['kv_slots']} slots.",
                "Tokens of all sequences count, and all of the time from the first to the last.",
                "Blocks are saved of those that requests hold when they end; over time: the mean.",
            ]
            columns += ["sequences at once", "Orca (Oracle), sequences at once"]
            made.append(Table(TRACE_NAMES[trace], columns, rows, notes))
        return made

    def picture(self, findings: Findings) -> "Picture":
        found = findings.of("real")
        traces = _traces(found)
        picture, axes = drawing.sheet(2, len(traces))
        for trace, saved, speed in zip(traces, axes[::2], axes[1::2], strict=True):
            drawing.frame(
                saved, title=f"Blocks saved, {TRACE_NAMES[trace]}", x="width", y="of blocks without sharing", percent=True
            )
            shown = [
                drawing.Bars(KINDS[kind], [_find(found, trace, kind, w, "paged")["saved"] for w in WIDTHS], color)
                for kind, color in zip(KINDS, drawing.COLORS, strict=False)
            ]
            drawing.bars(saved, [str(width) for width in WIDTHS], shown, numbers="{:.1%}")
            for kind, color in zip(KINDS, drawing.COLORS, strict=False):
                low, high = SAVED[trace, kind]
                saved.axhspan(low, high, color=color, alpha=0.12, linewidth=0, zorder=0)
            drawing.frame(speed, title=f"Throughput, {TRACE_NAMES[trace]}", x="", y="tokens a second, all sequences")
            groups = _configurations(found)
            names = ["one" if width == 1 else f"{'beams' if kind == 'beams' else 'n'}\n{width}" for kind, width in groups]
            both = [
                drawing.Bars(
                    POLICY_NAMES[policy],
                    [_find(found, trace, kind, width, policy)["output_rate"] for kind, width in groups],
                    drawing.POLICY_COLORS[policy],
                )
                for policy in POLICIES
            ]
            drawing.bars(speed, names, both, numbers="{:.0f}")
        picture.supxlabel("shaded: the paper's range for widths 2 to 6", fontsize=8, color=drawing.MUTED)
        return picture

    def verdicts(self, findings: Findings) -> Sequence[Verdict]:
        found = findings.of("real")
        made = []
        for (trace, kind), (low, high) in SAVED.items():
            values = [_find(found, trace, kind, width, "paged")["saved"] for width in WIDTHS]
            ours = ", ".join(f"{value:.1%}" for value in values)
            least = WANTED[kind] if trace == "sharegpt" else None
            what = f"blocks saved, {KINDS[kind]} of 2, 4, 6, {TRACE_NAMES[trace]}"
            met = None if least is None else min(values) >= least
            made.append(Verdict(what, f"{low:.1%}-{high:.1%}", ours, f">= {least:.0%}" if least else "", met))
        for kind, width in (("sampling", 1), ("beams", 6)):
            pair = [_find(found, "alpaca-text", kind, width, policy)["output_rate"] for policy in POLICIES]
            what = f"throughput over Orca (Oracle), {'beams of 6' if width == 6 else 'one sequence'}, Alpaca lengths"
            made.append(Verdict(what, GAINS[width], f"{pair[0] / pair[1]:.2f}x"))
        return made


def _serve(bench: Bench, trace: str, kind: str, width: int, policy: KVAllocation) -> Serve:
    long = trace == "sharegpt"
    shrink = 4 if bench.quick and long else 1
    return Serve(
        machine=HERE,
        trace=trace,
        policy=policy,
        num_requests=REQUESTS[bench.quick, trace][width],
        kv_slots=BRANCHED_POOLS[trace] // shrink,
        max_model_len=(LONG_LEN if long else SMALL_LEN) // shrink,
        max_num_seqs=128,
        shrink=shrink,
        block_size=16 // shrink,
        n=width if kind == "sampling" else 1,
        beam_width=width if kind == "beams" else 0,
    )


def _traces(found: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(m["trace"] for m in found))


def _configurations(found: Sequence[Measured]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((m["kind"], m["width"]) for m in found))


def _find(found: Sequence[Measured], trace: str, kind: str, width: int, policy: str) -> Measured:
    wanted = (trace, kind, width, policy)
    return next(m for m in found if (m["trace"], m["kind"], m["width"], m["policy"]) == wanted)
