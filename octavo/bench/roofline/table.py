"""A roofline measurement as text for a terminal."""

from octavo.bench.roofline.result import OpResult, RooflineResult, StepResult

STEADY = 0.75
"""Part of the best round's bandwidth from which on the worst round's is as good."""
_HEAD = ("", "calls", "time ms", "of step", "MB", "GFLOP", "limit ms", "limit/time", "limited by")


def text(result: RooflineResult) -> str:
    """Ceilings, then a table a step."""
    reads = ", ".join(f"{_size(int(size))} {rate / 1e9:.0f}" for size, rate in result.bandwidth.items())
    peaks = ", ".join(f"{name} {peak.flops_per_s / 1e9:.0f} ({peak.instruction})" for name, peak in result.peaks.items())
    head = f"{result.model}, weights {result.weights}, {result.backend}\nGB/s read from: {reads}\nGFLOP/s: {peaks}"
    return "\n\n".join([head + _unsteady(result), *(_step(step) for step in result.steps)])


def _unsteady(result: RooflineResult) -> str:
    """A line where memory was not equally fast in all rounds: neighbours, or a virtual machine that has been moved."""
    steadiness = {size: result.slowest_bandwidth[size] / rate for size, rate in result.bandwidth.items()}
    size = min(steadiness, key=lambda size: steadiness[size])
    if steadiness[size] > STEADY:
        return ""
    low, high = result.slowest_bandwidth[size], result.bandwidth[size]
    return f"\nunsteady: {_size(int(size))} were read at {low / 1e9:.0f} to {high / 1e9:.0f} GB/s in turn; measure again"


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"


def _step(step: StepResult) -> str:
    rows = [_HEAD, *(_op(op, step.step_seconds) for op in step.ops)]
    moved, flops = sum(op.bytes for op in step.ops), sum(op.flops for op in step.ops)
    outside = step.outside
    rows += [
        ("ops one by one", *_work("", step.ops_seconds, moved, flops, step.limit_seconds, step.step_seconds), ""),
        *(
            (name, "", f"{seconds * 1e3:.3f}", f"{seconds / step.step_seconds:.1%}", "", "", "", "", "")
            for name, seconds in (
                ("+ batch and calls", outside.worker),
                ("+ sampler", outside.sampler),
                ("+ scheduler", outside.scheduler),
                ("+ commit", outside.commit),
            )
        ),
        ("step as it runs", *_work("", step.step_seconds, moved, flops, step.limit_seconds, step.step_seconds), ""),
    ]
    gain = step.largest_gain
    return (
        f"{step.title}: streams {step.streamed_bytes / 1e6:.0f} MB at up to {step.bandwidth / 1e9:.0f} GB/s\n"
        f"{_aligned(rows)}\n"
        f"largest gain: {gain.kind}, {gain.seconds * 1e3:.3f} ms above its limit, {gain.share_of_step:.0%} of the step"
    )


def _op(op: OpResult, step_seconds: float) -> tuple[str, ...]:
    return (op.kind, *_work(str(op.calls), op.seconds, op.bytes, op.flops, op.limit_seconds, step_seconds), op.bound)


def _work(calls: str, seconds: float, moved: int, flops: int, limit: float, step_seconds: float) -> tuple[str, ...]:
    return (
        calls,
        f"{seconds * 1e3:.3f}",
        f"{seconds / step_seconds:.1%}",
        f"{moved / 1e6:.2f}",
        f"{flops / 1e9:.3f}",
        f"{limit * 1e3:.3f}",
        f"{limit / seconds:.0%}",
    )


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells, row[-1]]).rstrip())
    return "\n".join(lines)
