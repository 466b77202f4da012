"""Ceilings: measured natively, refused clearly, and what they allow."""

import pytest

from octavo import _native
from octavo.bench.roofline.limits import ARITHMETIC, Ceilings
from octavo.bench.roofline.work import Work

USABLE = [name for name, (usable, _) in _native.cpu_features().items() if usable]


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_instruction_set_reads_and_multiplies(isa: str, threads: int) -> None:
    rate = _native.read_bandwidth(isa, threads, cores=[], num_bytes=1 << 20, seconds=0.0)
    assert 1e7 < rate < 1e14
    for arithmetic in ARITHMETIC:
        for kernels in _native.integer_kernels(isa):
            name, found = _native.peak(isa, threads, cores=[], arithmetic=arithmetic, seconds=0.0, integer_kernels=kernels)
            # A compiler that leaves the products out would be a million times too fast.
            assert name and 1e7 < found < 1e14, (arithmetic, kernels)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="unknown instruction set"):
        _native.read_bandwidth("sse9", 1, cores=[], num_bytes=1 << 20, seconds=0.0)
    with pytest.raises(ValueError, match="unknown instruction set"):
        _native.peak("sse9", 1, cores=[], arithmetic="fp32", seconds=0.0)
    with pytest.raises(ValueError, match="unknown arithmetic fp8; known are"):
        _native.peak("generic", 1, cores=[], arithmetic="fp8", seconds=0.0)
    with pytest.raises(ValueError, match="at least one thread"):
        _native.read_bandwidth("generic", 0, cores=[], num_bytes=1 << 20, seconds=0.0)
    with pytest.raises(ValueError, match="too few bytes"):
        _native.read_bandwidth("generic", 1, cores=[], num_bytes=1000, seconds=0.0)
    for seconds in (-1.0, float("nan"), 1e9):
        with pytest.raises(ValueError, match="between 0 and 60 seconds"):
            _native.peak("generic", 1, cores=[], arithmetic="fp32", seconds=seconds)


CEILINGS = Ceilings("x", 1, bandwidth={100: 1000.0, 10_000: 10.0}, peaks={"fp32": 50.0, "bf16": 100.0})


@pytest.mark.parametrize(
    ("work", "seconds", "bound"),
    [
        (Work(streamed_bytes=20, flops=10), 2.0, "memory"),
        (Work(streamed_bytes=20, flops=500), 10.0, "fp32"),
        (Work(streamed_bytes=20, flops=500, arithmetic="bf16"), 5.0, "bf16"),
        (Work(activation_bytes=100), 0.1, "cache"),
        (Work(activation_bytes=200), 20.0, "cache"),
    ],
)
def test_limits(work: Work, seconds: float, bound: str) -> None:
    least, limited_by = CEILINGS.limit(work, footprint=10**6)
    assert least == pytest.approx(seconds) and limited_by == bound


def test_a_memory_between_two_measured_ones_counts_as_the_larger() -> None:
    assert [CEILINGS.bandwidth_of(size) for size in (1, 100, 101, 10**9)] == [1000.0, 1000.0, 10.0, 10.0]
