"""Knees of curves that are known beforehand."""

from math import log
from typing import Any

import pytest

from octavo.bench.paper.driver import Replayed
from octavo.bench.paper.rates import Plan, crossing, sweep
from octavo.bench.paper.scenes import scene
from octavo.bench.paper.workload import Serve
from tests.bench.paper.conftest import MakeBench, replayed


class Known:
    """A bench whose engine sustains ``knee`` requests a second and says ``capacity`` when all are there at once."""

    def __init__(self, inner: Any, *, knee: float, capacity: float) -> None:
        self.traces = inner.traces
        self.knee, self.capacity = knee, capacity
        self.asked: list[Serve] = []

    def served(self, serve: Serve) -> Replayed:
        if serve.rate is None:
            arrivals = self.traces.arrivals(serve)
            mean = sum(arrival.output_len for arrival in arrivals) / len(arrivals)
            return replayed(output_rate=self.capacity * mean)
        self.asked.append(serve)
        return replayed(normalized_latency=0.01 if serve.rate <= self.knee else 5.0)


PLAN = Plan(threshold=0.1, seconds=10.0, fewest=5, fractions=(0.5, 0.9), closeness=1.05)


@pytest.mark.parametrize("knee", [0.2, 1.0, 3.9, 4.0, 9.7])
def test_the_knee_is_found_wherever_it_is(make_bench: MakeBench, knee: float) -> None:
    bench = make_bench()
    known = Known(bench, knee=knee, capacity=4.0)
    found = sweep(known, scene(bench, "here", "alpaca"), PLAN)  # type: ignore[arg-type]
    assert knee / PLAN.closeness / 1.001 <= found["knee"] <= knee * PLAN.closeness * 1.001
    assert found["capacity"] == pytest.approx(4.0)
    rates = [at["rate"] for at in found["curve"]]
    assert rates == sorted(set(rates)) and {2.0, 3.6} <= set(rates)


def test_runs_last_equally_long(make_bench: MakeBench) -> None:
    bench = make_bench()
    known = Known(bench, knee=3.0, capacity=4.0)
    sweep(known, scene(bench, "here", "alpaca"), PLAN)  # type: ignore[arg-type]
    for serve in known.asked:
        assert serve.rate is not None and serve.num_requests == max(5, round(serve.rate * 10))
        assert serve.limit == pytest.approx(0.4)


def test_a_search_ends(make_bench: MakeBench) -> None:
    bench = make_bench()
    for knee in (0.0, 1e9):
        known = Known(bench, knee=knee, capacity=4.0)
        sweep(known, scene(bench, "here", "alpaca"), PLAN)  # type: ignore[arg-type]
        assert len(known.asked) == PLAN.most_runs


@pytest.mark.parametrize(
    ("latencies", "knee"),
    [
        ([0.01, 0.01, 1.0], 2 * 2**0.5),
        ([0.01, 0.1, 1.0], 2.0),
        ([0.02, 0.3, 0.2, 0.9], 2 ** (log(0.1 / 0.02) / log(0.06**0.5 / 0.02))),
        ([0.01, 0.02, 0.03], 4.0),
        ([0.2, 0.3, 0.4], 1.0),
    ],
)
def test_the_knee_is_where_the_rising_curve_passes_the_threshold(latencies: list[float], knee: float) -> None:
    """At rates of 1, 2, 4 and so on, threshold 0.1. In the third one run at 2 came out slower than that at 4: both are seen as
    their geometric mean."""
    points = [(2.0**i, latency) for i, latency in enumerate(latencies)]
    assert crossing(points, 0.1) == pytest.approx(knee)
