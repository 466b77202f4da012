"""Computes one step: copies, forward, sampling; a plan in, a ``ModelOutput`` out.

Owns the model, the KV tensors and one int32 per row: the token sampled there last, which the next plan may refer to without
knowing it. Remembers nothing else; plans arrive in order, on one thread.
"""

import time
from typing import Any

import msgspec
import numpy as np

from octavo.backends.base import Array, Backend, Batch, BatchCapacity, KVCache
from octavo.models import Model
from octavo.sampling.sampler import INVALID_TOKEN, CandidateRow, Sampler, SampleRow
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
from octavo.worker.batch import sampled_rows, step_arrays
from octavo.worker.isolation import Isolate, Isolation

NO_LOGPROBS = TokenLogprobs(INVALID_TOKEN, float("-inf"), 0, [], [])
"""In the place of a draw that failed, so that the draws beside it keep theirs; never delivered."""


class ModelRunner:
    """Runs plans of at most ``max_num_seqs`` sequences. ``capture``: the largest batch to be replayed from a recording of the
    model; larger ones, and all of them without it, run op by op. With ``isolate`` a sequence's error
    is in the output, without it is raised."""

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
        self._step = Isolation(self._compute, self._last_token) if isolate else self._compute
        self._graph = backend.capture(self._forward, capture) if capture else None
        self._greedy_graph = backend.capture(self._greedy_forward, capture) if capture else None

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

    def execute(self, plan: SchedulerOutput) -> ModelOutput:
        """Carry out one plan."""
        started = time.perf_counter()
        if plan.copies:
            self._backend.ops.copy_blocks(self._cache, plan.copies)
        copies = time.perf_counter() - started
        if not plan.sequences:
            return ModelOutput(step_id=plan.step_id, token_ids=[], timings=StepTimings(copies=copies))
        output = self._step(plan)
        return msgspec.structs.replace(output, timings=msgspec.structs.replace(output.timings, copies=copies))

    def _compute(self, plan: SchedulerOutput) -> ModelOutput:
        started = time.perf_counter()
        self._pass("compute", plan)
        arrays = step_arrays(plan, self._last_token, self._block_size)
        rows, first_rows = sampled_rows(plan, arrays["query_start"])
        tensors = {name: self._backend.tensor(array) for name, array in arrays.items()}
        batch = Batch(**tensors, logits_rows=self._backend.tensor(rows))
        greedy = all(map(_wants_argmax, plan.sequences))
        if greedy:
            batch.allowed = self._sampler.allowed(_masks(plan))
        graph = self._greedy_graph if greedy else self._graph
        if graph and self._capacity and self._capacity.admits(batch):
            hidden, last = graph.replay(batch)
        else:
            hidden, last = self._greedy_forward(batch) if greedy else self._forward(batch)
        computed = time.perf_counter()
        self._pass("sample", plan)
        if greedy:
            token_ids, logprobs, candidates = self._likeliest(plan, last, first_rows), None, None
        else:
            token_ids, logprobs = self._sample(plan, last, first_rows)
            candidates = self._candidates(plan, last, first_rows)
        prompt_logprobs = self._prompt_logprobs(plan, hidden, arrays["query_start"])
        return ModelOutput(
            step_id=plan.step_id,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            candidates=candidates,
            timings=StepTimings(forward=computed - started, sampling=time.perf_counter() - computed),
        )

    def _pass(self, stage: str, plan: SchedulerOutput) -> None:
        if self._probe is not None:
            for seq in plan.sequences:
                self._probe(stage, seq)

    def _forward(self, batch: Batch) -> tuple[Array, Array]:
        """The residual stream of every token and the logits of the rows that want them."""
        hidden = self._model.forward(batch, self._cache)
        return hidden, self._model.logits(hidden, batch.logits_rows)

    def _greedy_forward(self, batch: Batch) -> tuple[Array, Array]:
        """The same, but of the logits no more than their argmax: they are a large part of what a step would write."""
        hidden = self._model.forward(batch, self._cache)
        return hidden, self._model.likeliest(hidden, batch.logits_rows, batch.allowed)

    def _sample(
        self, plan: SchedulerOutput, logits: Array, first_rows: list[int]
    ) -> tuple[list[list[int]], list[list[TokenLogprobs] | None] | None]:
        draws: list[SampleRow] = []
        for seq, first in zip(plan.sequences, first_rows, strict=True):
            if first >= 0 and not seq.num_candidates:
                draws.extend(_draws(seq, first))
        drawn, drawn_logprobs = self._sampler(logits, draws)
        tokens: list[list[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        next_draw = 0
        for seq in plan.sequences:
            count = len(seq.sample_rows) + seq.num_drafts if seq.sample_rows and not seq.num_candidates else 0
            mine = drawn[next_draw : next_draw + count]
            if seq.num_drafts:
                mine = mine[: num_accepted(_drafts(seq), mine)]
            # A row without a token ends at commit; until then a plan in flight may still compute something harmless for it.
            for row, token in zip(seq.sample_rows, mine[-len(seq.sample_rows) :], strict=False):  # beams draw nothing
                self._last_token[row] = max(token, 0)
            tokens.append(mine)
            wants = seq.num_logprobs is not None and count
            entries = drawn_logprobs[next_draw : next_draw + len(mine)]
            logprobs.append([entry or NO_LOGPROBS for entry in entries] if wants else None)
            next_draw += count
        return tokens, logprobs if any(logprobs) else None

    def _candidates(self, plan: SchedulerOutput, logits: Array, first_rows: list[int]) -> list[Candidates | None] | None:
        wanted = [
            CandidateRow(_draws(seq, first)[0], seq.num_candidates)
            for seq, first in zip(plan.sequences, first_rows, strict=True)
            if seq.num_candidates
        ]
        if not wanted:
            return None
        found = iter(self._sampler.candidates(logits, wanted))
        return [next(found) if seq.num_candidates else None for seq in plan.sequences]

    def _likeliest(self, plan: SchedulerOutput, found: Array, first_rows: list[int]) -> list[list[int]]:
        """What ``_sample`` gives where no request asks for more, without an object for each draw."""
        best: list[int] = self._backend.to_host(found).tolist()
        tokens: list[list[int]] = []
        for seq, first in zip(plan.sequences, first_rows, strict=True):
            mine = best[first : first + 1] * len(seq.sample_rows)
            if seq.num_drafts:
                mine = best[first : first + seq.num_drafts + 1]
                mine = mine[: num_accepted(_drafts(seq), mine)]
            for row in seq.sample_rows:
                self._last_token[row] = max(mine[-1], 0)
            tokens.append(mine)
        return tokens

    def _prompt_logprobs(
        self, plan: SchedulerOutput, hidden: Array, query_start: np.ndarray
    ) -> list[list[TokenLogprobs] | None] | None:
        if all(seq.prompt_targets is None for seq in plan.sequences):
            return None
        results: list[list[TokenLogprobs] | None] = []
        for seq, first in zip(plan.sequences, query_start.tolist(), strict=False):
            if seq.prompt_targets is None:
                results.append(None)
                continue
            rows = np.arange(first, first + len(seq.prompt_targets), dtype=np.int32)
            logits = self._model.logits(hidden, self._backend.tensor(rows))
            results.append(self._sampler.prompt_logprobs(logits, seq.prompt_targets, seq.num_prompt_logprobs or 0))
        return results


def _wants_argmax(seq: ScheduledSequence) -> bool:
    """Whether the sequence wants nothing but the likeliest token, or nothing yet."""
    if not seq.sample_rows:
        return True
    plain = seq.params is not None and seq.params.plain_greedy
    return plain and seq.num_logprobs is None and not seq.num_candidates


def _masks(plan: SchedulerOutput) -> list[Any]:
    """Of each row that is sampled. Where there is a mask there is one row, as a draft would need one of its own."""
    return [seq.token_mask for seq in plan.sequences if seq.sample_rows for _ in range(1 + seq.num_drafts)]


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
