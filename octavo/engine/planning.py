"""What one step computes of a group: which tokens of its sequences, and everything that the worker must know of them.

Knows the group it is asked about and no other; who is asked, and in which order, is the scheduler's matter. Invariant: what is
planned counts as computed from then on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from octavo.engine import decoding
from octavo.engine.counters import Counters
from octavo.engine.decoding import Planned
from octavo.engine.grammar import both
from octavo.engine.sequence import Sequence, SequenceGroup
from octavo.engine.speculation import Speculation
from octavo.engine.step_budget import StepBudget
from octavo.memory.interface import KVManager
from octavo.step import PENDING, ScheduledSequence

PROMPT_LOGPROBS_CHUNK = 256
"""Prompt tokens a step of a request that wants their log-probabilities: each of them costs a row of logits."""


@dataclass(slots=True)
class Step:
    """A step while it is planned: the tokens that are left, and two lists side by side, for the scheduler and the worker."""

    budget: StepBudget
    planned: list[Planned] = field(default_factory=list)
    scheduled: list[ScheduledSequence] = field(default_factory=list)


class Planner:
    """``demand()`` says what a group would compute in a step, ``plan()`` has it computed."""

    def __init__(
        self,
        kv: KVManager,
        counters: Counters,
        *,
        speculation: Speculation,
        splits_prompts: bool,
        seq_ids: Iterator[int],
        clock: Callable[[], float],
    ) -> None:
        self._kv = kv
        self._counters = counters
        self._speculation = speculation
        self._splits_prompts = splits_prompts
        self._seq_ids = seq_ids
        self._clock = clock

    def demand(self, group: SequenceGroup, step: Step) -> list[tuple[Sequence, int]]:
        """How many tokens each sequence of the group should compute now."""
        demand: list[tuple[Sequence, int]] = []
        taken = 0
        last_computed = group.max_len - 1  # nobody reads what the very last token would add to the cache
        needs_prompt_logprobs = group.needs_prompt_logprobs
        for seq in group.sequences:
            if seq.finished or seq.num_computed >= min(len(seq.token_ids), last_computed):
                continue
            if seq.grammar is not None and seq.grammar.mask is None:
                continue
            if not seq.blocks and group.forked and not self._rebuild(group, seq, demand):
                continue
            lacking = min(len(seq.token_ids) + len(seq.drafts), last_computed) - seq.num_computed
            allowed = step.budget.allowed(lacking, taken)
            if needs_prompt_logprobs:
                allowed = min(allowed, PROMPT_LOGPROBS_CHUNK)
            num_tokens = min(lacking, allowed)
            if num_tokens < lacking and not self._splits_prompts and not needs_prompt_logprobs:
                break
            if num_tokens > 0:
                demand.append((seq, num_tokens))
                taken += num_tokens
        return demand

    def without_drafts(
        self, group: SequenceGroup, demand: list[tuple[Sequence, int]], step: Step
    ) -> list[tuple[Sequence, int]]:
        """The same demand, nothing guessed: nobody yields for a guess."""
        if not any(seq.drafts for seq, _ in demand):
            return demand
        for seq, _ in demand:
            seq.drafts = []
        return self.demand(group, step)

    def _rebuild(self, group: SequenceGroup, seq: Sequence, demand: list[tuple[Sequence, int]]) -> bool:
        """Bring back a branch whose blocks were lost to recomputation; False: its turn comes later."""
        if not any(sibling.blocks for sibling in group.live):
            return not demand  # the first one starts on its own
        source = decoding.rebuild_from(group, seq)
        if source is None:
            return False
        self._kv.fork(source[0], seq, source[1])
        return True

    def plan(self, group: SequenceGroup, demand: list[tuple[Sequence, int]], step: Step) -> None:
        """Compute what the group demanded. The caller has checked that it fits."""
        for seq, num_tokens in demand:
            step.budget.take(num_tokens, seq.num_lacking)
            self._plan(group, seq, num_tokens, step)

    def _plan(self, group: SequenceGroup, seq: Sequence, num_tokens: int, step: Step) -> None:
        self._kv.allocate(seq, num_tokens)
        self._kv.hold_row(seq)
        start, known = seq.num_computed, len(seq.token_ids)
        end = seq.num_computed = start + num_tokens
        tokens = seq.token_ids[start:end]
        if end > known:
            tokens += seq.drafts[max(0, start - known) : end - known]
        num_drafts = max(0, end - known)
        targets: list[Sequence] = []
        if end >= known:
            if not group.forked:
                if group.search is None:
                    decoding.fork_branches(group, seq, self._kv, self._seq_ids)
                group.forked = True
                self._counters.prompt_tokens += seq.prompt_len
                targets = list(group.sequences)
            else:
                targets = [seq]
        step.planned.append(Planned(group, seq, end, targets, known, num_drafts))
        step.scheduled.append(self._scheduled(group, seq, start, tokens, num_drafts, targets))
        if targets and not num_drafts:
            seq.drafts = []  # no room for these drafts; after the next token they would stand at the wrong position
            if not group.needs_host and not self._speculation.is_on:
                for target in targets:
                    target.token_ids.append(PENDING)
        group.num_in_flight += 1
        if not group.timings.first_scheduled:
            group.timings.first_scheduled = self._clock()

    def _scheduled(
        self, group: SequenceGroup, seq: Sequence, start: int, tokens: list[int], num_drafts: int, targets: list[Sequence]
    ) -> ScheduledSequence:
        params, end = group.params, start + len(tokens)
        prompt_targets = None
        if (
            params.prompt_logprobs is not None
            and start < seq.prompt_len - 1
            and seq.branch == 0
            and not seq.num_output_tokens
            and group.prompt_logprobs is not None
        ):
            prompt_targets = seq.token_ids[start + 1 : min(end + 1, seq.prompt_len)]
        return ScheduledSequence(
            seq_id=seq.seq_id,
            row=seq.row,
            start=start,
            token_ids=tokens,
            prompt_len=seq.prompt_len,
            num_drafts=num_drafts,
            sample_rows=tuple([t.row for t in targets]),
            seeds=tuple([t.seed for t in targets]),
            params=params if targets else None,
            num_logprobs=group.num_logprobs if targets else None,
            history=seq.history() if targets and group.needs_history else None,
            bad_words_token_ids=group.request.bad_words_token_ids if targets else (),
            num_prompt_logprobs=params.prompt_logprobs if prompt_targets else None,
            prompt_targets=prompt_targets,
            num_candidates=group.search.num_candidates if group.search and targets else 0,
            token_mask=both(group.allowed, _mask_of(targets[0])) if targets else None,
        )


def _mask_of(seq: Sequence) -> Any:
    """What its grammar allows to be drawn next; None is everything."""
    return None if seq.grammar is None or seq.grammar.is_open else seq.grammar.mask
