"""What is counted: ``EngineStats`` after every step (engine to API), and histograms with fixed buckets.

A leaf: plain numbers, no exporter. The engine fills ``EngineStats`` and sends it with its deltas; the server renders it.
Counters only grow for the life of one engine process; gauges are the value after the last step.
"""

import bisect

import msgspec


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine after a step. The first group are gauges, the second are counters since the engine was built.

    ``blocks_*`` count device blocks: used + cached + free = total, where ``cached`` blocks are free to take but keep a prefix,
    and ``shared`` and ``pinned`` (parts of used) have more than one owner or stay for good. ``token_slots_used`` are slots of
    used blocks that hold a token. ``block_references`` are the entries of all block tables, ``blocks_referenced`` the blocks
    behind them. ``prefix_cache_queries`` and ``prefix_cache_hits`` are in tokens, swaps in blocks; ``drafts`` are verifications
    of ``draft_tokens`` guessed tokens.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    blocks_shared: int = 0
    blocks_pinned: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    token_slots_used: int = 0
    block_references: int = 0
    blocks_referenced: int = 0

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    swaps_in: int = 0
    swaps_out: int = 0
    copy_on_writes: int = 0

    @property
    def memory_saved(self) -> float:
        """Share of the blocks that the running sequences would hold without sharing, and do not, in [0, 1)."""
        return 1.0 - self.blocks_referenced / self.block_references if self.block_references else 0.0


COUNTERS = EngineStats.__struct_fields__[EngineStats.__struct_fields__.index("steps") :]
"""The fields of ``EngineStats`` that only grow."""


def continued(stats: EngineStats, before: EngineStats) -> EngineStats:
    """``stats`` with the counters of an earlier engine added, so that they keep growing when a new engine takes over."""
    return msgspec.structs.replace(stats, **{name: getattr(stats, name) + getattr(before, name) for name in COUNTERS})


class Histogram:
    """Counts of values in fixed buckets. ``bounds`` are upper limits, inclusive, ascending; one more bucket holds the rest."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self, bounds: tuple[float, ...] | None = None) -> list[tuple[str, float]]:
        """(upper limit as text, number of values up to it), the form that Prometheus wants. ``bounds``: only these limits."""
        rows: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            running += count
            if bounds is None or bound in bounds:
                rows.append((repr(float(bound)), float(running)))
        return [*rows, ("+Inf", float(self.count))]
