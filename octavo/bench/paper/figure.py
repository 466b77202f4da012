"""What a figure is: points to measure, and what their records become: tables, a picture, verdicts.

Plain data and one protocol. A figure computes nothing but what its points ask for, and draws nothing but records, so that a
figure can be drawn again from what was written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from octavo.bench.paper.bench import Bench

Mode = Literal["real", "simulated"]
MODES: tuple[Mode, ...] = ("real", "simulated")
Record = Mapping[str, Any]
"""What was measured at a point; made of what JSON has."""

Cell = str | float | int | None


@dataclass(frozen=True)
class Point:
    """One thing to measure. ``key`` is unique within its figure and good for a file's name; ``spec`` says everything that the
    result depends on beside the engine's settings, so that a stored result is taken for no other."""

    key: str
    mode: Mode
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """A point and what came of it."""

    point: Point
    record: Record

    def __getitem__(self, name: str) -> Any:
        """From the spec, or else from the record."""
        return self.point.spec[name] if name in self.point.spec else self.record[name]


@dataclass(frozen=True)
class Table:
    """``columns`` name the cells of each row. A float's digits are chosen by its size; None is an empty cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """The paper's number beside ours. ``met`` None: nothing was promised, the numbers are shown."""

    what: str
    paper: str
    ours: str
    wanted: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def word(self) -> str:
        return {True: "met", False: "not met", None: "shown"}[self.met]


@dataclass(frozen=True)
class Findings:
    """A figure's records by mode, in the order of its points."""

    by_mode: Mapping[Mode, Sequence[Measured]] = field(default_factory=dict)

    def of(self, mode: Mode) -> Sequence[Measured]:
        return self.by_mode.get(mode, ())

    @property
    def modes(self) -> list[Mode]:
        """Those with records."""
        return [mode for mode in MODES if self.of(mode)]


class Figure(Protocol):
    """One figure of the paper. ``number`` is as the paper counts: "Fig. 12"."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def modes(self) -> tuple[Mode, ...]: ...

    def points(self, bench: "Bench", mode: Mode) -> Sequence[Point]:
        """What to measure, in order."""
        ...

    def measure(self, bench: "Bench", point: Point) -> Record:
        """One point. Whatever takes long within it goes through ``bench.served``, which remembers."""
        ...

    def tables(self, findings: Findings) -> Sequence[Table]: ...

    def picture(self, findings: Findings) -> "Picture": ...

    def verdicts(self, findings: Findings) -> Sequence[Verdict]: ...
