"""A roofline measurement as a picture: a panel a step, ceilings as lines, ops as dots below the line that limits them.

matplotlib is imported when a picture is asked for. Reads results, computes nothing of its own: the distance of a dot from its
line is its share.
"""

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench.roofline.limits import FOOTPRINTS
from octavo.bench.roofline.result import OpResult, Peak, RooflineResult, StepResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = 0.01
"""Part of a step from which on an op is drawn."""
_EXPLANATION = (
    "operations per byte moved\n"
    "colour: the ceiling that limits an op;  number: the part of it that is reached;  "
    "size: part of the step, ops below 1 % left out"
)
_MEMORY, _CACHE, _COMPUTE, _INK, _GRID = "#1f6fb4", "#3c9a5f", "#c2571a", "#22272e", "#e4e7eb"
_Box = tuple[float, float, float, float]


def picture(result: RooflineResult) -> "Figure":
    """All steps, two in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(result.steps))
    rows = -(-len(result.steps) // columns)
    figure = Figure(figsize=(6.4 * columns, 4.2 * rows + 0.8), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)  # measures texts
    figure.suptitle(f"{Path(result.model).name}, weights {result.weights}; {result.backend}", fontsize=11)
    figure.supxlabel(_EXPLANATION, fontsize=8.5)
    figure.supylabel("GFLOP/s", fontsize=8.5)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for axes, step in zip(panels, result.steps, strict=False):
        _frame(axes, step, _limits(result))
    for axes in panels[len(result.steps) :]:
        axes.set_visible(False)
    figure.draw_without_rendering()  # settles the layout, for good: labels are placed in pixels
    figure.set_layout_engine("none")
    for axes, step in zip(panels, result.steps, strict=False):
        _ops(axes, step, taken=_ceilings(axes, result, step))
    return figure


def _point(op: OpResult) -> tuple[float, float]:
    """(Operations per byte of what limits it, GFLOP/s)."""
    moved = op.activation_bytes if op.bound == "cache" or not op.streamed_bytes else op.streamed_bytes
    return op.flops / moved, op.flops / op.seconds / 1e9


def _drawn(step: StepResult) -> list[OpResult]:
    """The largest first. Ops that compute nothing have no place on a scale of operations."""
    ops = [op for op in step.ops if op.flops and op.seconds >= DRAWN * step.step_seconds]
    return sorted(ops, key=lambda op: -op.seconds)


def _limits(result: RooflineResult) -> _Box:
    """Of both axes, the same in all panels: (left, bottom, right, top)."""
    xs, ys = zip(*(_point(op) for step in result.steps for op in _drawn(step)), strict=True)
    top = max(peak.flops_per_s for peak in _peaks(result).values()) / 1e9
    return min(xs) / 3, min(ys) / 4, max(100.0, max(xs) * 15), top * 2.5


def _peaks(result: RooflineResult) -> dict[str, Peak]:
    """Of each arithmetic that limits something and of plain numbers; an instruction that serves two only once."""
    used = {op.bound for step in result.steps for op in step.ops} | {"fp32", "bf16"}
    once = {peak.instruction: name for name, peak in result.peaks.items() if name in used}
    return {name: result.peaks[name] for name in once.values()}


def _frame(axes: Any, step: StepResult, limits: _Box) -> None:
    left, bottom, right, top = limits
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    times = f"{step.step_seconds * 1e3:.1f} ms, limit {step.limit_seconds * 1e3:.1f} ms ({step.share:.0%})"
    axes.set_title(f"{step.title}: {times}", fontsize=10)
    axes.grid(True, color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=_GRID, which="both", labelbottom=True, labelleft=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    for spine in axes.spines.values():
        spine.set_color(_GRID)


def _ceilings(axes: Any, result: RooflineResult, step: StepResult) -> list[_Box]:
    """Draws the lines and their names. Returns the places, in pixels, that they take."""
    left, right = axes.get_xlim()
    bottom, _ = axes.get_ylim()
    cache = result.bandwidth[str(FOOTPRINTS[0])] / 1e9
    peaks = {name: peak.flops_per_s / 1e9 for name, peak in _peaks(result).items()}
    top = max(peaks.values())
    taken: list[_Box] = []
    for name, rate, color in (("memory", step.bandwidth / 1e9, _MEMORY), ("cache", cache, _CACHE)):
        begin = max(left, bottom / rate)
        taken += _line(axes, (begin, begin * rate), (top / rate, top), color)
        taken.append(_line_name(axes, f"{name} {rate:.0f} GB/s", begin, rate, color))
    for name, rate in peaks.items():
        taken += _line(axes, (rate / cache, rate), (right, rate), _COMPUTE)
        text = axes.text(right * 0.92, rate * 1.06, f"{name} {rate:.0f} GFLOP/s", color=_COMPUTE, fontsize=8, ha="right")
        taken.append(_box_of(axes, text))
    return taken


def _line(axes: Any, begin: tuple[float, float], end: tuple[float, float], color: str) -> Iterator[_Box]:
    axes.plot([begin[0], end[0]], [begin[1], end[1]], color=color, linewidth=1.4)
    (x0, y0), (x1, y1) = axes.transData.transform([begin, end])
    pieces = int(math.hypot(x1 - x0, y1 - y0) / 6) + 1
    for i in range(pieces + 1):
        yield _around((x0 + (x1 - x0) * i / pieces, y0 + (y1 - y0) * i / pieces), 2.0)


def _line_name(axes: Any, name: str, begin: float, rate: float, color: str) -> _Box:
    """Along a line of so many GB/s, above it, near its beginning."""
    at = begin * 1.5
    (x0, y0), (x1, y1) = axes.transData.transform([(at, at * rate), (10 * at, 10 * at * rate)])
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    text = axes.text(at, at * rate * 1.15, name, color=color, fontsize=8, rotation=angle, rotation_mode="anchor")
    return _box_of(axes, text)


def _ops(axes: Any, step: StepResult, *, taken: list[_Box]) -> None:
    colors = {"memory": _MEMORY, "cache": _CACHE}
    ops = _drawn(step)
    radii = [2.5 + 7.5 * math.sqrt(op.seconds / step.step_seconds) for op in ops]  # points
    pixels = axes.figure.dpi / 72  # of a point
    for op, radius in zip(ops, radii, strict=True):
        color = colors.get(op.bound, _COMPUTE)
        axes.scatter(*_point(op), s=(2 * radius) ** 2, color=color, alpha=0.8, edgecolors="white", linewidths=0.8, zorder=3)
        taken.append(_around(axes.transData.transform(_point(op)), radius * pixels))
    for op, radius in zip(ops, radii, strict=True):
        taken.append(_label(axes, op, radius * pixels, taken))


def _label(axes: Any, op: OpResult, radius: float, taken: list[_Box]) -> _Box:
    """Writes an op's name and share at the nearest free place, or beside it where there is none. Returns the place."""
    dot = axes.transData.transform(_point(op))
    text = axes.annotate(
        f"{op.kind} {op.share:.0%}",
        _point(op),
        xytext=(radius, 0),
        textcoords="offset points",
        fontsize=8,
        color=_INK,
        va="center",
        zorder=4,
        arrowprops={"arrowstyle": "-", "color": "#6b737c", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
    )
    plain = _box_of(axes, text)
    width, height = plain[2] - plain[0], plain[3] - plain[1]
    frame = axes.get_window_extent()
    for dx, dy in _offsets(radius + 4, width, height):
        x, y = dot[0] + dx, dot[1] + dy - height / 2
        box = (x, y, x + width, y + height)
        inside = frame.x0 < x and box[2] < frame.x1 and frame.y0 < y and box[3] < frame.y1
        if inside and not any(_overlap(box, other) for other in taken):
            text.set_position((dx * 72 / axes.figure.dpi, dy * 72 / axes.figure.dpi))
            return box
    return plain


def _offsets(gap: float, width: float, height: float) -> Iterator[tuple[float, float]]:
    """Where a label may begin, from its dot: near places first, of equals those on the right."""
    steps = sorted(product(range(8), range(-8, 9)), key=lambda step: step[0] ** 2 + step[1] ** 2)
    for across, up in steps:
        for dx in (gap + 12 * across, -gap - 12 * across - width):
            yield dx, up * height * 1.05


def _box_of(axes: Any, text: Any) -> _Box:
    from matplotlib.text import Text

    extent = Text.get_window_extent(text, axes.figure.canvas.get_renderer())  # without the leader line of a label
    return extent.x0, extent.y0, extent.x1, extent.y1


def _around(pixel: Any, radius: float) -> _Box:
    return pixel[0] - radius, pixel[1] - radius, pixel[0] + radius, pixel[1] + radius


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
