"""How pictures look: frames, colours, curves, bars; and how every one is written.

Knows no figure. matplotlib is imported when a picture is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench.report import writing
from octavo.config import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
INK, GRID, MUTED = "#22272e", "#e4e7eb", "#6b737c"
POLICY_COLORS = {
    "paged": "#1f6fb4",
    "orca-oracle": "#3c9a5f",
    "orca-pow2": "#c9a227",
    "orca-max": "#c2571a",
    "fastertransformer": "#7d5ba6",
}
COLORS = ("#1f6fb4", "#c2571a", "#3c9a5f", "#7d5ba6", "#c9a227", "#4b9aa8", "#b5476b", "#8a8f98", "#5b7f2b")
_BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
"""Behind a number, so that no line goes through it."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")


@dataclass(frozen=True)
class Curve:
    """Points of one thing, joined. ``dashed``: the paper's, or a reference."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    color: str
    marker: str = "o"
    dashed: bool = False


@dataclass(frozen=True)
class Bars:
    """One bar for each group. A value of None leaves its place empty."""

    label: str
    values: Sequence[float | None]
    color: str
    hatched: bool = False


def check() -> None:
    """Before minutes of measuring. Raises ``ConfigError`` where no picture could be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: run `pip install 'octavo[plot]'`") from error


def check_file(path: str | None, flag: str) -> None:
    """The same, and that ``write`` could write this kind of file, where one is asked for."""
    if path is None:
        return
    if Path(path).suffix not in SUFFIXES:
        raise ConfigError(f"{flag} {path}: the file's name must end in {' or '.join(SUFFIXES)}")
    check()


def sheet(columns: int, rows: int = 1, *, width: float = 5.2, height: float = 3.6) -> tuple["Figure", list[Any]]:
    """An empty picture and its panels, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flatten())


def frame(axes: Any, *, title: str, x: str, y: str, percent: bool = False) -> None:
    """Title, names of axes and a quiet grid."""
    axes.set_title(title[:1].upper() + title[1:], fontsize=10, color=INK)
    axes.set_xlabel(x, fontsize=8.5, color=INK)
    axes.set_ylabel(y, fontsize=8.5, color=INK)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=GRID, which="both")
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.6g}%")  # as many decimals as a tick has
    for spine in axes.spines.values():
        spine.set_color(GRID)


def curves(axes: Any, drawn: Sequence[Curve], *, top: float | None = None) -> None:
    """Lines with markers. What lies above ``top`` is cut off, as the line shows."""
    for curve in drawn:
        axes.plot(
            curve.xs,
            curve.ys,
            color=curve.color,
            marker=curve.marker,
            markersize=4.5,
            linewidth=1.5,
            linestyle="--" if curve.dashed else "-",
            label=curve.label,
        )
    if top is not None:
        axes.set_ylim(0, top)


def bars(axes: Any, groups: Sequence[str], drawn: Sequence[Bars], *, numbers: str = "{:.0%}") -> None:
    """Groups of bars side by side, each with its number at its end; ``numbers`` formats them, "" leaves them out."""
    width = 0.8 / max(1, len(drawn))
    for place, series in enumerate(drawn):
        offset = (place - (len(drawn) - 1) / 2) * width
        at = [index + offset for index, value in enumerate(series.values) if value is not None]
        heights = [value for value in series.values if value is not None]
        fill, hatch = ("white", "////") if series.hatched else (series.color, "")
        axes.bar(
            at, heights, width * 0.92, label=series.label, facecolor=fill, edgecolor=series.color, hatch=hatch, linewidth=0.8
        )
        for x, height in zip(at, heights, strict=True):
            if numbers:
                axes.annotate(
                    numbers.format(height),
                    (x, height),
                    xytext=(0, 2 if height >= 0 else -2),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if height >= 0 else "top",
                    fontsize=7 if len(drawn) * len(groups) < 16 else 6,
                    color=INK,
                    bbox=_BLANK,
                )
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.grid(False, axis="x")
    axes.margins(y=0.15)
    if len(drawn) > 1:
        legend(axes)


def stacks(axes: Any, groups: Sequence[str], parts: Mapping[str, Sequence[float]], colors: Mapping[str, str]) -> None:
    """One bar a group, made of parts; a part of at least 4 % has its number in it."""
    bottom = [0.0] * len(groups)
    for name, values in parts.items():
        axes.bar(range(len(groups)), values, 0.7, bottom=bottom, color=colors[name], label=name)
        for x, (low, value) in enumerate(zip(bottom, values, strict=True)):
            if value >= 0.04:
                axes.text(x, low + value / 2, f"{value:.1%}", ha="center", va="center", fontsize=7, color="white")
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.set_ylim(0, 1)
    axes.grid(False, axis="x")


def common_legend(axes: Any) -> None:
    """What the colours of all panels mean, once, below them."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)


def legend(axes: Any) -> None:
    axes.legend(fontsize=7.5, frameon=True, framealpha=0.85, edgecolor=GRID)


def level(axes: Any, value: float, text: str) -> None:
    """A horizontal line with its meaning."""
    axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=":")
    axes.annotate(
        text,
        (1, value),
        xycoords=("axes fraction", "data"),
        xytext=(-3, 2),
        textcoords="offset points",
        ha="right",
        fontsize=7.5,
        color=MUTED,
    )


def write(picture: "Figure", path: str | Path) -> None:
    """As the kind of file that ``path`` ends in: the same picture gives the same bytes. Raises ``ConfigError``."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "octavo"}), writing(path):
        picture.savefig(path, metadata={"Date": None} if Path(path).suffix == ".svg" else None)


def save(picture: "Figure", path: Path) -> None:
    """As ``path`` with .svg and with .png. Raises ``ConfigError``."""
    for suffix in SUFFIXES:
        write(picture, path.with_suffix(suffix))
