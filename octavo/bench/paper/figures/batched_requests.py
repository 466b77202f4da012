"""Fig. 13: how many requests run at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from octavo.bench import drawing
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import Cell, Findings, Measured, Mode, Point, Record, Table, Verdict
from octavo.bench.paper.scenes import PRESET_TITLES, scene
from octavo.bench.paper.workload import HERE, POLICIES, POLICY_NAMES, TRACE_NAMES, Serve

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

RATES = {"sharegpt": 2.0, "alpaca": 30.0}
"""Requests a second on OPT-13B, as in the paper."""
REPORTED = {
    "sharegpt": {"orca-max": 7.00, "orca-pow2": 9.81, "orca-oracle": 13.62, "paged": 30.42},
    "alpaca": {"orca-max": 7.00, "orca-pow2": 43.24, "orca-oracle": 72.75, "paged": 132.44},
}
NEAR = 0.25


class BatchedRequests:
    """See ``Figure``."""

    name = "batched-requests"
    number = "Fig. 13"
    title = "Requests batched at once"
    modes: tuple[Mode, ...] = ("real", "simulated")

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        made = []
        for trace, rate in RATES.items():
            for policy in POLICIES[:4]:
                if mode == "real":
                    serve = scene(bench, HERE, trace, policy=policy)
                else:
                    seconds = 200 if bench.quick and trace == "sharegpt" else 60 if bench.quick else 900
                    serve = scene(bench, "opt-13b", trace, policy=policy, num_requests=round(rate * min(seconds, 12000 / rate)))
                    serve = msgspec.structs.replace(serve, rate=rate)
                spec = {"trace": trace, "policy": policy, "serve": msgspec.structs.asdict(serve)}
                made.append(Point(f"{trace} {policy}", mode, spec))
        return made

    def measure(self, bench: Bench, point: Point) -> Record:
        run = bench.served(msgspec.convert(point.spec["serve"], Serve))
        return {"requests_at_once": run.requests_at_once, "num_requests": run.num_requests, "preemptions": run.preemptions}

    def tables(self, findings: Findings) -> Sequence[Table]:
        made = []
        for mode in findings.modes:
            for trace, rate in RATES.items():
                found = _of(findings.of(mode), trace)
                columns = ["policy", "requests at once", *(["paper", "ours / paper"] if mode == "simulated" else [])]
                rows: list[list[Cell]] = []
                for policy, ours in found.items():
                    paper = REPORTED[trace][policy]
                    rows.append([POLICY_NAMES[policy], ours, *([paper, ours / paper] if mode == "simulated" else [])])
                note = f"{rate:g} requests a second" if mode == "simulated" else "All requests are there at once"
                made.append(Table(_title(mode, trace), columns, rows, [f"{note}; mean over the time under load."]))
        return made

    def picture(self, findings: Findings) -> "Picture":
        panels = [(mode, trace) for mode in findings.modes for trace in RATES]
        picture, axes = drawing.sheet(2, -(-len(panels) // 2), height=3.2)
        for place, (mode, trace) in zip(axes, panels, strict=True):
            found = _of(findings.of(mode), trace)
            order = [policy for policy in reversed(POLICIES[:4]) if policy in found]
            drawing.frame(place, title=_title(mode, trace), x="", y="requests at once")
            shown = [drawing.Bars("ours", [found[policy] for policy in order], drawing.COLORS[0])]
            if mode == "simulated":
                paper = [REPORTED[trace][policy] for policy in order]
                shown.append(drawing.Bars("paper", paper, drawing.MUTED, hatched=True))
            drawing.bars(place, [POLICY_NAMES[policy] for policy in order], shown, numbers="{:.1f}")
        return picture

    def verdicts(self, findings: Findings) -> Sequence[Verdict]:
        made = []
        for mode in findings.modes:
            for trace in RATES:
                found = _of(findings.of(mode), trace)
                order = sorted(found, key=lambda policy: found[policy])
                wanted = list(REPORTED[trace])
                where = f"{TRACE_NAMES[trace]}, {PRESET_TITLES[HERE if mode == 'real' else 'opt-13b']}"
                ours = " < ".join(f"{POLICY_NAMES[policy]} {found[policy]:.1f}" for policy in order)
                made.append(
                    Verdict(f"order, {where}", "Max < Pow2 < Oracle < paged", ours, "the paper's order", order == wanted)
                )
                if mode == "simulated":
                    for policy, paper in REPORTED[trace].items():
                        ratio = found[policy] / paper
                        what = f"requests at once, {POLICY_NAMES[policy]}, {where}"
                        near = abs(ratio - 1) <= NEAR
                        made.append(Verdict(what, f"{paper:.2f}", f"{found[policy]:.2f}", f"within {NEAR:.0%}", near))
        return made


def _of(found: Sequence[Measured], trace: str) -> dict[str, float]:
    return {m["policy"]: m["requests_at_once"] for m in found if m["trace"] == trace}


def _title(mode: Mode, trace: str) -> str:
    if mode == "real":
        return f"This machine, {TRACE_NAMES[trace]}"
    return f"{PRESET_TITLES['opt-13b']}, {TRACE_NAMES[trace]}, {RATES[trace]:g}/s"
