"""An executor whose memory can be wrong: it keeps token ids in a paged cache and derives every next token from what it
reads back through the block tables. A mis-mapped block, a late copy, a stale hash or a lost reference changes the output.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.config import EngineConfig, KVAllocation
from octavo.engine.engine import Engine
from octavo.engine.grammar import MaskBudget
from octavo.engine.ngram import PromptLookup
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import branch_seed
from octavo.engine.speculation import StepCost
from octavo.memory.contiguous import ContiguousKVManager
from octavo.memory.interface import KVManager
from octavo.memory.kv_cache_manager import KVCacheManager
from octavo.outputs import FinishReason
from octavo.request import Request, Thinking
from octavo.sampling_params import BeamSearch, RepetitionDetectionParams, SamplingParams
from octavo.step import PENDING, Candidates, ModelOutput, ScheduledSequence, SchedulerOutput
from tests.engine.fake_grammar import EOS, VOCABULARY, FakeGrammars, begin_for, fake_form, fake_thinking, pick

End = tuple[FinishReason, int | str | None]
"""A finish reason and what is told beside it."""


def next_token(context: list[int], seed: int, mask: np.ndarray | None = None) -> int:
    return pick(hash((tuple(context), seed, 7)) & 0x7FFFFFFF, mask)


def logprobs_after(context: list[int], params: SamplingParams, prompt_len: int) -> list[float]:
    """The log-probability of every token after ``context``, a penalty and the least length considered."""
    digest = hash((tuple(context), 11))
    values = [-((hash((digest, token)) >> 8) & 0xFFFF) / 8192 - 0.01 for token in range(VOCABULARY)]
    for token in set(context):
        values[token] *= params.repetition_penalty
    if len(context) - prompt_len < params.min_tokens:
        for token in stops_of(params):
            values[token] = float("-inf")
    return values


def stops_of(params: SamplingParams) -> set[int]:
    return {*(() if params.ignore_eos else (EOS,)), *(params.stop_token_ids or ())}


class LazyResult:
    """Like a Future, but the plan runs only when somebody asks: as late as a real device might."""

    def __init__(self, executor: "FakeExecutor") -> None:
        self._executor = executor

    def result(self) -> ModelOutput:
        return self._executor.run_oldest()


class FakeExecutor:
    """An in-order device that knows nothing but the plan."""

    def __init__(self, *, block_size: int, num_blocks: int, num_host_blocks: int) -> None:
        self.block_size = block_size
        self.device: list[list[Any]] = [[None] * block_size for _ in range(num_blocks)]
        self.host: list[list[Any]] = [[None] * block_size for _ in range(num_host_blocks)]
        self.last_token: dict[int, int] = {}
        self.queue: deque[SchedulerOutput] = deque()

    def submit(self, plan: SchedulerOutput) -> LazyResult:
        self.queue.append(plan)
        return LazyResult(self)

    def shutdown(self) -> None:
        self.queue.clear()

    def run_oldest(self) -> ModelOutput:
        plan = self.queue.popleft()
        self.copy(plan)
        for i, seq in enumerate(plan.sequences):
            self.write(seq, plan.block_tables[i])
        tokens = [self.sample(seq, plan.block_tables[i]) for i, seq in enumerate(plan.sequences)]
        candidates = [self.candidates(seq, plan.block_tables[i]) for i, seq in enumerate(plan.sequences)]
        return ModelOutput(step_id=plan.step_id, token_ids=tokens, candidates=candidates if any(candidates) else None)

    def copy(self, plan: SchedulerOutput) -> None:
        for source, target in plan.copies.swap_out:
            self.host[target] = list(self.device[source])
        for source, target in plan.copies.swap_in:
            self.device[target] = list(self.host[source])
        for source, target in plan.copies.copy:
            self.device[target] = list(self.device[source])

    def write(self, seq: ScheduledSequence, table: np.ndarray) -> None:
        for offset, token in enumerate(seq.token_ids):
            position = seq.start + offset
            known = self.last_token[seq.row] if token == PENDING else token
            self.device[table[position // self.block_size]][position % self.block_size] = (position, known)

    def read(self, seq: ScheduledSequence, table: np.ndarray) -> list[int]:
        context = []
        for position in range(seq.start + len(seq.token_ids)):
            slot = self.device[table[position // self.block_size]][position % self.block_size]
            assert slot is not None and slot[0] == position, f"position {position} reads {slot}"
            context.append(slot[1])
        return context

    def sample(self, seq: ScheduledSequence, table: np.ndarray) -> list[int]:
        context = self.read(seq, table)
        if not seq.sample_rows or seq.num_candidates:
            return []
        if seq.num_drafts:
            accepted = []
            for end in range(len(context) - seq.num_drafts, len(context) + 1):
                accepted.append(next_token(context[:end], seq.seeds[0]))
                if end < len(context) and context[end] != accepted[-1]:
                    break
            return accepted
        if seq.history is not None:
            assert seq.history.tolist() == context
        tokens = [next_token(context, seed, seq.token_mask) for seed in seq.seeds]
        self.last_token.update(zip(seq.sample_rows, tokens, strict=True))
        return tokens

    def candidates(self, seq: ScheduledSequence, table: np.ndarray) -> Candidates | None:
        if not seq.num_candidates:
            return None
        assert seq.params is not None and seq.sample_rows == (seq.row,)
        context = self.read(seq, table)
        if seq.params.needs_history:
            assert seq.history.tolist() == context
        values = logprobs_after(context, seq.params, seq.prompt_len)
        likely = [token for token in range(VOCABULARY) if values[token] > float("-inf")]
        likely = sorted(likely, key=lambda token: (-values[token], token))[: seq.num_candidates]
        return Candidates(likely, [values[token] for token in likely])


@dataclass
class NaiveBeam:
    """A hypothesis of the naive search, running or finished."""

    total: float
    tokens: list[int]
    score: float = 0.0


def naive_beams(request: Request, max_model_len: int) -> list[NaiveBeam]:
    """Beam search over the whole vocabulary by its definition, in the meaning of ``transformers``."""
    params, prompt = request.params, request.prompt_token_ids
    assert params.beam is not None
    width, power, stops = params.beam.width, params.beam.length_penalty, stops_of(params)
    most = min(params.max_tokens or max_model_len, max_model_len - len(prompt))
    running, finished = [NaiveBeam(0.0, [])], list[NaiveBeam]()
    for length in range(1, most + 1):
        contenders = []
        for rank, beam in enumerate(running):
            for token, value in enumerate(logprobs_after(prompt + beam.tokens, params, len(prompt))):
                if value > float("-inf"):
                    contenders.append((-(beam.total + value), rank, -value, token))
        contenders.sort()
        contenders = contenders[: max(2, 1 + len(stops)) * width]
        going_on = []
        for place, (negative, rank, _, token) in enumerate(contenders):
            beam = NaiveBeam(-negative, [*running[rank].tokens, token], -negative / length**power)
            if token not in stops and length < most:
                going_on.append(beam)
            elif place < width:
                finished.append(beam)
        finished = sorted(finished, key=lambda beam: -beam.score)[:width]
        running = going_on[:width]
        if len(finished) == width and running:
            hoped = most if params.beam.early_stopping == "never" and power > 0 else length
            if params.beam.early_stopping is True or running[0].total / hoped**power <= finished[-1].score:
                break
    return finished[: params.n]


def repeats(output: list[int], params: SamplingParams) -> bool:
    """Whether it ends in copies of a pattern, by the definition."""
    watched = params.repetition_detection
    if watched is None:
        return False
    sizes = range(watched.sizes[0], watched.sizes[1] + 1)
    wholes = [(size, size * watched.min_count) for size in sizes if size * watched.min_count <= len(output)]
    return any(output[-whole:] == output[-size:] * watched.min_count for size, whole in wholes)


def end_of(token: int, params: SamplingParams) -> End | None:
    """If a token may end an output, how it is told."""
    if token == EOS and not params.ignore_eos:
        return "stop", None
    return ("stop", token) if token in (params.stop_token_ids or ()) else None


def naive(request: Request, max_model_len: int) -> list[list[int]]:
    """The outputs of all branches by the simplest possible loop."""
    return [tokens for tokens, _ in naive_with_ends(request, max_model_len)]


def naive_with_ends(request: Request, max_model_len: int) -> list[tuple[list[int], End]]:
    """The same, and how each of them ends."""
    params, outputs = request.params, []
    for branch in range(params.num_branches):
        seed = branch_seed(request.seed, 0 if params.greedy else branch)
        tokens = list(request.prompt_token_ids)
        grammar = begin_for(request)
        end: End | None = None
        while end is None:
            if grammar is not None:
                grammar.compute_mask()
            token = next_token(tokens, seed, grammar.mask if grammar is not None and not grammar.is_open else None)
            if token < 0:
                end = ("stop" if grammar is not None and grammar.is_satisfied else "error"), None
                continue
            tokens.append(token)
            produced = len(tokens) - len(request.prompt_token_ids)
            may_end = produced >= params.min_tokens
            if may_end:
                end = end_of(token, params)
            if end is None and (produced >= (params.max_tokens or 0) or len(tokens) >= max_model_len):
                end = "length", None
            if end is None and may_end and repeats(tokens[-produced:], params):
                end = "repetition", "repetition_detected"
            if end is None and grammar is not None and grammar.advance(token) and (params.ignore_eos or not may_end):
                end = "stop", None
        outputs.append((tokens[len(request.prompt_token_ids) :], end))
    return outputs


@dataclass
class Scenario:
    """One random engine and the requests that pass through it."""

    seed: int
    with_aborts: bool = True
    max_model_len: int = 40
    kv_allocation: KVAllocation = "paged"
    outputs: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    totals: dict[tuple[str, int], float | None] = field(default_factory=dict)
    ends: dict[tuple[str, int], End] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        block_size = rng.choice([1, 2, 3, 4, 8])
        self.grammar_rng = random.Random(f"grammars {self.seed}")  # its own, so that it moves no other choice
        self.watch_rng = random.Random(f"repetition {self.seed}")
        self.thinking_rng = random.Random(f"thinking {self.seed}")
        self.grammars = FakeGrammars(self.grammar_rng)
        self.shared = [rng.randrange(1, VOCABULARY) for _ in range(12)]
        self.speculates = rng.random() < 0.3
        self.arrivals: list[Request] = []
        for _ in range(rng.randint(4, 14)):
            self.arrivals.append(self.new_request())
        extra_blocks = rng.choice([0, 0, 1, 3])
        num_host_blocks = rng.choice([0, 20, 60, 200])
        self.depth = rng.choice([1, 2, 3])
        config = EngineConfig(
            model="fake",
            block_size=block_size,
            max_num_seqs=rng.choice([4, 8, 16]),
            max_num_batched_tokens=rng.choice([3, 8, 16, 64]),
            preemption_mode=rng.choice(["auto", "recompute", "swap"]),
            scheduling_policy=rng.choice(["fcfs", "fair", "priority"]),
            enable_prefix_caching=rng.random() < 0.6,
            spec_method="ngram" if self.speculates else "none",
            kv_allocation=self.kv_allocation,
        )
        self.kv = self.manager(config, num_blocks=1 << 10, num_host_blocks=0)
        num_blocks = max(map(self.blocks_needed, self.arrivals)) + extra_blocks
        self.kv = self.manager(config, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
        self.scheduler = Scheduler(
            config, self.kv, max_model_len=self.max_model_len, eos_token_ids=(EOS,), grammars=self.grammars
        )
        hurry = random.Random(self.seed)
        self.scheduler._masks = MaskBudget(clock=lambda: hurry.choice([0.0, 0.0, 1.0]))  # sometimes its time is up at once
        executor = FakeExecutor(block_size=block_size, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
        self.engine = Engine(self.scheduler, executor, max_in_flight=self.depth)

    def manager(self, config: EngineConfig, *, num_blocks: int, num_host_blocks: int) -> KVManager:
        if config.kv_allocation == "paged":
            return KVCacheManager(
                block_size=config.block_size,
                num_blocks=num_blocks,
                num_host_blocks=num_host_blocks,
                num_rows=config.max_num_seqs,
                max_blocks=-(-(self.max_model_len - 1) // config.block_size),
                enable_prefix_caching=config.enable_prefix_caching,
            )
        return ContiguousKVManager(
            allocation=config.kv_allocation,
            block_size=config.block_size,
            num_blocks=num_blocks,
            num_rows=config.max_num_seqs,
            max_model_len=self.max_model_len,
        )

    def blocks_needed(self, request: Request) -> int:
        """The smallest pool in which the request alone can run."""
        return self.kv.blocks_needed(
            prompt_len=len(request.prompt_token_ids),
            max_len=min(len(request.prompt_token_ids) + (request.params.max_tokens or 0), self.max_model_len),
            num_sequences=1 if request.params.greedy and request.params.beam is None else request.params.num_branches,
        )

    def draft(self, token_ids: list[int], known: int, num_drafts: int) -> list[int]:
        """Instead of a prompt look-up: drafts that are right most of the time."""
        owner = next(s for s in self.scheduler.live_sequences if s.token_ids is token_ids)
        context, drafts = token_ids[:known], []
        for _ in range(self.rng.randint(0, max(0, num_drafts))):
            right = self.rng.random() < 0.7
            drafts.append(next_token(context, owner.seed) if right else self.rng.randrange(VOCABULARY))
            context.append(drafts[-1])
        return drafts

    def new_request(self) -> Request:
        rng = self.rng
        prompt = self.shared[: rng.randint(0, 12)] if rng.random() < 0.6 else []
        prompt = prompt + [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 12))]
        if self.arrivals and rng.random() < 0.25:
            prompt = list(rng.choice(self.arrivals).prompt_token_ids)
        max_tokens = rng.randint(1, 14)
        n = 1 if self.speculates and rng.random() < 0.5 else rng.randint(1, 4)
        beam = None
        if rng.random() < 0.3:
            beam = BeamSearch(
                width=rng.randint(n, 4),
                length_penalty=rng.choice([-0.5, 0.0, 1.0, 2.0]),
                early_stopping=rng.choice([False, True, "never"]),
                report=rng.random() < 0.5,
            )
        params = SamplingParams(
            n=n,
            best_of=rng.randint(n, 4) if beam is None and rng.random() < 0.2 else None,
            beam=beam,
            temperature=rng.choice([0.0, 1.0, 1.0, 1.0]),
            max_tokens=max_tokens,
            min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.3 else 0,
            ignore_eos=rng.random() < 0.2,
            stop_token_ids=[rng.randrange(VOCABULARY)] if rng.random() < 0.3 else None,
            repetition_penalty=1.2 if rng.random() < 0.2 else 1.0,
            structured_outputs=fake_form(self.grammar_rng) if beam is None and self.grammar_rng.random() < 0.2 else None,
        )
        params, thinking = self.new_thinking(params)
        params = self.new_watch(params)
        scope = rng.choice(["", "", "tenant"])
        return Request(
            id=f"r{len(self.arrivals)}",
            prompt_token_ids=prompt,
            params=params,
            seed=rng.randrange(2**40),
            arrival_time=0.0,
            priority=rng.randint(0, 2),
            cache_scope=scope,
            tenant=f"tenant-{len(self.arrivals) % 3}",
            thinking=thinking,
        )

    def new_watch(self, params: SamplingParams) -> SamplingParams:
        """Some requests end when they repeat themselves, which over a small vocabulary they do."""
        rng = self.watch_rng
        if params.beam is not None or rng.random() < 0.7:
            return params
        largest = rng.randint(1, 3)
        watched = RepetitionDetectionParams(max_pattern_size=largest, min_pattern_size=rng.randint(0, largest), min_count=2)
        return msgspec.structs.replace(params, repetition_detection=watched)

    def new_thinking(self, params: SamplingParams) -> tuple[SamplingParams, Thinking | None]:
        """Some requests reason first, with a budget or before a form."""
        rng = self.thinking_rng
        if params.beam is not None or rng.random() < (0.5 if params.structured_outputs is None else 0.8):
            return params, None
        budget = rng.randrange(8) if params.structured_outputs is None or rng.random() < 0.7 else None
        return msgspec.structs.replace(params, thinking_token_budget=budget), fake_thinking(rng)

    def run(self, *, check_every_step: bool = True) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PromptLookup, "propose", lambda lookup, *known: self.draft(*known))
            patch.setattr(StepCost, "price", lambda cost, sequences: self.rng.random())
            patch.setattr(StepCost, "growth", lambda cost, sequences: self.rng.random() ** 4)
            patch.setattr("octavo.engine.engine.GRAMMAR_WAIT", 0.0)  # they come when the scenario says so
            self._loop(check_every_step)
        self._verify()

    def _loop(self, check_every_step: bool) -> None:
        todo, steps = list(reversed(self.arrivals)), 0
        while todo or self.engine.has_work:
            if todo and self.rng.random() < 0.6:
                request = todo.pop()
                self.requests[request.id] = request
                self.engine.add(request)
            if self.with_aborts and self.requests and self.rng.random() < 0.03:
                victim = self.rng.choice(list(self.requests))
                if victim not in self.finished:
                    self.aborted.add(victim)
                    self.engine.abort(victim)
            self.grammars.tick()
            for delta in self.engine.step():
                self.outputs.setdefault((delta.request_id, delta.branch), []).extend(delta.token_ids)
                self.totals[delta.request_id, delta.branch] = delta.cumulative_logprob
                if delta.finish_reason is not None:
                    self.ends[delta.request_id, delta.branch] = delta.finish_reason, delta.stop_reason
                if delta.metrics is not None:
                    self.finished.add(delta.request_id)
            if check_every_step:
                self.kv.check(self.scheduler.live_sequences)
                self._check_scopes()
                self._check_slots()
                self._check_beams()
            steps += 1
            assert steps < 5000, f"seed {self.seed}: no progress"

    def _check_scopes(self) -> None:
        """No block is in the tables of two tenants."""
        owners: dict[tuple[bool, int], str] = {}
        for group in self.scheduler._groups.values():
            for seq in group.live:
                for block in seq.blocks:
                    scope = owners.setdefault((seq.on_host, block.id), group.request.cache_scope)
                    assert scope == group.request.cache_scope, f"seed {self.seed}: a block crosses tenants"

    def _check_slots(self) -> None:
        """What the memory is said to be used for is all of it."""
        slots = self.scheduler.kv_slots()
        parts = (slots.tokens, slots.reserved, slots.internal, slots.rounding, slots.unusable, slots.cached, slots.free)
        assert min(parts) >= 0 and sum(parts) == slots.total == self.kv.device.num_blocks * self.kv.block_size, (
            self.seed,
            slots,
        )

    def _check_beams(self) -> None:
        """No search holds more sequences than its width, or candidates of a beam that must be computed again."""
        for group in self.scheduler._groups.values():
            assert len(group.live) <= group.num_sequences
            for seq in group.live:
                complete = seq.num_computed == len(seq.token_ids)
                assert complete or seq.seq_id not in group.candidates, f"seed {self.seed}: candidates of a lost beam"

    def _verify(self) -> None:
        for request in self.requests.values():
            if request.id not in self.aborted:
                keys = [(request.id, branch) for branch in range(request.params.num_outputs)]
                got = [(self.outputs[key], self.ends[key]) for key in keys]
                if request.params.beam is None:
                    assert got == naive_with_ends(request, self.max_model_len), (self.seed, request)
                    continue
                beams = naive_beams(request, self.max_model_len)
                ends = [end_of(beam.tokens[-1], request.params) or ("length", None) for beam in beams]
                assert got == [(beam.tokens, end) for beam, end in zip(beams, ends, strict=True)], (self.seed, request)
                assert [self.totals[key] for key in keys] == [beam.total for beam in beams], (self.seed, request)
        if self.kv_allocation != "paged":
            assert self.scheduler.counters.preemptions == 0, f"seed {self.seed}: what is reserved was preempted"
        for pool in (self.kv.device, self.kv.host):
            assert pool.num_free == pool.num_blocks, f"seed {self.seed}: blocks leak"
        assert self.kv.tables.num_free_rows == self.scheduler._config.max_num_seqs, f"seed {self.seed}: rows leak"
