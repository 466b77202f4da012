"""Computes one step: copies, forward, sampling; a plan in, a ``ModelOutput`` out.

Owns the model, the KV tensors and one int32 per row: the token sampled there last, which the next plan may refer to without
knowing it. Remembers nothing else; plans arrive in order, on one thread. What needs no result of the step before is prepared
while that is computed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from octavo.backends.base import Array, Backend, Batch, BatchCapacity, Graph, KVCache
from octavo.models import Model
from octavo.sampling.sampler import INVALID_TOKEN, CandidateRow, Draws, Sampler, SampleRow
from octavo.sampling.verify import draft_rows, num_accepted
from octavo.sampling_params import SamplingParams
from octavo.step import (
    BlockCopies,
    Candidates,
    ModelOutput,
    ScheduledSequence,
    SchedulerOutput,
    StepTimings,
    TokenLogprobs,
)
from octavo.worker.batch import StepArrays, step_arrays
from octavo.worker.isolation import Isolate, Isolation

NO_LOGPROBS = TokenLogprobs(INVALID_TOKEN, float("-inf"), 0, [], [])
"""In the place of a draw that failed, so that the draws beside it keep theirs; never delivered."""


@dataclass(slots=True)
class Work:
    """A plan on its way. ``arrays`` and ``batch`` are there if it has sequences. ``greedy``: of the logits nothing is wanted
    but their argmax; ``one_each``: greedy, and exactly one token for each sequence. ``draws`` and ``candidates`` are what is
    wanted otherwise. ``every_row``: a prompt's log-probabilities are wanted. ``graph``: what is started; None: the step runs op
    by op, in ``finish``. ``started``: when, 0 not yet; ``copies``: seconds, None not yet. ``error``: what went wrong so far."""

    plan: SchedulerOutput
    arrays: StepArrays | None = None
    batch: Batch | None = None
    greedy: bool = False
    one_each: bool = False
    draws: Draws | None = None
    candidates: list[CandidateRow] = field(default_factory=list)
    every_row: bool = False
    graph: Graph | None = None
    started: float = 0.0
    copies: float | None = None
    error: Exception | None = None


class ModelRunner:
    """Runs plans of at most ``max_num_seqs`` sequences. ``capture``: the largest batch to be replayed from a recording of the
    model; larger ones, and all of them without it, run op by op. With ``isolate`` a sequence's error is in the output, without
    it is raised."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        backend: Backend,
        *,
        max_num_seqs: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        capture: BatchCapacity | None,
        isolate: Isolate | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._backend = backend
        self._block_size = cache.spec.block_size
        self._sampler = Sampler(backend, vocab_size, eos_token_ids)
        self._last_token = np.zeros(max_num_seqs, np.int32)
        self._capacity = capture
        self._probe = isolate.probe if isolate else None
        self._isolation = Isolation(self._compute, self._last_token) if isolate else None
        self._graph = backend.capture(partial(self._forward, greedy=False), capture) if capture else None
        self._greedy_graph = backend.capture(partial(self._forward, greedy=True), capture) if capture else None

    def warm_up(self) -> None:
        """One token through the model, so that the first request finds threads, memory and weights awake."""
        sequence = ScheduledSequence(
            seq_id=-1,
            row=0,
            start=0,
            token_ids=[0],
            prompt_len=1,
            sample_rows=(0,),
            seeds=(0,),
            params=SamplingParams(temperature=0.0),
        )
        copies = BlockCopies(swap_out=[], swap_in=[], copy=[])
        tables = np.zeros((1, 1), np.int32)
        self._compute(SchedulerOutput(step_id=-1, sequences=[sequence], block_tables=tables, copies=copies))

    def prepare(self, plan: SchedulerOutput) -> Work:
        """What can be done before the plan's turn."""
        work = Work(plan)
        if plan.sequences:
            try:
                self._prepare(work)
            except Exception as error:
                work.error = error
        return work

    def _prepare(self, work: Work) -> None:
        plan = work.plan
        work.arrays = arrays = step_arrays(plan, self._block_size)
        tensor = self._backend.tensor
        work.batch = batch = Batch(
            input_ids=arrays.input_ids,
            positions=tensor(arrays.positions),
            slot_mapping=tensor(arrays.slot_mapping),
            query_start=tensor(arrays.query_start),
            seq_lens=tensor(arrays.seq_lens),
            block_tables=tensor(arrays.block_tables),
            logits_rows=tensor(arrays.logits_rows),
        )
        work.greedy = all(map(_wants_argmax, plan.sequences))
        if work.greedy:
            batch.allowed = self._allowed(plan)
            work.one_each = all(len(seq.sample_rows) == 1 and not seq.num_drafts for seq in plan.sequences)
        else:
            rows, work.candidates = _wanted(plan, arrays.first_rows)
            work.draws = self._sampler.prepare(rows)
        work.every_row = any(seq.prompt_targets is not None for seq in plan.sequences)
        graph = self._greedy_graph if work.greedy else self._graph
        if graph and self._capacity and self._capacity.admits(batch) and not work.every_row:
            work.graph = graph

    def _allowed(self, plan: SchedulerOutput) -> Array | None:
        """What may be drawn from each row of logits of a greedy step. Where there is a grammar's mask there is one row, as a
        draft would need one of its own."""
        masks: list[Any] = []
        impossible: list[Sequence[int]] = []
        for seq in plan.sequences:
            if not seq.sample_rows:
                continue
            masks.extend([seq.token_mask] * (1 + seq.num_drafts))
            if seq.bad_words_token_ids or (seq.params and seq.params.min_tokens):
                impossible.extend(map(self._sampler.impossible, _draws(seq, 0)[: 1 + seq.num_drafts]))
            else:
                impossible.extend([()] * (1 + seq.num_drafts))
        return self._sampler.allowed(masks, impossible)

    def start(self, work: Work) -> None:
        """Begin, once the step before is finished, unless that has done so. Errors are kept for ``finish``."""
        if work.started:
            return
        work.started = time.perf_counter()
        try:
            if work.plan.copies:
                self._backend.ops.copy_blocks(self._cache, work.plan.copies)
            work.copies = time.perf_counter() - work.started
            self._start(work)
        except Exception as error:
            work.error = error

    def _start(self, work: Work) -> None:
        arrays, batch = work.arrays, work.batch
        if work.error is not None or arrays is None or batch is None:
            return
        self._pass("compute", work.plan)
        arrays.fill(self._last_token)
        batch.input_ids = self._backend.tensor(arrays.input_ids)
        if work.graph:
            work.graph.start(batch)

    def finish(self, work: Work, following: Work | None) -> ModelOutput:
        """The results of what was started. ``following`` is what comes next, which may begin as soon as they are there."""
        self.start(work)  # whoever should have may have been interrupted
        if self._isolation is None or work.copies is None:  # copies are nobody's alone
            return self._finish(work, following)
        return self._isolation(work.plan, partial(self._finish, work, following))

    def _finish(self, work: Work, following: Work | None) -> ModelOutput:
        try:
            return self._results(work, following)
        except BaseException:
            if following is not None:
                following.started = 0.0  # again, if it has begun: this step may be computed once more before it
            raise

    def _results(self, work: Work, following: Work | None) -> ModelOutput:
        plan, arrays, batch, copies = work.plan, work.arrays, work.batch, work.copies or 0.0
        if work.error is not None:
            raise work.error
        if arrays is None or batch is None:
            return ModelOutput(step_id=plan.step_id, token_ids=[], timings=StepTimings(copies=copies))
        hidden = last = likeliest = None
        if work.graph and following is not None and self._go_on_alike(work, following):
            likeliest = self._go_on(work, following)
        elif work.graph:
            (last,) = work.graph.result()
        elif work.every_row:
            every = self._backend.tensor(np.arange(len(arrays.input_ids), dtype=np.int32))
            hidden = self._model.forward(batch, self._cache, every)
            last = self._head(self._backend.ops.gather_rows(hidden, batch.logits_rows), batch, greedy=work.greedy)
        else:
            (last,) = self._forward(batch, greedy=work.greedy)
        computed = time.perf_counter()
        self._pass("sample", plan)
        logprobs = candidates = None
        if work.draws is not None:
            token_ids, logprobs = self._sample(plan, last, work.draws)
            candidates = self._candidates(plan, last, work.candidates)
        elif work.one_each:
            token_ids = self._likeliest_of_each(plan, self._backend.to_host(last).tolist() if likeliest is None else likeliest)
        else:
            token_ids = self._likeliest(plan, last, arrays.first_rows)
        prompt_logprobs = None if hidden is None else self._prompt_logprobs(plan, hidden, arrays.query_start)
        return ModelOutput(
            step_id=plan.step_id,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            candidates=candidates,
            timings=StepTimings(copies=copies, forward=computed - work.started, sampling=time.perf_counter() - computed),
        )

    def _compute(self, plan: SchedulerOutput) -> ModelOutput:
        """A plan but for its copies, at once."""
        work = self.prepare(plan)
        work.started = time.perf_counter()
        self._start(work)
        return self._finish(work, None)

    def _go_on_alike(self, work: Work, following: Work) -> bool:
        """Whether the following step needs nothing but the tokens of this one."""
        alike = work.one_each and following.graph is work.graph and not following.started
        return alike and not following.plan.copies and self._probe is None

    def _go_on(self, work: Work, following: Work) -> list[int]:
        """The tokens of this step, whose last act is to begin the following one. Between two calls the caches are full of
        weights: what Python does there takes a tenth of a millisecond, for which nothing would be computed."""
        arrays, batch = following.arrays, following.batch
        if work.graph is None or arrays is None or batch is None:
            raise ValueError("neither step is of a recording")
        arrays.fill(self._last_token)
        batch.input_ids = self._backend.tensor(arrays.input_ids)
        gaps, places = arrays.gaps_of({seq.sample_rows[0]: index for index, seq in enumerate(work.plan.sequences)})
        tokens = work.graph.go_on(batch, gaps, places)
        following.started, following.copies = time.perf_counter(), 0.0
        return tokens

    def _pass(self, stage: str, plan: SchedulerOutput) -> None:
        if self._probe is not None:
            for seq in plan.sequences:
                self._probe(stage, seq)

    def _forward(self, batch: Batch, *, greedy: bool) -> tuple[Array]:
        """What ``_head`` gives for the rows whose logits are wanted."""
        return (self._head(self._model.forward(batch, self._cache, batch.logits_rows), batch, greedy=greedy),)

    def _head(self, hidden: Array, batch: Batch, *, greedy: bool) -> Array:
        """Logits; if ``greedy`` no more of them than their argmax: they are a large part of what a step would write."""
        return self._model.likeliest(hidden, batch.allowed) if greedy else self._model.logits(hidden)

    def _sample(
        self, plan: SchedulerOutput, logits: Array, draws: Draws
    ) -> tuple[list[list[int]], list[list[TokenLogprobs] | None] | None]:
        drawn, drawn_logprobs = self._sampler(logits, draws)
        tokens: list[list[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        next_draw = 0
        for seq in plan.sequences:
            count = len(seq.sample_rows) + seq.num_drafts if seq.sample_rows and not seq.num_candidates else 0
            mine = self._settle(seq, drawn[next_draw : next_draw + count])
            tokens.append(mine)
            wants = seq.num_logprobs is not None and count
            entries = drawn_logprobs[next_draw : next_draw + len(mine)]
            logprobs.append([entry or NO_LOGPROBS for entry in entries] if wants else None)
            next_draw += count
        return tokens, logprobs if any(logprobs) else None

    def _candidates(self, plan: SchedulerOutput, logits: Array, wanted: list[CandidateRow]) -> list[Candidates | None] | None:
        if not wanted:
            return None
        found = iter(self._sampler.candidates(logits, wanted))
        return [next(found) if seq.num_candidates else None for seq in plan.sequences]

    def _likeliest(self, plan: SchedulerOutput, found: Array, first_rows: list[int]) -> list[list[int]]:
        """What ``_sample`` gives where no request asks for more, without an object for each draw."""
        best: list[int] = self._backend.to_host(found).tolist()
        tokens: list[list[int]] = []
        for seq, first in zip(plan.sequences, first_rows, strict=True):
            drawn = best[first : first + seq.num_drafts + 1] if seq.num_drafts else best[first : first + 1] * len(seq.seeds)
            tokens.append(self._settle(seq, drawn))
        return tokens

    def _settle(self, seq: ScheduledSequence, drawn: list[int]) -> list[int]:
        """What counts of a sequence's draws; its rows remember the last of it."""
        if not drawn:  # a prompt that goes on, or a beam
            return []
        if seq.num_drafts:
            drawn = drawn[: num_accepted(_drafts(seq), drawn)]
        # A row without a token ends at commit; until then a plan in flight may still compute something harmless for it.
        for row, token in zip(seq.sample_rows, drawn[-len(seq.sample_rows) :], strict=True):
            self._last_token[row] = max(token, 0)
        return drawn

    def _likeliest_of_each(self, plan: SchedulerOutput, best: list[int]) -> list[list[int]]:
        """The same where every sequence wants one token and guesses none."""
        for seq, token in zip(plan.sequences, best, strict=True):
            self._last_token[seq.sample_rows[0]] = max(token, 0)
        return [[token] for token in best]

    def _prompt_logprobs(
        self, plan: SchedulerOutput, hidden: Array, query_start: np.ndarray
    ) -> list[list[TokenLogprobs] | None]:
        results: list[list[TokenLogprobs] | None] = []
        for seq, first in zip(plan.sequences, query_start.tolist(), strict=False):
            if seq.prompt_targets is None:
                results.append(None)
                continue
            rows = np.arange(first, first + len(seq.prompt_targets), dtype=np.int32)
            logits = self._model.logits(self._backend.ops.gather_rows(hidden, self._backend.tensor(rows)))
            results.append(self._sampler.prompt_logprobs(logits, seq.prompt_targets, seq.num_prompt_logprobs or 0))
        return results


def _wants_argmax(seq: ScheduledSequence) -> bool:
    """Whether the sequence wants nothing but the likeliest token, or nothing yet."""
    if not seq.sample_rows:
        return True
    plain = seq.params is not None and seq.params.plain_greedy
    return plain and seq.num_logprobs is None and not seq.num_candidates


def _wanted(plan: SchedulerOutput, first_rows: list[int]) -> tuple[list[SampleRow], list[CandidateRow]]:
    """All draws of a step, and what its beams want instead."""
    draws: list[SampleRow] = []
    candidates: list[CandidateRow] = []
    for seq, first in zip(plan.sequences, first_rows, strict=True):
        if seq.num_candidates:
            candidates.append(CandidateRow(_draws(seq, first)[0], seq.num_candidates))
        elif seq.sample_rows:
            draws.extend(_draws(seq, first))
    return draws, candidates


def _draws(seq: ScheduledSequence, first: int) -> list[SampleRow]:
    """The draws that a sequence wants: one for each branch from its last row, or one from each row that verifies a draft."""
    if seq.params is None:
        raise ValueError(f"sequence {seq.seq_id} is to be sampled but has no parameters")
    position = seq.start + len(seq.token_ids) - seq.num_drafts
    rows = [
        SampleRow(
            logits_row=first,
            params=seq.params,
            seed=seed,
            position=position,
            num_output_tokens=position - seq.prompt_len,
            history=seq.history,
            prompt_len=seq.prompt_len,
            bad_words_token_ids=seq.bad_words_token_ids,
            num_logprobs=seq.num_logprobs,
            token_mask=seq.token_mask,
        )
        for seed in seq.seeds
    ]
    return draft_rows(rows[0], _drafts(seq)) if seq.num_drafts else rows


def _drafts(seq: ScheduledSequence) -> list[int]:
    return seq.token_ids[len(seq.token_ids) - seq.num_drafts :]
