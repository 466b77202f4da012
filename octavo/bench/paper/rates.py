"""How latency grows with the rate of requests, and the knee: the rate at which it passes a threshold.

Knows no figure. Runs last equally long at every rate, so a slow policy is not measured longer than a fast one; rates are
chosen around what the engine computes when all requests are there at once. Single runs are noisy, and latency cannot fall as
the rate grows: so the knee is where the rising curve nearest to all runs passes the threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Any

import msgspec

from octavo.bench.paper.bench import Bench
from octavo.bench.paper.driver import Replayed
from octavo.bench.paper.workload import Serve

GIVE_UP = 4.0
"""Times the threshold at which a run is ended."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Of one search. ``threshold`` is in seconds a token, ``seconds`` of arrivals in one run, ``fewest`` requests of it. The
    curve is measured at ``fractions`` of the capacity; the knee is known when the rates around it differ by ``closeness``, or
    as well as ``most_runs`` tell."""

    threshold: float
    seconds: float
    fewest: int = 20
    fractions: Sequence[float] = (0.4, 0.7, 0.9)
    closeness: float = 1.06
    most_runs: int = 14

    def spec(self) -> dict[str, Any]:
        """For a point's specification."""
        return {
            "threshold": self.threshold,
            "seconds": self.seconds,
            "fewest": self.fewest,
            "fractions": list(self.fractions),
            "closeness": self.closeness,
            "most_runs": self.most_runs,
        }


def sweep(bench: Bench, base: Serve, plan: Plan) -> dict[str, Any]:
    """``base`` at several rates: ``knee`` and ``capacity`` in requests a second, ``curve`` of all runs by rate. ``base`` has
    the number of requests that are computed all at once."""
    full = bench.served(msgspec.structs.replace(base, rate=None))
    capacity = _capacity(bench, base, full)
    found: dict[float, Replayed] = {}

    def at(rate: float) -> bool:
        """Whether the rate is sustained."""
        rate = float(f"{rate:.4g}")
        num_requests = max(plan.fewest, round(rate * plan.seconds))
        limit = GIVE_UP * plan.threshold
        found[rate] = bench.served(msgspec.structs.replace(base, rate=rate, num_requests=num_requests, limit=limit))
        return found[rate].normalized_latency <= plan.threshold

    for fraction in plan.fractions:
        at(fraction * capacity)
    _bracket(found, at, plan)
    low, high = bounds(found, plan.threshold)
    while high / low > plan.closeness and len(found) < plan.most_runs:
        at((low * high) ** 0.5)
        low, high = bounds(found, plan.threshold)
    curve = [
        {
            "rate": rate,
            "latency": found[rate].normalized_latency,
            "gave_up": found[rate].gave_up,
            "requests_at_once": found[rate].requests_at_once,
            "num_requests": found[rate].num_requests,
        }
        for rate in sorted(found)
    ]
    knee = crossing([(rate, found[rate].normalized_latency) for rate in sorted(found)], plan.threshold)
    return {"knee": knee, "capacity": capacity, "at_once": full.requests_at_once, "curve": curve}


def _capacity(bench: Bench, base: Serve, full: Replayed) -> float:
    """Requests a second when there are always more."""
    arrivals = bench.traces.arrivals(msgspec.structs.replace(base, rate=None))
    tokens = sum(arrival.output_len * arrival.branches for arrival in arrivals) / len(arrivals)
    return full.output_rate / tokens


def bounds(found: dict[float, Replayed], threshold: float) -> tuple[float, float]:
    """The highest rate below the first that is not sustained, and that one. Of a bracket."""
    rates = sorted(found)
    high = next((rate for rate in rates if found[rate].normalized_latency > threshold), rates[-1])
    return max((rate for rate in rates if rate < high), default=high), high


def crossing(points: Sequence[tuple[float, float]], threshold: float) -> float:
    """The rate at which latency passes the threshold, of (rate, latency) by rate: on the rising curve whose logarithm is
    nearest to all points, in a straight line between them. A rate at the end if none or all are above."""
    rates = [log(rate) for rate, _ in points]
    heights = _rising([log(latency / threshold) for _, latency in points])
    if heights[0] > 0 or heights[-1] <= 0:
        return points[0 if heights[0] > 0 else -1][0]
    below, above = next(pair for pair in pairwise(range(len(points))) if heights[pair[1]] > 0)
    part = -heights[below] / (heights[above] - heights[below])
    return exp(rates[below] + part * (rates[above] - rates[below]))


def _rising(values: Sequence[float]) -> list[float]:
    """The sequence that never falls with the smallest sum of squared differences: neighbours that fall become their mean (pool
    adjacent violators, Ayer et al. 1955)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [_mean(pool) for pool in pools for _ in pool]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _bracket(found: dict[float, Replayed], at: Any, plan: Plan) -> None:
    """Until a rate that is sustained lies below one that is not."""
    while len(found) < plan.most_runs and all(run.normalized_latency > plan.threshold for run in found.values()):
        at(min(found) * 0.6)
    while len(found) < plan.most_runs and all(run.normalized_latency <= plan.threshold for run in found.values()):
        at(max(found) * 1.25)
