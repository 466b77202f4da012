"""The engine's mutable records: ``Sequence`` (one branch of tokens) and ``SequenceGroup`` (all branches of one request).

The scheduler owns them; the KV cache manager writes the fields that describe blocks. There is no phase: a sequence has
tokens, some of them computed, and computed catches up with tokens.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from octavo.engine.beam import BeamSearchState
from octavo.engine.grammar import Grammar, mask_of
from octavo.engine.guesses import Guesses
from octavo.engine.repetition import RepetitionWatch
from octavo.memory.block_pool import Block
from octavo.memory.kv_cache_manager import KVUsage
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step import Candidates, TokenLogprobs

_MASK64 = (1 << 64) - 1


class GroupStatus(Enum):
    COMPILING = "compiling"
    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


def branch_seed(seed: int, branch: int) -> int:
    """The uint64 seed of one branch: the request's own for branch 0, a mix for the others (splitmix64, Steele et al. 2014)."""
    if branch == 0:
        return seed & _MASK64
    z = (seed + branch * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


@dataclass(eq=False, slots=True)
class Sequence:
    """One branch. ``token_ids`` ends in placeholders (``step.PENDING``) while draws are in flight.

    ``num_computed`` counts tokens whose K and V are stored or will be by a step already planned. ``drafts`` are guesses for
    what follows ``token_ids``. ``max_len`` bounds prompt plus output, ``group_size`` the sequences of its group that are
    computed at once, and ``reforks`` tells whether they may fork more than once: beams. The fields from ``blocks`` on belong to
    the KV cache manager.
    """

    seq_id: int
    branch: int
    seed: int
    token_ids: list[int]
    prompt_len: int
    cache_root: bytes
    usage: KVUsage
    max_len: int
    group_size: int = 1
    reforks: bool = False
    num_computed: int = 0
    drafts: list[int] = field(default_factory=list)
    guesses: Guesses = field(default_factory=Guesses)
    cumulative_logprob: float | None = None
    grammar: Grammar | None = None
    repetition: RepetitionWatch | None = None
    finished: bool = False
    blocks: list[Block] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    row: int = -1
    on_host: bool = False
    _copied: np.ndarray = field(init=False, repr=False, default_factory=lambda: np.empty(0, np.int32))
    _num_copied: int = field(init=False, repr=False, default=0)

    def history(self) -> np.ndarray:
        """int32[*]: all tokens there are, none of them a placeholder. A view, which stays as it is. A call copies what is new
        and no more: a token that was drawn is never taken back before its sequence ends."""
        known, count = self._num_copied, len(self.token_ids)
        if count > len(self._copied):
            longer = np.empty(max(256, 2 * count), np.int32)
            longer[:known] = self._copied[:known]
            self._copied = longer
        self._copied[known:count] = self.token_ids[known:]
        self._num_copied = count
        return self._copied[:count]

    @property
    def num_lacking(self) -> int:
        """Tokens and drafts that are not computed."""
        return len(self.token_ids) + len(self.drafts) - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_len


@dataclass(eq=False, slots=True)
class GroupTimings:
    """Monotonic seconds; 0 means not yet."""

    first_scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass(eq=False, slots=True)
class SequenceGroup:
    """One request's branches: scheduled, preempted and resumed together.

    ``max_len`` bounds prompt plus output. ``num_branches`` is what the client sees, ``num_sequences`` what is computed: greedy
    branches are equal, so one sequence stands for all. ``forked`` tells whether the branches exist yet. ``turn`` is where a
    policy has put the group in its order. ``num_generated`` counts the new tokens of all its sequences. With ``search``,
    ``sequences`` are its running beams in their order, ``candidates`` what this round has brought so far by sequence id, and
    the branches are the beams that will be returned. ``compiling`` will be the first sequence's grammar. The fields from
    ``params`` on follow from the request and are asked in every step, among them what may be drawn, as a grammar's mask (None
    is everything), and ``num_logprobs`` of draws.
    """

    request: Request
    order: int
    num_branches: int
    num_sequences: int
    max_len: int
    turn: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    status: GroupStatus = GroupStatus.WAITING
    forked: bool = False
    num_in_flight: int = 0
    num_cached_tokens: int = 0
    num_generated: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    silenced: set[int] = field(default_factory=set)
    timings: GroupTimings = field(default_factory=GroupTimings)
    prompt_logprobs: list[TokenLogprobs] | None = None
    search: BeamSearchState | None = None
    candidates: dict[int, Candidates] = field(default_factory=dict)
    compiling: Future[Grammar] | None = None
    params: SamplingParams = field(init=False)
    allowed: np.ndarray | None = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    needs_host: bool = field(init=False)
    needs_history: bool = field(init=False)
    num_logprobs: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.params = params = self.request.params
        self.allowed = None if params.allowed_token_ids is None else mask_of(params.allowed_token_ids)
        self.stop_token_ids = frozenset(params.stop_token_ids or ())
        self.needs_host, self.needs_history = params.needs_host, params.needs_history
        self.num_logprobs = 0 if params.selects and params.num_logprobs is None else params.num_logprobs

    @property
    def usage(self) -> KVUsage:
        return self.sequences[0].usage

    @property
    def live(self) -> list[Sequence]:
        return [seq for seq in self.sequences if not seq.finished]

    @property
    def has_work(self) -> bool:
        """Whether there are tokens, or places of tokens, that are not computed."""
        return any(seq.num_computed < len(seq.token_ids) for seq in self.sequences if not seq.finished)

    @property
    def width(self) -> int:
        """Rows that the group holds or will hold. Beams come and go, so that a search keeps room for all of them."""
        return len(self.live) if self.forked and self.search is None else self.num_sequences

    @property
    def needs_prompt_logprobs(self) -> bool:
        return self.params.prompt_logprobs is not None and not self.forked
