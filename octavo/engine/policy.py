"""The order in which requests are served: the smallest key comes first, the largest is preempted first.

A policy is a key function, and may remember what came before. Invariant: the key of a group stays as it is from its arrival to
its end, because queues are sorted by it.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from octavo.config import SchedulingPolicy
from octavo.engine.sequence import SequenceGroup

Key = tuple[int, ...]
EXPECTED_OUTPUT = 256
"""Tokens that a branch is taken to generate before it is known, unless it may not."""


class Policy(Protocol):
    """One scheduler's."""

    def key(self, group: SequenceGroup) -> Key: ...

    def arrived(self, group: SequenceGroup) -> None:
        """To be told before the key is asked for."""
        ...

    def began(self, group: SequenceGroup) -> None: ...

    def ended(self, group: SequenceGroup) -> None: ...


class Fcfs:
    """First come, first served."""

    def key(self, group: SequenceGroup) -> Key:
        return (group.order,)

    def arrived(self, group: SequenceGroup) -> None:
        pass

    def began(self, group: SequenceGroup) -> None:
        pass

    def ended(self, group: SequenceGroup) -> None:
        pass


class Priority(Fcfs):
    """Lower ``priority`` first, then first come."""

    def key(self, group: SequenceGroup) -> Key:
        return (group.request.priority, group.order)


@dataclass(slots=True)
class _Tenant:
    """``turns``: where its groups that have not ended stand in virtual time; ``begun``: the latest that has begun; ``finish``:
    where the next one would, for what the others cost."""

    turns: list[int] = field(default_factory=list)
    begun: int = 0
    finish: int = 0


class Fair:
    """Tenants take turns, by tokens: start-time fair queueing (Goyal, Vin and Cheng, 1996), which is deficit round robin
    without rounds. Who asks for much waits behind who asked for little; one tenant alone is served first come, first served.

    Virtual time is in tokens: a group stands where its tenant's groups before it end, and never before the latest that has
    begun, so that idle time cannot be saved up. What a request will cost is guessed when it comes and put right when it ends:
    one that ends before it has begun has cost nothing and is in nobody's way.
    """

    def __init__(self) -> None:
        self._now = 0
        self._tenants: dict[str, _Tenant] = {}

    def key(self, group: SequenceGroup) -> Key:
        return (group.turn, group.order)

    def arrived(self, group: SequenceGroup) -> None:
        tenant = self._tenants.setdefault(group.request.tenant, _Tenant())
        group.turn = max(self._now, tenant.begun, tenant.finish, *tenant.turns[-1:])
        tenant.turns.append(group.turn)
        tenant.finish = group.turn + _expected(group)

    def began(self, group: SequenceGroup) -> None:
        self._now = max(self._now, group.turn)
        tenant = self._tenants[group.request.tenant]
        tenant.begun = max(tenant.begun, group.turn)

    def ended(self, group: SequenceGroup) -> None:
        tenant = self._tenants[group.request.tenant]
        del tenant.turns[bisect_left(tenant.turns, group.turn)]
        tenant.finish += _used(group) - _expected(group)


def _expected(group: SequenceGroup) -> int:
    prompt = len(group.request.prompt_token_ids)
    return prompt + group.num_sequences * min(group.max_len - prompt, EXPECTED_OUTPUT)


def _used(group: SequenceGroup) -> int:
    if not group.timings.first_scheduled:
        return 0
    return len(group.request.prompt_token_ids) + sum(seq.num_output_tokens for seq in group.sequences)


POLICIES: dict[SchedulingPolicy, Callable[[], Policy]] = {"fcfs": Fcfs, "priority": Priority, "fair": Fair}
