"""Fig. 2: what the slots of KV memory hold, by allocation policy; and how much blocks of each size waste.

What small blocks cost is ``block_size``'s to say: whole runs are too different from one another for it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.bench import drawing
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
RATE = 2.0
"""Requests a second on the simulated OPT-13B, where the paper measured."""
ENOUGH, ENOUGH_SMALLER = 0.97, 0.99
"""What is wanted at 16, and at a smaller size."""


class MemoryWaste:
    """See ``Figure``."""

    name = "memory-waste"
    number = "Fig. 2"
    title = "What the slots of KV memory hold"
    modes: tuple[Mode, ...] = ("real", "simulated")

    def points(self, bench: Bench, mode: Mode) -> Sequence[Point]:
        made = [self._policy(bench, mode, policy) for policy in POLICIES]
        return [*made, *(self._block(bench, mode, size) for size in BLOCK_SIZES)]

    @staticmethod
    def _policy(bench: Bench, mode: Mode, policy: Any) -> Point:
        serve = long_scene(bench, policy=policy) if mode == "real" else _simulated(bench, policy)
        return Point(policy, mode, {"kind": "policy", "policy": policy, "serve": msgspec.structs.asdict(serve)})

    @staticmethod
    def _block(bench: Bench, mode: Mode, size: int) -> Point:
        if mode == "real":
            serve = long_scene(bench, block_size=size)
        else:
            serve = msgspec.structs.replace(_simulated(bench, "paged"), block_size=size)
        return Point(f"block size {size}", mode, {"kind": "block", "block": size, "serve": msgspec.structs.asdict(serve)})

    def measure(self, bench: Bench, point: Point) -> Record:
        run = bench.served(msgspec.convert(point.spec["serve"], Serve))
        shares = {part: run.part_of_wanted(*names) for part, names in PARTS.items()}
        return {"shares": shares, "tokens_of_allocated": run.tokens_of_allocated, **_brief(run)}

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
            made.append(_smaller(findings.of(mode), mode))
        return made


def _simulated(bench: Bench, policy: Any) -> Serve:
    """As the paper: OPT-13B, ShareGPT, two requests a second."""
    serve = scene(bench, "opt-13b", "sharegpt", policy=policy, num_requests=400 if bench.quick else 1800)
    return msgspec.structs.replace(serve, rate=RATE)


def _brief(run: Replayed) -> dict[str, Any]:
    return {"requests_at_once": run.requests_at_once, "num_requests": run.num_requests, "preemptions": run.preemptions}


def _of_kind(found: Sequence[Measured], kind: str) -> list[Measured]:
    return [m for m in found if m["kind"] == kind]


def _share(found: Sequence[Measured], size: int) -> float:
    return next(float(m["tokens_of_allocated"]) for m in _of_kind(found, "block") if m["block"] == size)


def _wastes(found: Sequence[Measured]) -> list[float]:
    return [1 - _share(found, size) for size in BLOCK_SIZES]


def _block_table(found: Sequence[Measured], mode: Mode) -> Table:
    rows: list[list[str | int]] = [[size, _percent(_share(found, size))] for size in BLOCK_SIZES]
    notes = [_lengths(found[0]), "What a step costs with each size is in Fig. 18b."]
    return Table(f"Paged, by block size, {_title(mode)}", ["block size", "allocated slots that hold tokens"], rows, notes)


def _smaller(found: Sequence[Measured], mode: Mode) -> Verdict:
    """The largest blocks that waste next to nothing."""
    size = next((size for size in BLOCK_SIZES if _share(found, size) >= ENOUGH_SMALLER), 1)
    what = f"largest blocks of whose slots {ENOUGH_SMALLER:.0%} hold tokens, {_title(mode)}"
    return Verdict(what, "", f"{size} ({_share(found, size):.1%})")


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
