"""Figures that are curves of latency over rate for several ways of serving, and the ratios of their knees.

Fig. 16 (shared prefix) and Fig. 17 (chatbot) are two of them: they say which ways, and what is wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from octavo.bench import drawing
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import Cell, Findings, Measured, Mode, Point, Record, Table, Verdict
from octavo.bench.paper.rates import Plan, sweep
from octavo.bench.paper.scenes import PRESET_TITLES, scene
from octavo.bench.paper.workload import HERE, TRACE_NAMES, Serve
from octavo.config import KVAllocation

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


@dataclass(frozen=True)
class Way:
    """One way of serving: a curve. ``shares_prefix``: what all prompts begin with is pinned. ``in_quick``: or left out."""

    label: str
    policy: KVAllocation
    shares_prefix: bool
    color: str
    in_quick: bool = True


@dataclass(frozen=True)
class Goal:
    """The knee of ``way`` over that of ``other``, on one trace. ``wanted`` None: the numbers are shown."""

    trace: str
    way: str
    other: str
    paper: str
    wanted: float | None


@dataclass(frozen=True)
class Compared:
    """See ``Figure``. ``preset`` is the simulated machine, ``plans`` are by mode and whether the run is a quick one."""

    name: str
    number: str
    title: str
    preset: str
    traces: tuple[str, ...]
    ways: tuple[Way, ...]
    goals: tuple[Goal, ...]
    plans: dict[tuple[Mode, bool], Plan]
    notes: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = ("real", "simulated")

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        machine = HERE if mode == "real" else self.preset
        made = []
        for trace in self.traces:
            for way in [way for way in self.ways if way.in_quick or not bench.quick]:
                serve = scene(bench, machine, trace, policy=way.policy)
                serve = msgspec.structs.replace(serve, pinned=way.shares_prefix)
                spec = {"trace": trace, "way": way.label, "serve": msgspec.structs.asdict(serve)}
                made.append(Point(f"{trace} {way.label}", mode, {**spec, "plan": self.plans[mode, bench.quick].spec()}))
        return made

    def measure(self, bench: Bench, point: Point) -> Record:
        return sweep(bench, msgspec.convert(point.spec["serve"], Serve), self.plans[point.mode, bench.quick])

    def tables(self, findings: Findings) -> Sequence[Table]:
        made = []
        for mode in findings.modes:
            found = findings.of(mode)
            rows: list[list[Cell]] = []
            for m in found:
                first = _knee(found, m["trace"], self.ways[0].label)
                row = [TRACE_NAMES[m["trace"]], m["way"], m["knee"], first / m["knee"], m["capacity"], m["at_once"]]
                rows.append(row)
            ratio = f"{self.ways[0].label} / it"
            columns = ["trace", "way", "knee, requests/s", ratio, "all at once, requests/s", "requests at once"]
            threshold = found[0]["plan"]["threshold"]
            note = f"Knee: the rate at which the mean normalized latency passes {threshold:g} s/token; seed 0."
            made.append(Table(_title(self, mode), columns, rows, [note, *self.notes]))
        return made

    def picture(self, findings: Findings) -> "Picture":
        panels = [(mode, trace) for mode in findings.modes for trace in self.traces]
        picture, axes = drawing.sheet(min(2, len(panels)), -(-len(panels) // 2))
        for place, (mode, trace) in zip(axes, panels, strict=False):
            found = [m for m in findings.of(mode) if m["trace"] == trace]
            threshold = found[0]["plan"]["threshold"]
            title = f"{_title(self, mode)}, {TRACE_NAMES[trace]}"
            drawing.frame(place, title=title, x="requests a second", y="normalized latency, s/token")
            colors = {way.label: way.color for way in self.ways}
            shown = [
                drawing.Curve(
                    m["way"],
                    [at["rate"] for at in m["curve"]],
                    [at["latency"] for at in m["curve"]],
                    colors[m["way"]],
                    drawing.MARKERS[index],
                )
                for index, m in enumerate(found)
            ]
            drawing.curves(place, shown, top=2 * threshold)
            drawing.legend(place)
            place.set_xlim(left=0)
            drawing.level(place, threshold, "threshold")
        for place in axes[len(panels) :]:
            place.set_visible(False)
        return picture

    def verdicts(self, findings: Findings) -> Sequence[Verdict]:
        made = []
        for mode in findings.modes:
            found = findings.of(mode)
            measured = {m["way"] for m in found}
            for goal in [goal for goal in self.goals if goal.other in measured]:
                ratio = _knee(found, goal.trace, goal.way) / _knee(found, goal.trace, goal.other)
                what = f"rate of {goal.way} over {goal.other}, {TRACE_NAMES[goal.trace]}, {_title(self, mode)}"
                met = None if goal.wanted is None else ratio >= goal.wanted
                made.append(Verdict(what, goal.paper, f"{ratio:.2f}x", f">= {goal.wanted:g}x" if goal.wanted else "", met))
        return made


def _title(figure: Compared, mode: Mode) -> str:
    return PRESET_TITLES[HERE if mode == "real" else figure.preset]


def _knee(found: Sequence[Measured], trace: str, way: str) -> float:
    return float(next(m["knee"] for m in found if (m["trace"], m["way"]) == (trace, way)))
