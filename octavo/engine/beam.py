"""Beam search on paper: candidates of every running beam in, and out comes who goes on from whom and what is finished.

Owns hypotheses and their scores; knows no blocks, no steps and no other request. The meaning is that of ``generate`` in
``transformers``. Invariant: ``running`` and ``finished`` are sorted, best first, and hold at most ``width`` hypotheses each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.outputs import BeamState, FinishReason
from octavo.sampling_params import BeamSearch
from octavo.step import Candidates, TokenLogprobs


@dataclass(eq=False, slots=True)
class Hypothesis:
    """One output token and, through ``parent``, all before it. ``length`` counts them, ``total`` sums their log-probabilities.
    The root, which stands for the prompt, has length 0."""

    token_id: int = -1
    parent: "Hypothesis | None" = None
    length: int = 0
    total: float = 0.0
    detail: TokenLogprobs | None = None

    def path(self) -> "list[Hypothesis]":
        """The hypotheses of all output tokens, in order."""
        nodes: list[Hypothesis] = []
        node: Hypothesis = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def token_ids(self) -> list[int]:
        return [node.token_id for node in self.path()]


@dataclass(eq=False, slots=True)
class Finished:
    """A hypothesis that has ended, and why."""

    hypothesis: Hypothesis
    score: float
    reason: FinishReason
    stop_reason: int | None


@dataclass(frozen=True, slots=True)
class Survivor:
    """A beam of the next round: the index of the running beam that it continues, and its newest token."""

    parent: int
    token_id: int


@dataclass(eq=False, slots=True)
class Ends:
    """What ends an output: the model's ``eos_token_ids``, the request's ``stop_token_ids``, ``max_tokens``."""

    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    max_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.eos_token_ids | self.stop_token_ids)

    def reason(self, token_id: int, length: int) -> tuple[FinishReason | None, int | None]:
        """Whether an output ends with this token at this length, and the stop token if one was the cause."""
        if token_id in self.eos_token_ids:
            return "stop", None
        if token_id in self.stop_token_ids:
            return "stop", token_id
        return ("length", None) if length >= self.max_tokens else (None, None)


@dataclass(eq=False, slots=True)
class BeamSearchState:
    """One request's search. Each round ``advance`` takes the candidates of all ``running`` beams, in their order.

    ``num_tokens`` are those of all hypotheses there were, of what some have in common each once."""

    params: BeamSearch
    ends: Ends
    running: list[Hypothesis] = field(default_factory=lambda: [Hypothesis()])
    finished: list[Finished] = field(default_factory=list)
    done: bool = False
    num_rounds: int = 0
    num_tokens: int = 0

    @property
    def num_candidates(self) -> int:
        """How many continuations of a beam compete in a round: enough for ``width`` of all to go on though every stop token is
        among its own."""
        return self.ends.num_tokens + self.params.width

    def advance(self, candidates: Sequence[Candidates]) -> list[Survivor]:
        """Play one round; returns the next running beams, best first: none when the search is ``done``.

        Higher totals come first; among equals the better beam, then its likelier token, then the lower token id.
        """
        self.num_rounds += 1
        contenders = self._contenders(candidates)
        survivors: list[Survivor] = []
        running: list[Hypothesis] = []
        ended: list[Finished] = []
        for place, (total, index, choice) in enumerate(contenders):
            found, parent = candidates[index], self.running[index]
            token = found.token_ids[choice]
            reason, stop_reason = self.ends.reason(token, self.num_rounds)
            if reason is None and len(running) == self.params.width:
                continue
            detail = found.details[choice] if found.details is not None else None
            hypothesis = Hypothesis(token, parent, self.num_rounds, total, detail)
            if reason is None:
                running.append(hypothesis)
                survivors.append(Survivor(index, token))
            elif place < self.params.width:  # the rest compete only so that enough beams go on
                score = self.params.score(total, self.num_rounds)
                ended.append(Finished(hypothesis, score, reason, stop_reason))
        self.num_tokens += len(running) + len(ended)
        # Stable: of equals the one that finished first stays first.
        self.finished = sorted([*self.finished, *ended], key=lambda one: -one.score)[: self.params.width]
        self.running = running
        self.done = not running or not self._can_improve()
        return [] if self.done else survivors

    def _contenders(self, candidates: Sequence[Candidates]) -> list[tuple[float, int, int]]:
        """The best continuations of all beams, best first, as (total, beam, place among the beam's candidates)."""
        everything = [
            (beam.total + logprob, index, choice)
            for index, (beam, found) in enumerate(zip(self.running, candidates, strict=True))
            for choice, logprob in enumerate(found.logprobs)
        ]
        everything.sort(key=lambda one: -one[0])
        return everything

    def _can_improve(self) -> bool:
        """Whether going on could change the finished beams, by the rule that the request chose."""
        if len(self.finished) < self.params.width:
            return True
        if self.params.early_stopping is True:
            return False
        # "never" bets on the longest output where longer ones score better; otherwise the best running beam as it stands.
        longest = self.params.early_stopping == "never" and self.params.length_penalty > 0
        length = self.ends.max_tokens if longest else self.num_rounds
        return self.params.score(self.running[0].total, length) > self.finished[-1].score

    def fail(self) -> None:
        """Nothing can be said of what follows a beam: the search ends without a result."""
        self.done = True
        self.running, self.finished = [], []

    def report(self) -> list[BeamState]:
        """The running beams for the client, best first."""
        return [BeamState(beam.token_ids(), beam.total) for beam in self.running]
