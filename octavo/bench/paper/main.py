"""``octavo bench paper``: measures the figures that are asked for, writes each when it is done, ends with what was promised.

Figures are measured one after the other, point by point, simulated ones several at once; what an earlier run into the same
directory has measured is not measured again.
"""

import time
from pathlib import Path

import msgspec

from octavo.bench import drawing
from octavo.bench.options import PaperOptions
from octavo.bench.paper import report
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.figure import MODES, Figure, Findings, Measured, Mode
from octavo.bench.paper.figures import FIGURES
from octavo.bench.paper.helpers import Helpers
from octavo.bench.paper.scenes import LONG_LEN, SHRINK, SMALL_LEN, SMALL_POOL
from octavo.config import ConfigError, EngineConfig

QUICK = (
    "- **A quick run**: few requests, one seed, one simulated model. Its numbers show that everything works; they are too "
    "noisy for a judgement."
)


def main(config: EngineConfig, options: PaperOptions) -> None:
    """Measure and report.

    Raises:
        ConfigError: an unknown figure, no matplotlib, or what engines and traces refuse.
    """
    drawing.check()
    figures = chosen(options)
    bench = Bench(config, options)
    check_context(bench, figures)
    folder = Path(options.out)
    found = []
    with Helpers(config, options) as helpers:
        for figure in figures:
            findings = Findings({mode: measure(bench, figure, mode, helpers) for mode in modes_of(figure, options)})
            found.append((figure, report.write_figure(folder, figure, findings)))
            report.write_summary(folder, about=about(bench), found=found)
            bench.say(f"  wrote {folder / figure.name}.md, .json, .svg, .png")
    bench.close()
    print(report.verdict_lines(found))
    print(f"tables and pictures: {folder / report.SUMMARY}")


def chosen(options: PaperOptions) -> list[Figure]:
    """The figures that are asked for, in the paper's order. Raises ``ConfigError`` for a name that is none."""
    known = {figure.name: figure for figure in FIGURES}
    for name in options.figure:
        if name not in known:
            raise ConfigError(f"--figure {name}: no such figure; there are: {', '.join(known)}")
    figures = [figure for figure in FIGURES if not options.figure or figure.name in options.figure]
    able = [figure for figure in figures if modes_of(figure, options)]
    if not able:
        raise ConfigError(f"--mode {options.mode}: {', '.join(f.name for f in figures)} cannot be measured in this mode")
    return able


def check_context(bench: Bench, figures: list[Figure]) -> None:
    """Before minutes of measuring. Raises ``ConfigError`` where the model's context is too short for the real runs."""
    needed = SMALL_LEN if bench.quick else LONG_LEN
    limit = bench.frontend.model_config.max_position_embeddings
    if limit < needed and any("real" in modes_of(figure, bench.options) for figure in figures):
        raise ConfigError(
            f"{bench.config.model}: real runs have sequences of {needed} tokens and the model was made for {limit}: use "
            "another model or --mode simulated"
        )


def modes_of(figure: Figure, options: PaperOptions) -> list[Mode]:
    """The figure's modes that are asked for."""
    return [mode for mode in MODES if mode in figure.modes and options.mode in (None, mode)]


def measure(bench: Bench, figure: Figure, mode: Mode, helpers: Helpers | None = None) -> list[Measured]:
    """All points of a figure in one mode; simulated ones by ``helpers``, if there are any."""
    points = figure.points(bench, mode)
    if helpers is not None and mode == "simulated":
        return [Measured(*each) for each in zip(points, helpers.measure(bench, figure, points), strict=True)]
    made = []
    for number, point in enumerate(points, 1):
        bench.say(f"  {figure.name} [{number}/{len(points)}] {mode}: {point.key}")
        start = time.monotonic()
        record = figure.measure(bench, point)
        if (seconds := time.monotonic() - start) >= 1:
            bench.say(f"    {seconds:.0f} s")
        made.append(Measured(point, msgspec.to_builtins(record)))
    return made


def about(bench: Bench) -> list[str]:
    """What the summary says of all figures."""
    lines = [
        "- *real*: this machine computes every token. *simulated*: the real scheduler and memory manager in virtual time, with "
        "the cost of a step on the paper's machines.",
        "- Requests arrive as a Poisson process; seeds are named in the tables. Outputs are as long as the trace says, "
        "whatever the model would say.",
        f"- Real runs of ShareGPT and chat have their lengths divided by {SHRINK} where a table does not say otherwise, and a "
        f"pool of {SMALL_POOL} slots: one and a half sequences of the longest length, {SMALL_LEN} tokens.",
    ]
    if bench.options.mode != "simulated":
        lines.insert(0, f"- this machine: {bench.machine}; model: {Path(bench.config.model).name}")
    lines += [f"- {name}: {description}." for name, description in bench.described.items()]
    return [*lines, QUICK] if bench.quick else lines
