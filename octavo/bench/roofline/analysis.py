"""From measured calls to shares of limits. Pure: knows records, ceilings and arithmetic, runs nothing.

Of all runs the fastest quarter counts, as a whole: what other programs took is left out, as in ceilings, and parts add up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

from octavo.bench.roofline.limits import Ceilings
from octavo.bench.roofline.result import Gain, OpResult, Outside, StepResult
from octavo.bench.roofline.steps import EngineStep, Shape
from octavo.bench.roofline.timed import Call
from octavo.bench.roofline.work import Precision, Work, kinds_of, work_of

T = TypeVar("T")
OUTSIDE = "outside of ops"


@dataclass
class Samples:
    """All that was measured of one shape. The calls of a run are the same ops in every run."""

    shape: Shape
    kinds: list[str]
    works: list[Work]
    eager: list[list[float]] = field(default_factory=list)
    """Seconds of each call, run by run."""
    whole: list[float] = field(default_factory=list)
    parts: list[EngineStep] = field(default_factory=list)

    @property
    def footprint(self) -> int:
        """Bytes that a step streams."""
        return sum(work.streamed_bytes for work in self.works)

    @classmethod
    def of(cls, shape: Shape, calls: Sequence[Call], precision: Precision) -> "Samples":
        """Before the first measurement: what the ops of such a step are."""
        return cls(
            shape,
            kinds=kinds_of([call.op for call in calls]),
            works=[work_of(call, precision) for call in calls],
        )


def fastest(values: Sequence[T], key: Callable[[T], float]) -> list[T]:
    """A quarter of them, at least one."""
    return sorted(values, key=key)[: (len(values) + 3) // 4]


def analyse(samples: Samples, ceilings: Ceilings) -> StepResult:
    """One step's result, under the ceilings."""
    ops = _ops(samples, ceilings)
    ops_seconds = sum(op.seconds for op in ops)
    step = fmean(fastest(samples.whole, float))
    limit = sum(op.limit_seconds for op in ops)
    return StepResult(
        kind="prefill" if samples.shape.prefill else "decode",
        batch_size=samples.shape.batch_size,
        context_len=samples.shape.context_len,
        streamed_bytes=samples.footprint,
        bandwidth=ceilings.bandwidth_of(samples.footprint),
        ops=ops,
        ops_seconds=ops_seconds,
        outside=_outside(samples, ops),
        step_seconds=step,
        limit_seconds=limit,
        share=limit / step,
        largest_gain=_largest_gain(ops, step, ops_seconds),
    )


def _ops(samples: Samples, ceilings: Ceilings) -> list[OpResult]:
    """The kinds in the order of their first call."""
    runs = fastest(samples.eager, sum)
    seconds = [fmean(times) for times in zip(*runs, strict=True)]
    limits = [ceilings.limit(work, footprint=samples.footprint) for work in samples.works]
    results = []
    for kind in dict.fromkeys(samples.kinds):
        mine = [i for i, other in enumerate(samples.kinds) if other == kind]
        taken, least = sum(seconds[i] for i in mine), sum(limits[i][0] for i in mine)
        by_bound: dict[str, float] = {}
        for i in mine:
            by_bound[limits[i][1]] = by_bound.get(limits[i][1], 0.0) + limits[i][0]
        results.append(
            OpResult(
                kind=kind,
                calls=len(mine),
                seconds=taken,
                streamed_bytes=sum(samples.works[i].streamed_bytes for i in mine),
                activation_bytes=sum(samples.works[i].activation_bytes for i in mine),
                flops=sum(samples.works[i].flops for i in mine),
                limit_seconds=least,
                share=least / taken,
                bound=max(by_bound, key=lambda name: by_bound[name]),
            )
        )
    return results


def _outside(samples: Samples, ops: list[OpResult]) -> Outside:
    steps = fastest(samples.parts, lambda step: step.scheduler + step.worker + step.commit)
    worker = fmean(step.worker for step in steps)
    sampler = fmean(step.sampler for step in steps)
    sampling = sum(op.seconds for op in ops if op.kind == "sampling")
    rest = sum(op.seconds for op in ops) - sampling
    return Outside(
        scheduler=fmean(step.scheduler for step in steps),
        commit=fmean(step.commit for step in steps),
        sampler=sampler - sampling,
        worker=worker - sampler - rest,
    )


def _largest_gain(ops: list[OpResult], step: float, ops_seconds: float) -> Gain:
    gains = {op.kind: op.seconds - op.limit_seconds for op in ops} | {OUTSIDE: step - ops_seconds}
    kind = max(gains, key=lambda name: gains[name])
    return Gain(kind=kind, seconds=gains[kind], share_of_step=gains[kind] / step)
