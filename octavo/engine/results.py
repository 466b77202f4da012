"""What becomes of a step's results: tokens find their places, sequences end, clients are told.

Owns nothing: it changes the groups that a plan names, and tells residence who has ended. Late results of finished sequences are
dropped.
"""

from collections.abc import Iterator

from octavo.engine import decoding
from octavo.engine.counters import Counters
from octavo.engine.decoding import Planned
from octavo.engine.deltas import beam_deltas, deltas_of, error_deltas, open_branches, request_metrics
from octavo.engine.residence import Residence
from octavo.engine.sequence import GroupStatus, Sequence, SequenceGroup
from octavo.engine.speculation import Speculation
from octavo.engine.stopping import ends_with_grammar, finish_reason
from octavo.memory.interface import KVManager
from octavo.outputs import FinishReason, TokenDelta
from octavo.step import PENDING, Candidates, ModelOutput, TokenLogprobs


class Results:
    """``take()`` has the results of one step."""

    def __init__(
        self,
        kv: KVManager,
        residence: Residence,
        counters: Counters,
        *,
        eos_token_ids: frozenset[int],
        speculation: Speculation,
        seq_ids: Iterator[int],
    ) -> None:
        self._kv = kv
        self._residence = residence
        self._counters = counters
        self._eos_token_ids = eos_token_ids
        self._speculation = speculation
        self._seq_ids = seq_ids

    def take(self, planned: list[Planned], output: ModelOutput, now: float) -> list[TokenDelta]:
        """What is new for clients after a step in which ``planned`` was computed."""
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
        return deltas

    def _fail(self, group: SequenceGroup, error: str, deltas: list[TokenDelta]) -> None:
        """A sequence of the group could not be computed: its request ends, and nobody else's."""
        if group.status is GroupStatus.FINISHED:
            return
        branches = open_branches(group)
        for seq in group.live:
            self._residence.release(seq)
        deltas.extend(error_deltas(group, branches, error))
        self._residence.retire(group)

    def _commit_drawn(
        self, entry: Planned, tokens: list[int], logprobs: list[TokenLogprobs] | None, now: float, deltas: list[TokenDelta]
    ) -> None:
        if not entry.seq.finished:
            self._kv.publish(entry.seq, entry.end)
        for i, (seq, token) in enumerate(zip(entry.targets, tokens, strict=True)):
            if not seq.finished:
                decoding.place_drawn(entry, seq, token)
                self._deliver(entry.group, seq, [token], entry.position, logprobs[i : i + 1] if logprobs else None, now, deltas)
                if not seq.finished and ends_with_grammar(entry.group, seq, token, self._eos_token_ids):
                    self._deliver(entry.group, seq, [], entry.position + 1, None, now, deltas, reason="stop")
                if not seq.finished:
                    self._speculation.drawn(entry.group, seq, entry.position)
                    if seq.token_ids[-1] != PENDING:
                        self._speculation.propose(entry.group, seq)

    def _commit_candidates(self, entry: Planned, found: Candidates | None, now: float, deltas: list[TokenDelta]) -> None:
        group, seq, search = entry.group, entry.seq, entry.group.search
        if seq.finished or search is None:
            return
        self._kv.publish(seq, entry.end)
        if found is None or not decoding.round_is_complete(group, seq, found):
            return
        before = search.num_tokens
        decoding.advance_beams(group, search, self._kv, self._seq_ids)
        self._count(group, search.num_tokens - before)
        _note_times(group, now)
        deltas.extend(beam_deltas(group, search, request_metrics(group) if search.done else None))
        if search.done:
            self._residence.retire(group)

    def _commit_verified(
        self, entry: Planned, tokens: list[int], logprobs: list[TokenLogprobs] | None, now: float, deltas: list[TokenDelta]
    ) -> None:
        seq = entry.seq
        if seq.finished:
            return
        seq.guesses.verified(entry.num_drafts, len(tokens) - 1)
        self._counters.drafts += 1
        self._counters.draft_tokens += entry.num_drafts
        self._counters.accepted_draft_tokens += len(tokens) - 1
        decoding.place_verified(seq, tokens)
        self._kv.publish(seq, seq.num_computed)
        self._deliver(entry.group, seq, tokens, entry.position, logprobs, now, deltas)
        if not seq.finished:
            self._speculation.propose(entry.group, seq)

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
        stop_reason: int | str | None = None
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
            self._residence.release(seq)
        self._count(group, len(tokens))
        _note_times(group, now)
        metrics = request_metrics(group) if reason is not None and not group.live else None
        deltas.extend(deltas_of(group, seq, tokens, logprobs, reason, stop_reason, metrics))
        group.prompt_logprobs = None
        if metrics is not None:
            self._residence.retire(group)

    def _count(self, group: SequenceGroup, num_tokens: int) -> None:
        group.num_generated += num_tokens
        self._counters.generation_tokens += num_tokens


def _note_times(group: SequenceGroup, now: float) -> None:
    if not group.timings.first_token:
        group.timings.first_token = now
    group.timings.last_token = now
