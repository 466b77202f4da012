"""Fig. 2: what the slots of KV memory hold, by allocation policy; and how much smaller blocks waste, and cost."""

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.bench.paper import drawing
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.driver import Replayed
from octavo.bench.paper.figure import Findings, Measured, Mode, Point, Record, Table, Verdict
from octavo.bench.paper.scenes import PRESET_TITLES, long_scene, scene
from octavo.bench.paper.workload import HERE, POLICIES, POLICY_NAMES, Serve

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

REPORTED = {"paged": 0.963, "orca-oracle": 0.382, "orca-pow2": 0.268, "orca-max": 0.204}
"""The paper's share of KV memory that holds token states."""
PARTS = {
    "token states": ("tokens",),
    "reserved for later": ("reserved",),
    "internal fragmentation": ("internal",),
    "external fragmentation and others": ("rounding", "unusable"),
}
COLORS = {
    "token states": "#3c9a5f",
    "reserved for later": "#c9a227",
    "internal fragmentation": "#c2571a",
    "external fragmentation and others": "#7d5ba6",
}
BLOCK_SIZES = (16, 8, 4, 2, 1)
COMPARED = (16, 8, 4)
"""Block sizes whose throughput is compared in several rounds."""
RATE = 2.0
"""Requests a second on the simulated OPT-13B, where the paper measured."""
ENOUGH, ENOUGH_SMALLER, COST = 0.97, 0.99, 0.02
"""What is wanted at 16; and at a smaller size, with at most this cost."""


class MemoryWaste:
    """See ``Figure``."""

    name = "memory-waste"
    number = "Fig. 2"
    title = "What the slots of KV memory hold"
    modes: tuple[Mode, ...] = ("real", "simulated")

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        made = [self._policy(bench, mode, policy) for policy in POLICIES]
        made += [self._block(bench, mode, size, 0) for size in BLOCK_SIZES]
        if mode == "real":
            made += [self._block(bench, mode, size, repeat) for repeat in self._repeats(bench) for size in COMPARED]
        return made

    @staticmethod
    def _repeats(bench: Bench) -> Sequence[int]:
        return range(1, 2 if bench.quick else 4)

    @staticmethod
    def _policy(bench: Bench, mode: Mode, policy: Any) -> Point:
        serve = long_scene(bench, policy=policy) if mode == "real" else _simulated(bench, policy)
        return Point(policy, mode, {"kind": "policy", "policy": policy, "serve": msgspec.structs.asdict(serve)})

    @staticmethod
    def _block(bench: Bench, mode: Mode, size: int, repeat: int) -> Point:
        """The repeats of a block size are rounds: all sizes in turn, so that what disturbs the machine disturbs all."""
        if mode == "real":
            serve = long_scene(bench, block_size=size, repeat=repeat)
        else:
            serve = msgspec.structs.replace(_simulated(bench, "paged"), block_size=size)
        spec = {"kind": "block", "block": size, "repeat": repeat, "serve": msgspec.structs.asdict(serve)}
        return Point(f"block size {size}, round {repeat}", mode, spec)

    def measure(self, bench: Bench, point: Point) -> Record:
        run = bench.served(msgspec.convert(point.spec["serve"], Serve))
        shares = {part: run.part_of_wanted(*names) for part, names in PARTS.items()}
        return {"shares": shares, "tokens_of_allocated": run.tokens_of_allocated, "output_rate": run.output_rate, **_brief(run)}

    def tables(self, findings: Findings) -> Sequence[Table]:
        made = []
        for mode in findings.modes:
            rows = [
                [
                    POLICY_NAMES[m["policy"]],
                    *(_percent(m["shares"][part]) for part in PARTS),
                    _percent(m["tokens_of_allocated"]),
                ]
                for m in _of_kind(findings.of(mode), "policy")
            ]
            columns = ["policy", *PARTS, "allocated slots that hold tokens"]
            notes = [
                "Mean over the time under load. The first four are shares of the slots that are in demand: free ones count (as "
                "external fragmentation) while the next request waits and does not fit.",
                _lengths(findings.of(mode)[0]),
            ]
            made.append(Table(f"By policy, {_title(mode)}", columns, rows, notes))
            made.append(_block_table(findings.of(mode), mode))
        return made

    def picture(self, findings: Findings) -> "Picture":
        picture, axes = drawing.sheet(len(findings.modes) + 1)
        for place, mode in zip(axes, findings.modes, strict=False):
            found = _of_kind(findings.of(mode), "policy")
            drawing.frame(place, title=_title(mode), x="", y="share of KV slots", percent=True)
            names = [
                POLICY_NAMES[m["policy"]].replace(" ", "\n").replace("FasterTransformer", "Faster-\nTransformer") for m in found
            ]
            drawing.stacks(place, names, {part: [m["shares"][part] for m in found] for part in PARTS}, COLORS)
        drawing.common_legend(axes[0])
        drawing.frame(
            axes[-1], title="Paged, by block size", x="tokens in a block", y="allocated slots without a token", percent=True
        )
        shown = [
            drawing.Bars(_title(mode), _wastes(findings.of(mode)), color)
            for mode, color in zip(findings.modes, drawing.COLORS, strict=False)
        ]
        drawing.bars(axes[-1], [str(size) for size in BLOCK_SIZES], shown, numbers="{:.1%}")
        return picture

    def verdicts(self, findings: Findings) -> Sequence[Verdict]:
        made = []
        for mode in findings.modes:
            for m in _of_kind(findings.of(mode), "policy"):
                if m["policy"] in REPORTED and m["policy"] != "paged":
                    what = f"KV memory holding tokens, {POLICY_NAMES[m['policy']]}, {_title(mode)}"
                    made.append(Verdict(what, _percent(REPORTED[m["policy"]]), _percent(m["shares"]["token states"])))
            share = _share(findings.of(mode), 16)
            what = f"allocated slots holding tokens, block size 16, {_title(mode)}"
            made.append(Verdict(what, _percent(REPORTED["paged"]), _percent(share), f">= {ENOUGH:.0%}", share >= ENOUGH))
        if findings.of("real"):
            made += _smaller(findings.of("real"))
        return made


def _simulated(bench: Bench, policy: Any) -> Serve:
    """As the paper: OPT-13B, ShareGPT, two requests a second."""
    serve = scene(bench, "opt-13b", "sharegpt", policy=policy, num_requests=400 if bench.quick else 1800)
    return msgspec.structs.replace(serve, rate=RATE)


def _brief(run: Replayed) -> dict[str, Any]:
    return {"requests_at_once": run.requests_at_once, "num_requests": run.num_requests, "preemptions": run.preemptions}


def _of_kind(found: Sequence[Measured], kind: str) -> list[Measured]:
    return [m for m in found if m["kind"] == kind]


def _blocks(found: Sequence[Measured], size: int) -> list[Measured]:
    return [m for m in _of_kind(found, "block") if m["block"] == size]


def _share(found: Sequence[Measured], size: int) -> float:
    return float(median(m["tokens_of_allocated"] for m in _blocks(found, size)))


def _wastes(found: Sequence[Measured]) -> list[float]:
    return [1 - _share(found, size) for size in BLOCK_SIZES]


def _costs(found: Sequence[Measured], size: int) -> list[float]:
    """Throughput lost against blocks of 16, in each round that has both; the first round of all also warms the machine up."""
    rates = {(m["block"], m["repeat"]): m["output_rate"] for m in _of_kind(found, "block")}
    rounds = sorted(repeat for block, repeat in rates if block == size and repeat > 0 and (16, repeat) in rates)
    return [1 - rates[size, repeat] / rates[16, repeat] for repeat in rounds]


def _block_table(found: Sequence[Measured], mode: Mode) -> Table:
    rows = []
    for size in BLOCK_SIZES:
        costs = _costs(found, size)
        rate = median(m["output_rate"] for m in _blocks(found, size))
        spread = f"{min(costs):+.1%} to {max(costs):+.1%}" if costs else None
        rows.append([size, _percent(_share(found, size)), rate, _percent(median(costs)) if costs else None, spread])
    columns = ["block size", "allocated slots that hold tokens", "tokens/s", "throughput cost against 16", "in single rounds"]
    notes = [_lengths(found[0])]
    if mode == "real":
        notes.append("The cost is the median over rounds that take all sizes in turn.")
    return Table(f"Paged, by block size, {_title(mode)}", columns, rows, notes)


def _smaller(found: Sequence[Measured]) -> list[Verdict]:
    """Whether a smaller size wastes little and costs little, and what is recommended therefore."""
    good = []
    for size in COMPARED[1:]:
        costs = _costs(found, size)
        if costs and _share(found, size) >= ENOUGH_SMALLER and median(costs) <= COST:
            good.append(size)
    shown = "; ".join(
        f"{size}: {_share(found, size):.1%} at a cost of {median(_costs(found, size)):.1%}"
        for size in COMPARED[1:]
        if _costs(found, size)
    )
    wanted = f">= {ENOUGH_SMALLER:.0%} at a cost of at most {COST:.0%}"
    verdict = Verdict("allocated slots holding tokens, smaller blocks", "", shown, wanted, bool(good))
    default = good[0] if good else 16
    return [verdict, Verdict("block size to recommend", "16", str(default))]


def _lengths(m: Measured) -> str:
    shrink = m["serve"]["shrink"]
    return (
        "ShareGPT at its true lengths."
        if shrink == 1
        else f"ShareGPT with its lengths divided by {shrink}: ends of blocks weigh more."
    )


def _title(mode: Mode) -> str:
    return PRESET_TITLES[HERE] if mode == "real" else PRESET_TITLES["opt-13b"]


def _percent(value: float) -> str:
    return f"{value:.1%}"
