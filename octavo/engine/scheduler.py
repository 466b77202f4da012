"""Which tokens of which sequences are computed next, and what becomes of the results.

Owns every sequence and group and the three queues. Knows no device and no text. Every step gives each group, in the order of
the policy, as many tokens as its sequences lack, within a token budget; when blocks run out, the last group in that order
yields. Invariant: only a group without work in flight is preempted or swapped.
"""

import time
from bisect import insort
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import count, islice

from octavo.config import EngineConfig
from octavo.engine import decoding, ngram
from octavo.engine.batching import Batching, BatchLevel, IterationLevel
from octavo.engine.decoding import Planned
from octavo.engine.deltas import beam_deltas, deltas_of, error_deltas, open_branches, request_metrics
from octavo.engine.grammar import Grammar, GrammarSource, MaskBudget, NoText
from octavo.engine.limits import Limits
from octavo.engine.policy import POLICIES, Policy
from octavo.engine.sequence import GroupStatus, Sequence, SequenceGroup, branch_seed
from octavo.engine.step_budget import StepBudget
from octavo.engine.stopping import ends_with_grammar, finish_reason
from octavo.engine.swap_cost import SwapCost
from octavo.memory.interface import KVManager
from octavo.memory.kv_cache_manager import KVUsage
from octavo.memory.slots import KVSlots
from octavo.metrics import EngineStats
from octavo.outputs import FinishReason, RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.sampling_params import ParameterError, SamplingParams
from octavo.step import PENDING, Candidates, ModelOutput, ScheduledSequence, SchedulerOutput, TokenLogprobs


@dataclass(slots=True)
class Counters:
    """Totals since the scheduler was made. Prefix-cache queries and hits are in tokens."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0


LOOK_AHEAD = 16
"""Waiting groups that a step keeps room for, if they are short."""

GROWTH = 16
"""Tokens that each running sequence may become longer by before others begin, where groups that yield are computed again."""

PROMPT_LOGPROBS_CHUNK = 256
"""Prompt tokens a step of a request that wants their log-probabilities: each of them costs a row of logits."""


class Scheduler:
    """``schedule()`` makes plans, ``commit()`` takes their results, in the same order."""

    def __init__(
        self,
        config: EngineConfig,
        kv: KVManager,
        *,
        max_model_len: int,
        eos_token_ids: tuple[int, ...] = (),
        grammars: GrammarSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kv = kv
        self._clock = clock
        self.counters = Counters()
        self._config = config
        self.limits = Limits(kv, max_model_len=max_model_len, max_num_seqs=config.max_num_seqs)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._policy: Policy = POLICIES[config.scheduling_policy]()
        self._batching: Batching = BatchLevel() if config.kv_allocation == "fastertransformer" else IterationLevel()
        self._waiting: list[SequenceGroup] = []
        self._running: list[SequenceGroup] = []
        self._swapped: list[SequenceGroup] = []
        self._compiling: list[SequenceGroup] = []
        self._grammars = grammars
        self._masks = MaskBudget()
        self._groups: dict[str, SequenceGroup] = {}
        self._planned: dict[int, list[Planned]] = {}
        self._swap_cost = SwapCost()
        self._orders = count()
        self._seq_ids = count()
        self._step_ids = count()

    # ---------------------------------------------------------------------------------------------------- coming and going

    @property
    def has_work(self) -> bool:
        return bool(self._groups) or self._batching.has_deltas

    @property
    def live_sequences(self) -> list[Sequence]:
        return [seq for group in self._groups.values() for seq in group.live]

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ParameterError: it can never fit, or its id is taken.
        """
        if request.id in self._groups:
            raise ParameterError(f"request id {request.id!r} is already in use", param="request_id", value=request.id)
        params, prompt_len = request.params, len(request.prompt_token_ids)
        num_sequences = 1 if params.greedy and params.beam is None else params.num_branches
        limit = self.limits.check(request, num_sequences)
        group = SequenceGroup(
            request=request,
            order=next(self._orders),
            num_branches=params.num_outputs,
            num_sequences=num_sequences,
            max_tokens_total=limit,
            plans_ahead=not params.needs_host and self._config.spec_method is None,
            search=decoding.begin_search(params, self._eos_token_ids, limit - prompt_len),
        )
        first = Sequence(
            seq_id=next(self._seq_ids),
            branch=0,
            seed=branch_seed(request.seed, 0),
            token_ids=list(request.prompt_token_ids),
            prompt_len=prompt_len,
            cache_root=self.kv.cache_root(request.cache_scope),
            usage=KVUsage(),
            max_len=limit,
            group_size=num_sequences,
            reforks=params.beam is not None,
        )
        group.sequences.append(first)
        if params.structured_outputs is not None:
            group.compiling = self._compile(params)
        self._groups[request.id] = group
        self._policy.arrived(group)
        self._enqueue(group, GroupStatus.WAITING if group.compiling is None else GroupStatus.COMPILING)

    def _compile(self, params: SamplingParams) -> "Future[Grammar]":
        if self._grammars is None or params.structured_outputs is None:
            message = "structured_outputs are not available: this engine was built without a vocabulary"
            raise ParameterError(message, param="structured_outputs")
        return self._grammars.compile(params.structured_outputs, ends=not params.ignore_eos)

    def abort(self, request_id: str, branch: int | None = None) -> RequestMetrics | None:
        """End a request, or one branch of it, at once; unknown ids are ignored. No delta is sent for what is aborted.
        Returns the request's metrics if nothing of it is left."""
        return self._batching.abort(request_id, branch, self._abort(request_id, branch))

    def _abort(self, request_id: str, branch: int | None) -> RequestMetrics | None:
        group = self._groups.get(request_id)
        if group is None:
            return None
        apart = group.forked and group.search is None and group.num_branches == group.num_sequences
        if branch is not None and not apart:
            group.silenced.add(branch)
            if len(group.silenced) < group.num_branches:
                return None
            branch = None
        for seq in group.live:
            if branch is None or seq.branch == branch:
                self._release(seq)
        if group.live:
            return None
        self._retire(group)
        return request_metrics(group)

    def _release(self, seq: Sequence) -> None:
        """Free at once, also with steps in flight: a late write can only touch a slot that is in no hashed block, because
        the device runs plans in order."""
        self.kv.free(seq)
        seq.finished = True

    def _retire(self, group: SequenceGroup) -> None:
        self._queue_of(group).remove(group)
        group.status = GroupStatus.FINISHED
        if group.compiling is not None:
            group.compiling.cancel()
        self._policy.ended(group)
        del self._groups[group.request.id]

    def _queue_of(self, group: SequenceGroup) -> list[SequenceGroup]:
        queues = {
            GroupStatus.COMPILING: self._compiling,
            GroupStatus.WAITING: self._waiting,
            GroupStatus.RUNNING: self._running,
            GroupStatus.SWAPPED: self._swapped,
        }
        return queues[group.status]

    def _enqueue(self, group: SequenceGroup, status: GroupStatus) -> None:
        group.status = status
        insort(self._queue_of(group), group, key=self._policy.key)

    # ------------------------------------------------------------------------------------------------------------ planning

    def schedule(self) -> SchedulerOutput | None:
        """The next step, or None when nothing can be computed before a result arrives or a grammar is compiled."""
        self._take_compiled()
        self._masks.compute(decoding.lacking_masks(self._running))
        planned: list[Planned] = []
        scheduled: list[ScheduledSequence] = []
        admits = self._batching.admits(idle=not self._running)
        budget = self._budget(admits)
        if not self._schedule_running(budget, planned, scheduled) and admits:
            self._resume_and_admit(budget, planned, scheduled)
            num_tokens = sum(len(seq.token_ids) for seq in scheduled)
            self._batching.planned(is_full=num_tokens >= self._config.max_num_batched_tokens)
        if not scheduled and not self.kv.has_copies and not self._batching.has_due:
            return None
        plan = SchedulerOutput(
            step_id=next(self._step_ids),
            sequences=scheduled,
            block_tables=self.kv.gather_tables([p.seq for p in planned]),
            copies=self.kv.take_copies(),
        )
        self._planned[plan.step_id] = planned
        return plan

    def await_grammar(self, seconds: float) -> bool:
        """Sleep until a grammar is compiled, at most that long. False if no sequence waits for a grammar or its mask."""
        futures = [group.compiling for group in self._compiling if group.compiling is not None]
        if futures:
            wait(futures, seconds, FIRST_COMPLETED)
        return bool(futures or decoding.lacking_masks(self._running))

    def _take_compiled(self) -> None:
        """Requests whose grammar is ready begin to wait. One that cannot be compiled ends in an error of its own: whoever sent
        the request has checked it, so that this is rare."""
        for group in [g for g in self._compiling if g.compiling is not None and g.compiling.done()]:
            future, group.compiling = group.compiling, None
            failed = future is None or future.cancelled() or future.exception() is not None
            group.sequences[0].grammar = NoText() if failed or future is None else future.result()
            self._compiling.remove(group)
            self._enqueue(group, GroupStatus.WAITING)

    def _budget(self, admits: bool) -> StepBudget:
        """The step's tokens, and what of them is spoken for: by running decodes and prompts, and by those that wait and would
        be admitted."""
        budget = StepBudget(self._config.max_num_batched_tokens, splits=self._config.enable_chunked_prefill)
        for seq in self._resident():
            budget.expect(seq.num_lacking)
        if not admits or self._swapped or not self._waiting:
            return budget
        rows = self._config.max_num_seqs - self._num_rows_spoken_for()
        demand: list[tuple[Sequence, int]] = []
        slack = self._slack()
        for group in islice(self._waiting, LOOK_AHEAD):
            rows -= group.width
            demand.append((group.live[0], len(group.live[0].token_ids)))
            if rows < 0 or not budget.wants_more or not self.kv.fits(demand, spare=slack):
                break
            budget.expect(demand[-1][1])
        return budget

    def _schedule_running(self, budget: StepBudget, planned: list[Planned], scheduled: list[ScheduledSequence]) -> bool:
        """Returns whether a group had to yield, or must as soon as its work is done."""
        yielded = False
        index = 0
        while index < len(self._running) and budget.left > 0:
            group = self._running[index]
            index += 1
            demand = self._demand(group, budget)
            if demand and not self.kv.fits(demand):
                yielded = True
                if not self._make_room(group, demand):
                    self._schedule_within_blocks(self._running[index:-1], budget, planned, scheduled)
                    return True
            self._plan_group(group, demand, budget, planned, scheduled)
        return yielded

    def _make_room(self, group: SequenceGroup, demand: list[tuple[Sequence, int]]) -> bool:
        """Groups yield, the last one first, until the demand fits. False: the group itself did, or the last one still has
        work in flight; it gets no more, so that the queue drains."""
        while not self.kv.fits(demand):
            victim = self._running[-1]
            if victim.num_in_flight:
                return False
            self._preempt(victim)
            if victim is group:
                return False
        return True

    def _schedule_within_blocks(
        self, groups: list[SequenceGroup], budget: StepBudget, planned: list[Planned], scheduled: list[ScheduledSequence]
    ) -> None:
        """While a group before them waits for blocks: those go on that need no more than they have."""
        for group in groups:
            demand = self._demand(group, budget) if budget.left > 0 else []
            if demand and self.kv.fits(demand, spare=self.kv.device.num_free):
                self._plan_group(group, demand, budget, planned, scheduled)

    def _plan_group(
        self,
        group: SequenceGroup,
        demand: list[tuple[Sequence, int]],
        budget: StepBudget,
        planned: list[Planned],
        scheduled: list[ScheduledSequence],
    ) -> None:
        for seq, num_tokens in demand:
            budget.take(num_tokens, seq.num_lacking)
            self._plan(group, seq, num_tokens, planned, scheduled)

    def _demand(self, group: SequenceGroup, budget: StepBudget) -> list[tuple[Sequence, int]]:
        """How many tokens each sequence of the group should compute now."""
        demand: list[tuple[Sequence, int]] = []
        taken = 0
        last_computed = group.max_tokens_total - 1  # nobody reads what the very last token would add to the cache
        for seq in group.sequences:
            if seq.finished or seq.num_computed >= min(len(seq.token_ids), last_computed):
                continue
            if seq.grammar is not None and seq.grammar.mask is None:
                continue
            if not seq.blocks and group.forked and not self._rebuild(group, seq, demand):
                continue
            lacking = min(len(seq.token_ids) + len(seq.drafts), last_computed) - seq.num_computed
            allowed = budget.allowed(lacking, taken)
            if group.needs_prompt_logprobs:
                allowed = min(allowed, PROMPT_LOGPROBS_CHUNK)
            num_tokens = min(lacking, allowed)
            if num_tokens < lacking and not self._config.enable_chunked_prefill and not group.needs_prompt_logprobs:
                break
            if num_tokens > 0:
                demand.append((seq, num_tokens))
                taken += num_tokens
        return demand

    def _rebuild(self, group: SequenceGroup, seq: Sequence, demand: list[tuple[Sequence, int]]) -> bool:
        """Bring back a branch whose blocks were lost to recomputation; False: its turn comes later."""
        if not any(sibling.blocks for sibling in group.live):
            return not demand  # the first one starts on its own
        source = decoding.rebuild_from(group, seq)
        if source is None:
            return False
        self.kv.fork(source[0], seq, source[1])
        return True

    def _plan(
        self,
        group: SequenceGroup,
        seq: Sequence,
        num_tokens: int,
        planned: list[Planned],
        scheduled: list[ScheduledSequence],
    ) -> None:
        self.kv.allocate(seq, num_tokens)
        self.kv.hold_row(seq)
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
                    decoding.fork_branches(group, seq, self.kv, self._seq_ids)
                group.forked = True
                self.counters.prompt_tokens += seq.prompt_len
                targets = list(group.sequences)
            else:
                targets = [seq]
        planned.append(Planned(group, seq, end, targets, known, num_drafts))
        scheduled.append(self._scheduled(group, seq, start, tokens, num_drafts, targets))
        if targets and group.plans_ahead:
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
            sample_rows=tuple(t.row for t in targets),
            seeds=tuple(t.seed for t in targets),
            params=params if targets else None,
            num_logprobs=(0 if params.selects and params.logprobs is None else params.logprobs) if targets else None,
            history=list(seq.token_ids) if targets and params.needs_history else None,
            bad_words_token_ids=group.request.bad_words_token_ids if targets else (),
            num_prompt_logprobs=params.prompt_logprobs if prompt_targets else None,
            prompt_targets=prompt_targets,
            num_candidates=group.search.num_candidates if group.search and targets else 0,
            token_mask=targets[0].grammar.mask if targets and targets[0].grammar is not None else None,
        )

    # ------------------------------------------------------------------------------------------------ residence of groups

    def _preempt(self, group: SequenceGroup) -> None:
        """Take all blocks of an idle running group: move them to the host, or give them up and compute them again."""
        self._running.remove(group)
        live = group.live
        group.num_preemptions += 1
        self.counters.preemptions += 1
        if self._should_swap(live):
            self.kv.swap_out(live)
            group.num_swaps += 1
            self._enqueue(group, GroupStatus.SWAPPED)
            return
        for seq in live:
            self.kv.free(seq)
            seq.num_computed = 0
            seq.drafts = []
        group.candidates.clear()  # they come again, with those of all beams
        if group.needs_prompt_logprobs:
            group.prompt_logprobs = None
        self._enqueue(group, GroupStatus.WAITING)

    def _should_swap(self, live: list[Sequence]) -> bool:
        num_blocks = self.kv.num_distinct_blocks(live)
        if self._config.preemption_mode == "recompute" or num_blocks > self.kv.host.num_free:
            return False
        if self._config.preemption_mode == "swap":
            return True
        num_tokens = num_blocks * self.kv.block_size
        return self._swap_cost.prefers_swap(num_blocks=num_blocks, num_tokens=num_tokens)

    def _resume_and_admit(self, budget: StepBudget, planned: list[Planned], scheduled: list[ScheduledSequence]) -> None:
        """Swapped and waiting groups, strictly in the policy's order: the first that does not fit ends it."""
        budget.decodes_are_planned()
        while budget.left > 0:
            resumable, admissible = self._swapped[:1], self._waiting[:1]
            candidates = resumable + admissible
            if not candidates:
                return
            group = min(candidates, key=self._policy.key)
            if self._num_rows_spoken_for() + group.width > self._config.max_num_seqs:
                return
            if group.status is GroupStatus.SWAPPED:
                if not self._resume(group):
                    return
            elif not self._admit(group, budget.left):
                return
            for _, grammar in decoding.lacking_masks([group]):
                grammar.compute_mask()
            demand = self._demand(group, budget)
            if not self.kv.fits(demand):  # just swapped in: it goes on in the next step
                return
            self._plan_group(group, demand, budget, planned, scheduled)

    def _num_rows_spoken_for(self) -> int:
        return sum(group.width for group in self._running)

    def _slack(self) -> int:
        """Free blocks to leave for what already runs. None when nothing does: an empty device refuses nobody."""
        if not self._running:
            return 0
        return self.kv.slack(self._resident(), growth=round(GROWTH * self._cost_of_yielding()))

    def _cost_of_yielding(self) -> float:
        """What it will take to bring the last group back when it has yielded, as a part of computing it again. Who comes back
        for nothing may yield often; else room is left for what runs to grow, or groups would come and go."""
        live = self._running[-1].live
        if not self._should_swap(live):
            return 1.0
        num_blocks = self.kv.num_distinct_blocks(live)
        return self._swap_cost.part_of_recomputing(num_blocks=num_blocks, num_tokens=num_blocks * self.kv.block_size)

    def _resident(self) -> list[Sequence]:
        return [seq for group in self._running for seq in group.sequences if not seq.finished]

    def _resume(self, group: SequenceGroup) -> bool:
        needed = self.kv.num_to_swap_in(group.live) + len(group.live) * bool(self._running)
        if needed + self._slack() > self.kv.device.num_free:
            return False
        self._swapped.remove(group)
        self.kv.swap_in(group.live)
        self._enqueue(group, GroupStatus.RUNNING)
        return True

    def _admit(self, group: SequenceGroup, budget: int) -> bool:
        first = group.live[0]
        wants_logits = group.needs_prompt_logprobs
        if not wants_logits:
            self.kv.match_prefix(first)
        lacking = len(first.token_ids) - first.num_computed
        fits = self.kv.fits([(first, lacking)], spare=self._slack())
        if not fits or (lacking > budget and not self._config.enable_chunked_prefill):
            self.kv.free(first)
            first.num_computed = 0
            return False
        if wants_logits:
            group.prompt_logprobs = []
        elif not group.num_preemptions:
            group.num_cached_tokens = first.num_computed
            self.counters.prefix_cache_queries += len(first.token_ids)
            self.counters.prefix_cache_hits += first.num_computed
        first.usage.shared += len(first.blocks)
        self._waiting.remove(group)
        self._policy.began(group)
        self._enqueue(group, GroupStatus.RUNNING)
        return True

    # ------------------------------------------------------------------------------------------------------------- results

    def commit(self, plan: SchedulerOutput, output: ModelOutput) -> list[TokenDelta]:
        """Take the results of the oldest plan in flight; returns what is new for clients. Late results of finished
        sequences are dropped."""
        planned = self._planned.pop(plan.step_id)
        self._swap_cost.observe(plan, output)
        self.counters.steps += 1
        now = self._clock()
        deltas: list[TokenDelta] = []
        for index, entry in enumerate(planned):
            entry.group.num_in_flight -= 1
            if entry.group.prompt_logprobs is not None and output.prompt_logprobs is not None:
                entry.group.prompt_logprobs.extend(output.prompt_logprobs[index] or ())
            logprobs = output.logprobs[index] if output.logprobs is not None else None
            error = output.errors[index] if output.errors is not None else None
            if error is not None:
                self._fail(entry.group, error, deltas)
            elif entry.group.search is not None:
                self._commit_candidates(entry, output.candidates[index] if output.candidates else None, now, deltas)
            elif entry.num_drafts:
                self._commit_verified(entry, output.token_ids[index], logprobs, now, deltas)
            else:
                self._commit_drawn(entry, output.token_ids[index], logprobs, now, deltas)
        return self._batching.deliver(deltas, idle=not self._running, now=now)

    def _fail(self, group: SequenceGroup, error: str, deltas: list[TokenDelta]) -> None:
        """A sequence of the group could not be computed: its request ends, and nobody else's."""
        if group.status is GroupStatus.FINISHED:
            return
        branches = open_branches(group)
        for seq in group.live:
            self._release(seq)
        deltas.extend(error_deltas(group, branches, error))
        self._retire(group)

    def _commit_drawn(
        self, entry: Planned, tokens: list[int], logprobs: list[TokenLogprobs] | None, now: float, deltas: list[TokenDelta]
    ) -> None:
        if not entry.seq.finished:
            self.kv.publish(entry.seq, entry.end)
        for i, (seq, token) in enumerate(zip(entry.targets, tokens, strict=True)):
            if not seq.finished:
                decoding.place_drawn(entry, seq, token)
                self._deliver(entry.group, seq, [token], entry.position, logprobs[i : i + 1] if logprobs else None, now, deltas)
                if not seq.finished and ends_with_grammar(entry.group, seq, token, self._eos_token_ids):
                    self._deliver(entry.group, seq, [], entry.position + 1, None, now, deltas, reason="stop")
                if not seq.finished and not entry.group.plans_ahead:
                    self._propose(entry.group, seq)

    def _commit_candidates(self, entry: Planned, found: Candidates | None, now: float, deltas: list[TokenDelta]) -> None:
        group, seq, search = entry.group, entry.seq, entry.group.search
        if seq.finished or search is None:
            return
        self.kv.publish(seq, entry.end)
        if found is None or not decoding.round_is_complete(group, seq, found):
            return
        decoding.advance_beams(group, search, self.kv, self._seq_ids)
        self._note_times(group, now)
        new = beam_deltas(group, search, request_metrics(group) if search.done else None)
        self.counters.generation_tokens += sum(len(delta.token_ids) for delta in new)
        deltas.extend(new)
        if search.done:
            self._retire(group)

    def _commit_verified(
        self, entry: Planned, tokens: list[int], logprobs: list[TokenLogprobs] | None, now: float, deltas: list[TokenDelta]
    ) -> None:
        seq = entry.seq
        if seq.finished:
            return
        decoding.place_verified(seq, tokens)
        self.kv.publish(seq, seq.num_computed)
        self._deliver(entry.group, seq, tokens, entry.position, logprobs, now, deltas)
        if not seq.finished:
            self._propose(entry.group, seq)

    def _propose(self, group: SequenceGroup, seq: Sequence) -> None:
        if self._config.spec_method is not None and not group.params.needs_host:
            room = group.max_tokens_total - len(seq.token_ids) - 1
            seq.drafts = ngram.propose(seq.token_ids, min(self._config.spec_tokens, room))

    def _deliver(
        self,
        group: SequenceGroup,
        seq: Sequence,
        tokens: list[int],
        position: int,
        logprobs: list[TokenLogprobs] | None,
        now: float,
        deltas: list[TokenDelta],
        *,
        reason: FinishReason | None = None,
    ) -> None:
        """Hand new tokens, the first of which has index ``position``, to the client, up to the one that ends the sequence; with
        a ``reason`` it ends without one."""
        stop_reason = None
        for i in range(len(tokens)):
            reason, stop_reason = finish_reason(group, seq, position + i + 1, self._eos_token_ids)
            if reason is not None:
                tokens = tokens[: i + 1] if tokens[i] >= 0 else tokens[:i]
                break
        if logprobs is not None:
            logprobs = logprobs[: len(tokens)]
            seq.cumulative_logprob = (seq.cumulative_logprob or 0.0) + sum(entry.logprob for entry in logprobs)
        if reason is not None:
            del seq.token_ids[position + len(tokens) :]
            self._release(seq)
        self.counters.generation_tokens += len(tokens)
        self._note_times(group, now)
        metrics = request_metrics(group) if not group.live else None
        deltas.extend(deltas_of(group, seq, tokens, logprobs, reason, stop_reason, metrics))
        group.prompt_logprobs = None
        if metrics is not None:
            self._retire(group)

    def _note_times(self, group: SequenceGroup, now: float) -> None:
        if not group.timings.first_token:
            group.timings.first_token = now
        group.timings.last_token = now

    # ---------------------------------------------------------------------------------------------------------- statistics

    def kv_slots(self) -> KVSlots:
        """What the KV cache's slots hold at this moment. Free ones are in demand while a group is swapped out, or while the
        next that waits does not fit (what it may find in the prefix cache is not looked up)."""
        waiting = [(seq, len(seq.token_ids)) for group in self._waiting[:1] for seq in group.live[:1]]
        short = bool(self._swapped) or (bool(waiting) and not self.kv.fits(waiting, spare=self._slack()))
        return self.kv.slots(self._resident(), short=short)

    def blocks_of_requests(self) -> Iterator[tuple[str, int, int]]:
        """Of every request that holds blocks: its id, the entries of its block tables, and the blocks that these are."""
        for group in self._groups.values():
            if entries := sum(len(seq.blocks) for seq in group.live):
                yield group.request.id, entries, self.kv.num_distinct_blocks(group.live)

    def snapshot(self) -> EngineStats:
        """The counters as they stand, with the gauges of this moment."""
        kv = self.kv
        counted = self.counters
        references, blocks_referenced = kv.sharing()
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting) + len(self._compiling),
            num_swapped=len(self._swapped),
            blocks_total=kv.device.num_blocks,
            blocks_used=kv.device.num_used,
            blocks_shared=kv.device.num_shared,
            blocks_pinned=kv.num_pinned,
            blocks_cached=kv.device.num_cached,
            blocks_free=kv.device.num_free - kv.device.num_cached,
            token_slots_used=kv.token_slots_used(self._resident()),
            block_references=references,
            blocks_referenced=blocks_referenced,
            steps=counted.steps,
            prompt_tokens=counted.prompt_tokens,
            generation_tokens=counted.generation_tokens,
            cached_prompt_tokens=counted.prefix_cache_hits,
            prefix_cache_queries=counted.prefix_cache_queries,
            prefix_cache_hits=counted.prefix_cache_hits,
            preemptions=counted.preemptions,
            swaps_in=kv.counters.swap_in,
            swaps_out=kv.counters.swap_out,
            copy_on_writes=kv.counters.copy_on_write,
        )
