"""Fig. 12: normalized latency over request rate, by policy; and the knees of these curves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from octavo.bench import drawing
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import Findings, Measured, Mode, Point, Record, Table, Verdict
from octavo.bench.paper.rates import Plan, sweep
from octavo.bench.paper.scenes import PRESET_TITLES, scene
from octavo.bench.paper.workload import HERE, POLICIES, POLICY_NAMES, TRACE_NAMES, Serve
from octavo.config import KVAllocation

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

TRACES = ("sharegpt", "alpaca")
SEEDS = (0, 1)
FEW_POLICIES: tuple[KVAllocation, ...] = ("paged", "orca-oracle")
"""Of Alpaca in a quick run."""
REPORTED = {"orca-oracle": (1.7, 2.7), "orca-max": (2.7, 8.0), "fastertransformer": (0.0, 22.0)}
"""The paper's ranges of paged's rate over another's, ShareGPT; of FasterTransformer, "up to"."""
NEAR = 0.20
"""What the simulated ratios may differ from the paper's range."""


class LatencyRate:
    """See ``Figure``."""

    name = "latency-rate"
    number = "Fig. 12"
    title = "Normalized latency against request rate"
    modes: tuple[Mode, ...] = ("real", "simulated")

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        machines = [HERE] if mode == "real" else ["opt-13b"] if bench.quick else ["opt-13b", "opt-66b", "opt-175b"]
        made = []
        for machine in machines:
            for trace in TRACES:
                for seed in _seeds(bench, machine, trace):
                    for policy in FEW_POLICIES if bench.quick and trace == "alpaca" else POLICIES:
                        serve = scene(bench, machine, trace, policy=policy, seed=seed)
                        spec = {"serve": msgspec.structs.asdict(serve), "plan": _plan(bench, machine, trace).spec()}
                        labels = {"machine": machine, "trace": trace, "policy": policy, "seed": seed}
                        made.append(Point(f"{machine} {trace} seed {seed} {policy}", mode, {**labels, **spec}))
        return made

    def measure(self, bench: Bench, point: Point) -> Record:
        serve = msgspec.convert(point.spec["serve"], Serve)
        return sweep(bench, serve, _plan(bench, serve.machine, serve.trace))

    def tables(self, findings: Findings) -> Sequence[Table]:
        made = []
        for mode in findings.modes:
            for machine, trace in _panels(findings.of(mode)):
                here = [m for m in findings.of(mode) if (m["machine"], m["trace"]) == (machine, trace)]
                seeds = sorted({m["seed"] for m in here})
                columns = ["policy", *(f"knee, requests/s, seed {s}" for s in seeds), *(f"paged / it, seed {s}" for s in seeds)]
                rows = []
                for policy in [p for p in POLICIES if any(m["policy"] == p for m in here)]:
                    knees = [_knee(here, policy, seed) for seed in seeds]
                    rows.append([POLICY_NAMES[policy], *knees, *(_ratio(here, policy, seed) for seed in seeds)])
                threshold = here[0]["plan"]["threshold"]
                notes = [f"Knee: the rate at which the mean normalized latency passes {threshold:g} s/token."]
                made.append(Table(f"{PRESET_TITLES[machine]}, {TRACE_NAMES[trace]}", columns, rows, notes))
        return made

    def picture(self, findings: Findings) -> "Picture":
        panels = [(mode, *panel) for mode in findings.modes for panel in _panels(findings.of(mode))]
        picture, axes = drawing.sheet(2, -(-len(panels) // 2))
        for place, (mode, machine, trace) in zip(axes, panels, strict=False):
            here = [m for m in findings.of(mode) if (m["machine"], m["trace"], m["seed"]) == (machine, trace, SEEDS[0])]
            threshold = here[0]["plan"]["threshold"]
            title = f"{PRESET_TITLES[machine]}, {TRACE_NAMES[trace]}"
            drawing.frame(place, title=title, x="requests a second", y="normalized latency, s/token")
            drawn = [
                drawing.Curve(
                    POLICY_NAMES[m["policy"]],
                    [at["rate"] for at in m["curve"]],
                    [at["latency"] for at in m["curve"]],
                    drawing.POLICY_COLORS[m["policy"]],
                    drawing.MARKERS[POLICIES.index(m["policy"])],
                )
                for m in here
            ]
            drawing.curves(place, drawn, top=2 * threshold)
            place.set_xlim(left=0)
            drawing.level(place, threshold, "threshold")
        drawing.common_legend(axes[0])  # in a panel it would lie over curves
        for place in axes[len(panels) :]:
            place.set_visible(False)
        return picture

    def verdicts(self, findings: Findings) -> Sequence[Verdict]:
        made = []
        for mode, machine, wanted in (("real", "here", {"orca-oracle": 1.7, "orca-max": 2.7}), ("simulated", "opt-13b", {})):
            here = [m for m in findings.of(mode) if (m["machine"], m["trace"]) == (machine, "sharegpt")]  # type: ignore[arg-type]
            seeds = sorted({m["seed"] for m in here})
            for policy, (low, high) in REPORTED.items() if here else ():
                ratios = [r for seed in seeds if (r := _ratio(here, policy, seed)) is not None]
                if not ratios:
                    continue
                what = f"rate of paged over {POLICY_NAMES[policy]}, ShareGPT, {PRESET_TITLES[machine]}"
                ours = " / ".join(f"{ratio:.2f}x" for ratio in ratios)
                paper = f"up to {high:g}x" if policy == "fastertransformer" else f"{low:g}-{high:g}x"
                if mode == "real":
                    least = wanted.get(policy)
                    met = None if least is None else min(ratios) >= least
                    made.append(Verdict(what, paper, ours, f">= {least:g}x" if least else "", met))
                elif policy == "fastertransformer":
                    made.append(Verdict(what, paper, ours))
                else:
                    within = all(low * (1 - NEAR) <= ratio <= high * (1 + NEAR) for ratio in ratios)
                    made.append(Verdict(what, paper, ours, f"within {NEAR:.0%} of the paper's range", within))
            if len(seeds) > 1:
                made.append(_same_order(here, seeds, machine))
        return made


def _seeds(bench: Bench, machine: str, trace: str) -> Sequence[int]:
    """Two where something is promised."""
    promised = machine == "opt-13b" or (machine == HERE and trace == "sharegpt")
    return SEEDS if promised and not bench.quick else SEEDS[:1]


def _plan(bench: Bench, machine: str, trace: str) -> Plan:
    """Thresholds are ten to twenty times what a token takes on an idle engine."""
    short = trace != "sharegpt"
    if machine == HERE:
        if bench.quick:
            seconds, runs = (1.5, 2) if short else (2.5, 2)
            return Plan(threshold=0.05, seconds=seconds, fewest=6, fractions=(1.0, 1.5), closeness=1.3, most_runs=runs)
        seconds = 5.0 if short else 8.0
        return Plan(threshold=0.05, seconds=seconds, fewest=20, fractions=(0.5, 0.9, 1.2), closeness=1.1, most_runs=6)
    if bench.quick:
        return Plan(threshold=0.5, seconds=20.0 if short else 100.0, fractions=(0.5, 0.9), closeness=1.2, most_runs=7)
    return Plan(threshold=0.5, seconds=60.0 if short else 450.0, fractions=(0.3, 0.6, 0.9, 1.1), closeness=1.04)


def _panels(found: Sequence[Measured]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((m["machine"], m["trace"]) for m in found))


def _knee(found: Sequence[Measured], policy: str, seed: int) -> float | None:
    return next((m["knee"] for m in found if (m["policy"], m["seed"]) == (policy, seed)), None)


def _ratio(found: Sequence[Measured], policy: str, seed: int) -> float | None:
    paged, other = _knee(found, "paged", seed), _knee(found, policy, seed)
    return None if paged is None or other is None else paged / other


def _same_order(found: Sequence[Measured], seeds: Sequence[int], machine: str) -> Verdict:
    orders = [sorted(POLICIES, key=lambda policy: -(_knee(found, policy, seed) or 0.0)) for seed in seeds]
    same = all(order == orders[0] for order in orders)
    shown = " > ".join(POLICY_NAMES[policy] for policy in orders[0])
    return Verdict(f"order of policies, {len(seeds)} seeds, {PRESET_TITLES[machine]}", "", shown, "the same", same)
