"""Findings as files and lines: a figure's tables in Markdown and JSON, its picture, the summary of all.

Knows how things are written, not what they mean.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from octavo.bench import drawing
from octavo.bench.paper.figure import Cell, Figure, Findings, Table, Verdict
from octavo.bench.paper.store import write

SUMMARY = "README.md"


def shown(cell: Cell) -> str:
    """A cell as text: three digits where there is a fraction, all of a whole number."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        size = abs(cell)
        digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
        return f"{cell:.{digits}f}"
    return str(cell)


def markdown(table: Table) -> str:
    """Title, table and notes."""
    numeric = [
        all(isinstance(row[i], int | float) or row[i] is None or _is_number(str(row[i])) for row in table.rows)
        for i in range(len(table.columns))
    ]
    title = table.title[:1].upper() + table.title[1:]
    lines = [f"### {title}", "", _row(table.columns), _row("--:" if right else ":--" for right in numeric)]
    lines += [_row(shown(cell) for cell in row) for row in table.rows]
    return "\n".join([*lines, "", *(f"{note}  " for note in table.notes), ""]) if table.notes else "\n".join([*lines, ""])


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "—")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write_figure(folder: Path, figure: Figure, findings: Findings) -> list[Verdict]:
    """NAME.md, NAME.json, NAME.svg and NAME.png. Returns the verdicts."""
    tables, verdicts = list(figure.tables(findings)), list(figure.verdicts(findings))
    path = folder / figure.name
    drawing.save(figure.picture(findings), path)
    parts = [f"## {figure.title} ({figure.number})", f"![{figure.title}]({figure.name}.svg)", *map(markdown, tables)]
    write(path.with_suffix(".md"), "\n\n".join([*parts, verdict_table([(figure, verdicts)])]) + "\n")
    content = {
        "figure": figure.name,
        "paper": figure.number,
        "title": figure.title,
        "tables": [
            {"title": t.title, "columns": list(t.columns), "rows": [list(r) for r in t.rows], "notes": list(t.notes)}
            for t in tables
        ],
        "points": {
            mode: [{"key": m.point.key, "spec": m.point.spec, "record": m.record} for m in findings.of(mode)]
            for mode in findings.modes
        },
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write(path.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
    return verdicts


def verdict_table(found: Sequence[tuple[Figure, Sequence[Verdict]]]) -> str:
    """Paper, ours, verdict; as Markdown."""
    lines = [_row(("figure", "what", "paper", "ours", "wanted", "verdict")), _row([":--"] * 6)]
    notes = []
    for figure, verdicts in found:
        for v in verdicts:
            mark = ""
            if v.note:
                notes.append(v.note)
                mark = f" ({len(notes)})"
            lines.append(_row((figure.number, v.what, v.paper, v.ours, v.wanted, v.word + mark)))
    return "\n".join([*lines, *([""] if notes else []), *(f"{i}. {note}" for i, note in enumerate(notes, 1))])


def verdict_lines(found: Sequence[tuple[Figure, Sequence[Verdict]]]) -> str:
    """The same for a terminal."""
    rows = [("figure", "what", "paper", "ours", "verdict")]
    rows += [(figure.number, v.what, v.paper, v.ours, v.word) for figure, verdicts in found for v in verdicts]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows]
    judged = [v.met for _, verdicts in found for v in verdicts if v.met is not None]
    return "\n".join([*lines, f"{sum(judged)} of {len(judged)} met"])


def write_summary(folder: Path, *, about: Sequence[str], found: Sequence[tuple[Figure, Sequence[Verdict]]]) -> None:
    """The page that leads to all others."""
    lines = ["# The PagedAttention paper's figures, measured with Octavo", "", *about, "", "## Summary", ""]
    lines += [verdict_table(found), "", "## Figures", ""]
    for figure, _ in found:
        lines += [
            f"### {figure.number}: {figure.title}",
            "",
            f"[Tables]({figure.name}.md) and [JSON]({figure.name}.json); the picture as "
            f"[SVG]({figure.name}.svg) and [PNG]({figure.name}.png).",
            "",
            f"![{figure.title}]({figure.name}.svg)",
            "",
        ]
    write(folder / SUMMARY, "\n".join(lines))
