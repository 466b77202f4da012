"""Who waits, who runs, who is swapped out; and who comes or goes next when blocks are scarce.

Owns the groups, their queues and the scheduling policy, by whose order all of it goes: the last one that runs yields first, the
first of all others begins or comes back, and nobody overtakes it. Plans no step. Invariant: only a group without work in flight
is preempted or swapped.
"""

from bisect import insort

from octavo.config import EngineConfig
from octavo.engine.counters import Counters
from octavo.engine.policy import POLICIES, Policy
from octavo.engine.sequence import GroupStatus, Sequence, SequenceGroup
from octavo.engine.swap_cost import SwapCost
from octavo.memory.interface import KVManager
from octavo.step import PENDING

GROWTH = 16
"""Tokens that each running sequence may become longer by before others begin, where groups that yield are computed again."""


class Residence:
    """Every group is in the one queue that its status names, until it is retired."""

    def __init__(self, config: EngineConfig, kv: KVManager, counters: Counters) -> None:
        self.groups: dict[str, SequenceGroup] = {}
        self.compiling: list[SequenceGroup] = []
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []
        self.swapped: list[SequenceGroup] = []
        self._queues = {
            GroupStatus.COMPILING: self.compiling,
            GroupStatus.WAITING: self.waiting,
            GroupStatus.RUNNING: self.running,
            GroupStatus.SWAPPED: self.swapped,
        }
        self.swap_cost = SwapCost()
        self._kv = kv
        self._config = config
        self._counters = counters
        self._policy: Policy = POLICIES[config.scheduling_policy]()

    def add(self, group: SequenceGroup) -> None:
        """A new group waits, for its grammar first if it has one."""
        self.groups[group.request.id] = group
        self._policy.arrived(group)
        self.enqueue(group, GroupStatus.WAITING if group.compiling is None else GroupStatus.COMPILING)

    def enqueue(self, group: SequenceGroup, status: GroupStatus) -> None:
        """Put a group that is in no queue into one."""
        group.status = status
        insort(self._queues[status], group, key=self._policy.key)

    def release(self, seq: Sequence) -> None:
        """Free at once, also with steps in flight: a late write can only touch a slot that is in no hashed block, because
        the device runs plans in order."""
        self._kv.free(seq)
        seq.finished = True
        while seq.token_ids[-1] == PENDING:  # draws that nobody will hear of
            seq.token_ids.pop()

    def retire(self, group: SequenceGroup) -> None:
        """A group has ended and is forgotten."""
        self._queues[group.status].remove(group)
        group.status = GroupStatus.FINISHED
        if group.compiling is not None:
            group.compiling.cancel()
        self._policy.ended(group)
        del self.groups[group.request.id]

    @property
    def running_sequences(self) -> list[Sequence]:
        return [seq for group in self.running for seq in group.sequences if not seq.finished]

    @property
    def num_free_rows(self) -> int:
        """That are not spoken for by groups that run."""
        return self._config.max_num_seqs - sum(group.width for group in self.running)

    # ---------------------------------------------------------------------------------------------------------- yielding

    def make_room(self, group: SequenceGroup, demand: list[tuple[Sequence, int]]) -> bool:
        """Groups yield, the last one first, until the demand fits. False: the group itself did, or the last one still has
        work in flight; it gets no more, so that the queue drains."""
        while not self._kv.fits(demand):
            victim = self.running[-1]
            if victim.num_in_flight:
                return False
            self._preempt(victim)
            if victim is group:
                return False
        return True

    def _preempt(self, group: SequenceGroup) -> None:
        """Take all blocks of an idle running group: move them to the host, or give them up and compute them again."""
        self.running.remove(group)
        live = group.live
        group.num_preemptions += 1
        self._counters.preemptions += 1
        if self._price_of_swapping(live) is not None:
            self._kv.swap_out(live)
            group.num_swaps += 1
            self.enqueue(group, GroupStatus.SWAPPED)
            return
        for seq in live:
            self._kv.free(seq)
            seq.num_computed = 0
            seq.drafts = []
        group.candidates.clear()  # they come again, with those of all beams
        if group.needs_prompt_logprobs:
            group.prompt_logprobs = None
        self.enqueue(group, GroupStatus.WAITING)

    def _price_of_swapping(self, live: list[Sequence]) -> float | None:
        """What it takes to move a group out and in, as a part of computing it again. None: it is to be computed again."""
        num_blocks, mode = self._kv.num_distinct_blocks(live), self._config.preemption_mode
        if mode == "recompute" or not 0 < num_blocks <= self._kv.host.num_free:
            return None
        part = self.swap_cost.part_of_recomputing(num_blocks=num_blocks, num_tokens=num_blocks * self._kv.block_size)
        return part if part < 1.0 or mode == "swap" else None

    # ------------------------------------------------------------------------------------------------------------- beginning

    @property
    def next(self) -> SequenceGroup | None:
        """Of the swapped and the waiting groups the one whose turn it is."""
        return min(self.swapped[:1] + self.waiting[:1], key=self._policy.key, default=None)

    def begin(self, group: SequenceGroup, budget: int, slack: int) -> bool:
        """Let it run, if ``slack`` blocks remain and, where prompts are not split, ``budget`` tokens suffice."""
        return self._resume(group, slack) if group.status is GroupStatus.SWAPPED else self._admit(group, budget, slack)

    def blocks_of_siblings(self, group: SequenceGroup) -> int:
        """What the branches that a preempted group has beside its first will take, if they share no more than the prompt: it
        comes back when all of them fit, or they would be computed only to yield again."""
        if not group.forked:
            return 0
        live = group.live
        first, longest = live[0], max(len(seq.token_ids) for seq in live)
        needed = self._kv.blocks_needed(prompt_len=first.prompt_len, max_len=longest + 1, num_sequences=len(live))
        return needed - self._kv.num_blocks_for(len(first.token_ids))

    def slack(self, running: list[Sequence]) -> int:
        """Free blocks to leave for what already runs. None when nothing does: an empty device refuses nobody."""
        if not running:
            return 0
        return self._kv.slack(running, growth=round(GROWTH * self._cost_of_yielding()))

    def _cost_of_yielding(self) -> float:
        """Price of preempting the last group; 1: that of computing it again. The cheaper it is to bring a group back, the less
        room is kept for running groups to grow."""
        price = self._price_of_swapping(self.running[-1].live)
        return 1.0 if price is None else price

    def _resume(self, group: SequenceGroup, slack: int) -> bool:
        needed = self._kv.num_to_swap_in(group.live) + len(group.live) * bool(self.running)
        if needed + slack > self._kv.device.num_free:
            return False
        self.swapped.remove(group)
        self._kv.swap_in(group.live)
        self.enqueue(group, GroupStatus.RUNNING)
        return True

    def _admit(self, group: SequenceGroup, budget: int, slack: int) -> bool:
        first = group.live[0]
        wants_logits = group.needs_prompt_logprobs
        if not wants_logits:
            self._kv.match_prefix(first)
        lacking = len(first.token_ids) - first.num_computed
        fits = self._kv.fits([(first, lacking)], spare=slack + self.blocks_of_siblings(group))
        if not fits or (lacking > budget and not self._config.enable_chunked_prefill):
            self._kv.free(first)
            first.num_computed = 0
            return False
        if wants_logits:
            group.prompt_logprobs = []
        elif not group.num_preemptions:
            group.num_cached_tokens = first.num_computed
            self._counters.prefix_cache_queries += len(first.token_ids)
            self._counters.prefix_cache_hits += first.num_computed
        first.usage.shared += len(first.blocks)
        self._kv.allocate(first, 0)  # what is reserved in advance is, even if the step has no token left for it
        self.waiting.remove(group)
        self._policy.began(group)
        self.enqueue(group, GroupStatus.RUNNING)
        return True
