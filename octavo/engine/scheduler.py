"""Which groups are computed next, and the life of a request from its arrival to its end.

Knows no device and no text. Every step gives each group, in the order of the policy, as many tokens as its sequences lack,
within a token budget; when blocks run out, the last group in that order yields. Who has blocks is kept in ``residence``, what
is computed of a group in ``planning``, what comes of it in ``results``.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import count, islice

from octavo.config import EngineConfig
from octavo.engine import decoding
from octavo.engine.batching import Batching, BatchLevel, IterationLevel
from octavo.engine.counters import Counters
from octavo.engine.decoding import Planned
from octavo.engine.deltas import request_metrics
from octavo.engine.grammar import Grammar, GrammarSource, MaskBudget, NoText
from octavo.engine.limits import Limits
from octavo.engine.planning import Planner, Step
from octavo.engine.repetition import RepetitionWatch
from octavo.engine.residence import Residence
from octavo.engine.results import Results
from octavo.engine.sequence import GroupStatus, Sequence, SequenceGroup, branch_seed
from octavo.engine.speculation import FEW, Speculation, StepCost
from octavo.engine.step_budget import StepBudget
from octavo.memory.interface import KVManager
from octavo.memory.kv_cache_manager import KVUsage
from octavo.memory.slots import KVSlots
from octavo.metrics import EngineStats
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request
from octavo.sampling_params import ParameterError
from octavo.step import ModelOutput, SchedulerOutput

LOOK_AHEAD = 16
"""Waiting groups that a step keeps room for, if they are short."""


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
        self._batching: Batching = BatchLevel() if config.kv_allocation == "fastertransformer" else IterationLevel()
        self._grammars = grammars
        self._masks = MaskBudget()
        self._orders = count()
        self._seq_ids = count()
        self._step_ids = count()
        self._planned: dict[int, list[Planned]] = {}
        self._residence = Residence(config, kv, self.counters)
        self._groups = self._residence.groups
        self._speculation = Speculation(0 if config.spec_method == "none" else config.spec_tokens, StepCost())
        self._planner = Planner(
            kv,
            self.counters,
            speculation=self._speculation,
            splits_prompts=config.enable_chunked_prefill,
            seq_ids=self._seq_ids,
            clock=clock,
        )
        self._results = Results(
            kv,
            self._residence,
            self.counters,
            eos_token_ids=self._eos_token_ids,
            speculation=self._speculation,
            seq_ids=self._seq_ids,
        )

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
            max_len=limit,
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
            repetition=None if params.repetition_detection is None else RepetitionWatch(params.repetition_detection),
        )
        group.sequences.append(first)
        if params.is_confined:
            group.compiling = self._compile(request)
        self._residence.add(group)

    def _compile(self, request: Request) -> "Future[Grammar]":
        params, budget = request.params, request.params.thinking_token_budget
        name = "structured_outputs" if params.structured_outputs is not None else "thinking_token_budget"
        if self._grammars is None:
            raise ParameterError(f"{name} is not available: this engine was built without a vocabulary", param=name)
        if budget is not None and request.thinking is None:
            message = "thinking_token_budget needs a request that says how it reasons"
            raise ParameterError(message, param="thinking_token_budget")
        form, ends = params.structured_outputs, not params.ignore_eos
        return self._grammars.compile(form, ends=ends, thinking=request.thinking, budget=budget)

    def abort(self, request_id: str, branch: int | None = None) -> RequestMetrics | None:
        """End a request, or one branch of it, at once; unknown ones are ignored. No delta is sent for what is aborted.
        Returns the request's metrics if nothing of it is left."""
        return self._batching.abort(request_id, branch, self._abort(request_id, branch))

    def _abort(self, request_id: str, branch: int | None) -> RequestMetrics | None:
        group = self._groups.get(request_id)
        if group is None:
            return None
        if branch is not None and not 0 <= branch < group.num_branches:
            return None
        apart = group.forked and group.search is None and group.num_branches == group.num_sequences
        if branch is not None and not apart:
            group.silenced.add(branch)
            if len(group.silenced) < group.num_branches:
                return None
            branch = None
        for seq in group.live:
            if branch is None or seq.branch == branch:
                self._residence.release(seq)
        if group.live:
            return None
        self._residence.retire(group)
        return request_metrics(group)

    # ------------------------------------------------------------------------------------------------------------ planning

    def schedule(self) -> SchedulerOutput | None:
        """The next step, or None when nothing can be computed before a result arrives or a grammar is compiled."""
        self._take_compiled()
        running = self._residence.running
        num_running = len(running)
        self._speculation.decide(running)
        if self._planned and self._most_are_awaited(running):
            return None
        self._masks.compute([(seq.seq_id, seq.grammar) for seq in self._residence.running_sequences])
        admits = self._batching.admits(idle=not running)
        rows = self._residence.num_free_rows if admits and self._residence.next else 0
        step = Step(self._budget(rows))
        if not self._schedule_running(step) and admits:
            self._schedule_others(step, rows)
            self._batching.planned(is_full=step.budget.left <= 0)
        if len(running) != num_running:
            self._speculation.decide(running)
        if not step.scheduled and not self.kv.has_copies and not self._batching.has_due:
            return None
        plan = SchedulerOutput(
            step_id=next(self._step_ids),
            sequences=step.scheduled,
            block_tables=self.kv.gather_tables([p.seq for p in step.planned]),
            copies=self.kv.take_copies(),
        )
        self._planned[plan.step_id] = step.planned
        return plan

    def _most_are_awaited(self, running: list[SequenceGroup]) -> bool:
        """Whether few sequences run, or many guess, and most of them can only go on when the steps in flight are done. Then the
        others wait for them: two steps for halves of the batch would read the weights twice, and the halves stay apart."""
        num_running = self._speculation.num_running
        if num_running > FEW and not self._speculation.is_on:
            return False
        return 2 * sum(group.width for group in running if group.num_in_flight and not group.has_work) > num_running

    def await_grammar(self, seconds: float) -> bool:
        """Sleep until a grammar is compiled, at most that long. False if no sequence waits for a grammar or its mask."""
        futures = [group.compiling for group in self._residence.compiling if group.compiling is not None]
        if futures:
            wait(futures, seconds, FIRST_COMPLETED)
        return bool(futures or decoding.lacking_masks(self._residence.running))

    def _take_compiled(self) -> None:
        """Requests whose grammar is ready begin to wait. One that cannot be compiled ends in an error of its own: whoever sent
        the request has checked it, so that this is rare."""
        for group in [g for g in self._residence.compiling if g.compiling is not None and g.compiling.done()]:
            future, group.compiling = group.compiling, None
            failed = future is None or future.cancelled() or future.exception() is not None
            group.sequences[0].grammar = NoText() if failed or future is None else future.result()
            self._residence.compiling.remove(group)
            self._residence.enqueue(group, GroupStatus.WAITING)

    def _budget(self, rows: int) -> StepBudget:
        """The step's tokens, and what of them is spoken for: by running decodes and prompts, and by those that wait and would
        be admitted to ``rows`` rows."""
        residence = self._residence
        budget = StepBudget(self._config.max_num_batched_tokens, splits=self._config.enable_chunked_prefill)
        running = residence.running_sequences
        for seq in running:
            budget.expect(seq.num_lacking)
        if not rows or residence.swapped or not residence.waiting:
            return budget
        demand: list[tuple[Sequence, int]] = []
        slack = residence.slack(running)
        for group in islice(residence.waiting, LOOK_AHEAD):
            rows -= group.width
            demand.append((group.live[0], len(group.live[0].token_ids)))
            slack += residence.blocks_of_siblings(group)
            if rows < 0 or not budget.wants_more or not self.kv.fits(demand, spare=slack):
                break
            budget.expect(demand[-1][1])
        return budget

    def _schedule_running(self, step: Step) -> bool:
        """Returns whether a group had to yield, or must as soon as its work is done."""
        running = self._residence.running
        yielded = False
        index = 0
        while index < len(running) and step.budget.left > 0:
            group = running[index]
            index += 1
            demand = self._planner.demand(group, step)
            if not self.kv.fits(demand) and not self.kv.fits(demand := self._planner.without_drafts(group, demand, step)):
                yielded = True
                if not self._residence.make_room(group, demand):
                    self._schedule_within_blocks(running[index:-1], step)
                    return True
            self._planner.plan(group, demand, step)
        return yielded

    def _schedule_within_blocks(self, groups: list[SequenceGroup], step: Step) -> None:
        """While a group before them waits for blocks: those go on that need no more than they have."""
        for group in groups:
            demand = self._planner.demand(group, step) if step.budget.left > 0 else []
            if demand and self.kv.fits(demand, spare=self.kv.device.num_free):
                self._planner.plan(group, demand, step)

    def _schedule_others(self, step: Step, rows: int) -> None:
        """Swapped and waiting groups, strictly in the policy's order: the first that does not fit, into ``rows`` rows or the
        blocks that are left, ends it."""
        residence = self._residence
        step.budget.decodes_are_planned()
        while step.budget.left > 0 and (group := residence.next) is not None:
            rows -= group.width
            if rows < 0:
                return
            slack = residence.slack(residence.running_sequences)
            if not residence.begin(group, step.budget.left, slack):
                return
            for _, grammar in decoding.lacking_masks([group]):
                grammar.compute_mask()
            demand = self._planner.demand(group, step)
            if not self.kv.fits(demand):  # just swapped in: it goes on in the next step
                return
            self._planner.plan(group, demand, step)

    # ------------------------------------------------------------------------------------------------------------- results

    def commit(self, plan: SchedulerOutput, output: ModelOutput) -> list[TokenDelta]:
        """Take the results of the oldest plan in flight; returns what is new for clients. Late results of finished
        sequences are dropped."""
        self._residence.swap_cost.observe(plan, output)
        self._speculation.observe(plan, output)
        self.counters.steps += 1
        now = self._clock()
        deltas = self._results.take(self._planned.pop(plan.step_id), output, now)
        return self._batching.deliver(deltas, idle=not self._residence.running, now=now)

    def forget(self, plan: SchedulerOutput) -> None:
        """The results of a plan will not come; the requests that it is of are to be aborted."""
        self._planned.pop(plan.step_id, None)

    # ---------------------------------------------------------------------------------------------------------- statistics

    def kv_slots(self) -> KVSlots:
        """What the KV cache's slots hold at this moment. Free ones are in demand while a group is swapped out, or while the
        next that waits does not fit (what it may find in the prefix cache is not looked up)."""
        residence, running = self._residence, self._residence.running_sequences
        short = bool(residence.swapped)
        for group in residence.waiting[:1]:
            first, spare = group.live[0], residence.slack(running) + residence.blocks_of_siblings(group)
            short = short or not self.kv.fits([(first, len(first.token_ids))], spare=spare)
        return self.kv.slots(running, short=short)

    def blocks_of_requests(self) -> Iterator[tuple[str, int, int]]:
        """Of every request that holds blocks: its id, the entries of its block tables, and the blocks that these are."""
        for group in self._groups.values():
            if entries := sum(len(seq.blocks) for seq in group.live):
                yield group.request.id, entries, self.kv.num_distinct_blocks(group.live)

    def snapshot(self) -> EngineStats:
        """The counters as they stand, with the gauges of this moment."""
        kv, counted, residence = self.kv, self.counters, self._residence
        references, blocks_referenced = kv.sharing()
        return EngineStats(
            num_running=len(residence.running),
            num_waiting=len(residence.waiting) + len(residence.compiling),
            num_swapped=len(residence.swapped),
            blocks_total=kv.device.num_blocks,
            blocks_used=kv.device.num_used,
            blocks_shared=kv.device.num_shared,
            blocks_pinned=kv.num_pinned,
            blocks_cached=kv.device.num_cached,
            blocks_free=kv.device.num_free - kv.device.num_cached,
            token_slots_used=kv.token_slots_used(residence.running_sequences),
            block_references=references,
            blocks_referenced=blocks_referenced,
            steps=counted.steps,
            prompt_tokens=counted.prompt_tokens,
            generation_tokens=counted.generation_tokens,
            prefix_cache_queries=counted.prefix_cache_queries,
            prefix_cache_hits=counted.prefix_cache_hits,
            preemptions=counted.preemptions,
            drafts=counted.drafts,
            draft_tokens=counted.draft_tokens,
            accepted_draft_tokens=counted.accepted_draft_tokens,
            swaps_in=kv.counters.swap_in,
            swaps_out=kv.counters.swap_out,
            copy_on_writes=kv.counters.copy_on_write,
        )
