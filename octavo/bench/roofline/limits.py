"""``Ceilings``: what the machine can do at most, measured in rounds, and the time that a piece of work needs under them."""

from dataclasses import dataclass, field

from octavo.backends.cpu import ceilings
from octavo.bench.roofline.work import Work

FOOTPRINTS = (4 << 20, 64 << 20, 512 << 20)
"""Bytes: in the caches of most machines, about as large as them, and in memory."""
ARITHMETIC = ("fp32", "bf16", "int8")
SECONDS = 0.03
"""Of one measurement in one round."""


@dataclass
class Ceilings:
    """The best of all rounds so far; empty before the first."""

    isa: str
    num_threads: int
    bandwidth: dict[int, float] = field(default_factory=dict)
    """Memory read from in bytes -> bytes a second."""
    slowest: dict[int, float] = field(default_factory=dict)
    """The same of the worst round: what the machine does may change while it is measured."""
    peaks: dict[str, float] = field(default_factory=dict)
    """Arithmetic -> operations a second."""
    instructions: dict[str, str] = field(default_factory=dict)

    def measure(self, footprints: list[int]) -> None:
        """One more round, with these footprints beside ``FOOTPRINTS``."""
        for size in {*FOOTPRINTS, *footprints}:
            found = ceilings.read_bandwidth(self.isa, self.num_threads, num_bytes=size, seconds=SECONDS)
            self.bandwidth[size] = max(found, self.bandwidth.get(size, 0.0))
            self.slowest[size] = min(found, self.slowest.get(size, found))
        for arithmetic in ARITHMETIC:
            name, found = ceilings.peak(self.isa, self.num_threads, arithmetic=arithmetic, seconds=SECONDS)
            self.instructions[arithmetic] = name
            self.peaks[arithmetic] = max(found, self.peaks.get(arithmetic, 0.0))

    def bandwidth_of(self, num_bytes: int) -> float:
        """Of the smallest measured memory that holds so much, or of the largest measured."""
        fitting = [size for size in self.bandwidth if size >= num_bytes]
        return self.bandwidth[min(fitting) if fitting else max(self.bandwidth)]

    def limit(self, work: Work, *, footprint: int) -> tuple[float, str]:
        """(Seconds that ``work`` takes at least, what limits it) in a step that streams ``footprint`` bytes in all."""
        candidates = {
            "memory": work.streamed_bytes / self.bandwidth_of(footprint),
            "cache": work.activation_bytes / self.bandwidth_of(work.activation_bytes),
            work.arithmetic: work.flops / self.peaks[work.arithmetic],
        }
        bound = max(candidates, key=lambda name: candidates[name])
        return candidates[bound], bound
