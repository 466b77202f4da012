"""The order in which requests are served: a key function; the smallest key comes first, the largest is preempted first."""

from collections.abc import Callable

from octavo.config import SchedulingPolicy
from octavo.engine.sequence import SequenceGroup

Key = tuple[int, ...]


def fcfs(group: SequenceGroup) -> Key:
    """First come, first served."""
    return (group.order,)


def priority(group: SequenceGroup) -> Key:
    """Lower ``priority`` first, then first come."""
    return (group.request.priority, group.order)


POLICIES: dict[SchedulingPolicy, Callable[[SequenceGroup], Key]] = {"fcfs": fcfs, "priority": priority}
