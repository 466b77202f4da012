"""When groups may begin and when clients hear that they ended: at any step, or in whole batches.

Owns the ends that clients have not been told of. Knows no blocks; the scheduler asks before it admits and on its way out.
"""

from typing import Protocol

import msgspec

from octavo.outputs import RequestMetrics, TokenDelta


class Batching(Protocol):
    """``idle``: nothing runs."""

    @property
    def has_deltas(self) -> bool:
        """Whether clients wait for deltas that are only held back."""
        ...

    @property
    def has_due(self) -> bool:
        """Whether some of them are due with the next step, even one that computes nothing."""
        ...

    def admits(self, *, idle: bool) -> bool:
        """Whether groups may begin in the step that is being planned."""
        ...

    def planned(self, *, is_full: bool) -> None:
        """The step is planned; ``is_full``: more tokens did not fit into it."""
        ...

    def deliver(self, deltas: list[TokenDelta], *, idle: bool, now: float) -> list[TokenDelta]:
        """What clients are told after a step that brought ``deltas``."""
        ...

    def abort(self, request_id: str, branch: int | None, metrics: RequestMetrics | None) -> RequestMetrics | None:
        """A request, or one branch, was aborted; ``metrics`` if that ended it. Forgets what is held back of it; returns the
        metrics if nothing is left to tell."""
        ...


class IterationLevel:
    """Groups begin at any step, and every end is told at once."""

    has_deltas = has_due = False

    def admits(self, *, idle: bool) -> bool:
        return True

    def planned(self, *, is_full: bool) -> None:
        pass

    def deliver(self, deltas: list[TokenDelta], *, idle: bool, now: float) -> list[TokenDelta]:
        return deltas

    def abort(self, request_id: str, branch: int | None, metrics: RequestMetrics | None) -> RequestMetrics | None:
        return metrics


class BatchLevel:
    """A batch is what waits, and fits, when nothing runs; its requests end together, when the last one has.

    Prompts that exceed a step's tokens go on being admitted in the next steps. Last deltas of branches are held back, and
    ``finished_time`` is when they are told; other deltas pass.
    """

    def __init__(self) -> None:
        self._open = False
        self._held: list[TokenDelta] = []
        self._due: list[TokenDelta] = []

    @property
    def has_deltas(self) -> bool:
        return bool(self._held or self._due)

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def admits(self, *, idle: bool) -> bool:
        if idle:
            self._open = True
            self._due += self._held  # the rest of the batch was aborted
            self._held = []
        return self._open

    def planned(self, *, is_full: bool) -> None:
        self._open = self._open and is_full

    def deliver(self, deltas: list[TokenDelta], *, idle: bool, now: float) -> list[TokenDelta]:
        self._held += [delta for delta in deltas if delta.finish_reason is not None]
        told = [delta for delta in deltas if delta.finish_reason is None]
        if idle:
            self._due += self._held
            self._held = []
        ended = [_finished_at(delta, now) for delta in self._due]
        self._due = []
        return told + ended

    def abort(self, request_id: str, branch: int | None, metrics: RequestMetrics | None) -> RequestMetrics | None:
        for held in (self._held, self._due):
            gone = [d for d in held if d.request_id == request_id and branch in (None, d.branch)]
            held[:] = [d for d in held if d not in gone]
            metrics = next((d.metrics for d in gone if d.metrics is not None), metrics)
        if metrics is None:
            return None
        for held in (self._held, self._due):
            for index, delta in enumerate(held):
                if delta.request_id == request_id:  # another branch's end is still to be told: it brings the metrics
                    held[index] = msgspec.structs.replace(delta, metrics=metrics)
                    return None
        return metrics


def _finished_at(delta: TokenDelta, now: float) -> TokenDelta:
    if delta.metrics is None:
        return delta
    metrics = msgspec.structs.replace(delta.metrics, finished_time=now - delta.metrics.arrival_time)
    return msgspec.structs.replace(delta, metrics=metrics)
