"""Pictures of a run and of a sweep over rates. Imports matplotlib when one is drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.bench import drawing
from octavo.bench.drawing import Curve
from octavo.bench.serve.statistics import Figures, samples
from octavo.bench.serve.table import TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from octavo.bench.serve.driver import Run


def distributions(run: "Run", *, title: str) -> "Figure":
    """For each metric, which part of its values is at most how long, with the median and the 99th percentile marked."""
    picture, panels = drawing.sheet(2, 2)
    for axes, (metric, seconds) in zip(panels, samples(run).items(), strict=True):
        name, short = TITLES[metric]
        values = np.sort(np.asarray(seconds or [0.0])) * 1e3
        drawing.frame(axes, title=name, x=f"{short} (ms)", y="at most so long", percent=False)
        axes.plot(values, np.arange(1, len(values) + 1) / len(values), color=drawing.COLORS[0], linewidth=1.5)
        axes.yaxis.set_major_formatter("{x:.0%}")
        if values[0] > 0 and values[-1] / values[0] > 50:
            axes.set_xscale("log")
        for percent, color in ((50, drawing.COLORS[2]), (99, drawing.COLORS[1])):
            at = float(np.percentile(values, percent))
            axes.axvline(at, color=color, linewidth=1.0, linestyle=":", label=f"p{percent} {at:.4g} ms")
        drawing.legend(axes)
    picture.suptitle(title, fontsize=10, color=drawing.INK)
    return picture


def over_rates(rates: Sequence[float], found: Sequence[Figures], *, title: str) -> "Figure":
    """Requests served and latencies over the rate at which requests came. All at once stands at the right end."""
    picture, panels = drawing.sheet(3)
    places = list(range(len(rates)))
    served = [figures.request_throughput for figures in found]
    offered = [rate if np.isfinite(rate) else max(served) for rate in rates]
    drawing.frame(panels[0], title="Requests served", x="requests offered / s", y="requests / s")
    drawn = [Curve("served", places, served, drawing.COLORS[0])]
    drawing.curves(panels[0], [*drawn, Curve("offered", places, offered, drawing.MUTED, marker="", dashed=True)])
    for axes, metric in zip(panels[1:], ("ttft", "tpot"), strict=True):
        name, short = TITLES[metric]
        drawing.frame(axes, title=name, x="requests offered / s", y=f"{short} (ms)")
        drawing.curves(axes, _latency_curves(places, found, metric))
    for axes in panels:
        axes.set_xticks(places, ["all at once" if not np.isfinite(rate) else f"{rate:g}" for rate in rates])
        axes.set_ylim(bottom=0)
    picture.suptitle(title, fontsize=10, color=drawing.INK)
    return picture


def _latency_curves(places: Sequence[int], found: Sequence[Figures], metric: str) -> list[Curve]:
    times: list[Any] = [figures.times[metric] for figures in found]
    curves = [Curve("median", places, [each.median for each in times], drawing.COLORS[0])]
    for color, marker, percent in zip(drawing.COLORS[1:], drawing.MARKERS[1:], times[0].percentiles, strict=False):
        curves.append(Curve(f"p{percent}", places, [each.percentiles[percent] for each in times], color, marker))
    return curves
