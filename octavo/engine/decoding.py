"""How a group's tokens become more tokens: fork at the end of the prompt, place what is drawn, verify what was guessed, let
beams die and part.

Called by the scheduler alone; changes sequences through the KV cache manager's fork / allocate / free.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from octavo.engine.beam import BeamSearchState, Ends, Survivor
from octavo.engine.grammar import Grammar
from octavo.engine.sequence import Sequence, SequenceGroup, branch_seed
from octavo.memory.interface import KVManager
from octavo.sampling_params import SamplingParams
from octavo.step import PENDING, Candidates


@dataclass(slots=True)
class Planned:
    """What the scheduler remembers of one ``ScheduledSequence`` until its results arrive.

    ``end`` is the position after the last computed token, drafts included. ``targets`` are the sequences that receive a draw
    each, ``position`` is the index that these tokens will have.
    """

    group: SequenceGroup
    seq: Sequence
    end: int
    targets: list[Sequence]
    position: int
    num_drafts: int = 0


def fork_branches(group: SequenceGroup, parent: Sequence, kv: KVManager, seq_ids: Iterator[int]) -> None:
    """At the end of the prompt: every branch begins as a copy of the first and shares all of its blocks."""
    for branch in range(1, group.num_sequences):
        child = _fork(parent, kv, next(seq_ids), branch=branch, seed=branch_seed(group.request.seed, branch))
        kv.hold_row(child)
        group.sequences.append(child)


def _fork(parent: Sequence, kv: KVManager, seq_id: int, *, branch: int, seed: int) -> Sequence:
    """A copy of ``parent`` that shares all of its blocks."""
    child = Sequence(
        seq_id=seq_id,
        branch=branch,
        seed=seed,
        token_ids=list(parent.token_ids),
        prompt_len=parent.prompt_len,
        cache_root=parent.cache_root,
        usage=parent.usage,
        max_len=parent.max_len,
        group_size=parent.group_size,
        reforks=parent.reforks,
        grammar=parent.grammar.fork() if parent.grammar is not None else None,
        repetition=parent.repetition.fork() if parent.repetition is not None else None,
    )
    kv.fork(parent, child)
    return child


def lacking_masks(groups: Iterable[SequenceGroup]) -> list[tuple[int, Grammar]]:
    """The sequences that can only go on once the mask of their grammar is computed, by id."""
    sequences = [seq for group in groups if group.params.is_confined for seq in group.live]
    return [(s.seq_id, s.grammar) for s in sequences if s.grammar is not None and s.grammar.mask is None]


def begin_search(params: SamplingParams, eos_token_ids: frozenset[int], max_tokens: int) -> BeamSearchState | None:
    """The state of the search that a request asks for, if it does."""
    if params.beam is None:
        return None
    eos = frozenset[int]() if params.ignore_eos else eos_token_ids
    return BeamSearchState(params.beam, Ends(eos, frozenset(params.stop_token_ids or ()), max_tokens))


def round_is_complete(group: SequenceGroup, seq: Sequence, found: Candidates) -> bool:
    """Keep one beam's candidates. True when the round can be played: every running beam has them, or one has unsound logits,
    which ends the search."""
    group.candidates[seq.seq_id] = found
    return not found.sound or len(group.candidates) == len(group.live)


def advance_beams(group: SequenceGroup, search: BeamSearchState, kv: KVManager, seq_ids: Iterator[int]) -> None:
    """Play one round of the search and let the sequences follow: first those without a survivor are freed, so that no more
    than the beam width ever hold rows and blocks; then the first survivor of a beam goes on in its sequence, and each other
    is a fork of it."""
    found = [group.candidates.get(seq.seq_id) for seq in group.sequences]
    group.candidates.clear()
    complete = [one for one in found if one is not None and one.sound]
    if len(complete) < len(found):
        search.fail()
    survivors = search.advance(complete) if not search.done else []
    _free_the_dead(group.sequences, survivors, kv)
    if not search.done:
        group.sequences = _continue(group.sequences, survivors, kv, seq_ids)


def _free_the_dead(parents: list[Sequence], survivors: list[Survivor], kv: KVManager) -> None:
    continued = {survivor.parent for survivor in survivors}
    for index, seq in enumerate(parents):
        if index not in continued:
            kv.free(seq)
            seq.finished = True


def _continue(parents: list[Sequence], survivors: list[Survivor], kv: KVManager, seq_ids: Iterator[int]) -> list[Sequence]:
    beams: list[Sequence] = []
    inherited: set[int] = set()
    for survivor in survivors:
        parent = parents[survivor.parent]
        heir = survivor.parent not in inherited
        inherited.add(survivor.parent)
        beams.append(parent if heir else _fork(parent, kv, next(seq_ids), branch=parent.branch, seed=parent.seed))
    for seq, survivor in zip(beams, survivors, strict=True):  # only now: forks are copies of what parents were before
        seq.token_ids.append(survivor.token_id)
    return beams


def place_drawn(planned: Planned, seq: Sequence, token: int) -> None:
    """Put a drawn token where its placeholder is, or behind the last token if none was placed."""
    if planned.position < len(seq.token_ids):
        if seq.token_ids[planned.position] != PENDING:
            raise RuntimeError(f"sequence {seq.seq_id}: position {planned.position} already has a token")
        seq.token_ids[planned.position] = token
    else:
        seq.token_ids.append(token)


def place_verified(seq: Sequence, tokens: list[int]) -> None:
    """Append accepted drafts and the token after them. Rejected drafts no longer count as computed: their slots are simply
    written again."""
    before = len(seq.token_ids)
    seq.drafts = []
    seq.token_ids.extend(tokens)
    seq.num_computed = before + len(tokens) - 1


def rebuild_from(group: SequenceGroup, seq: Sequence) -> tuple[Sequence, int] | None:
    """The sibling whose blocks a branch lost to recomputation should share, and how many tokens; None: not yet.

    Branches come back one by one, each when a sibling has computed all that the two have in common: sharing is rebuilt, and
    a group that fitted once fits again.
    """
    best: tuple[Sequence, int] | None = None
    for sibling in group.live:
        if sibling is not seq and sibling.blocks:
            shared = _common_prefix(sibling.token_ids, seq.token_ids, seq.prompt_len)
            shared = min(shared, len(seq.token_ids) - 1)
            if best is None or shared > best[1]:
                best = (sibling, shared)
    if best is None or best[0].num_computed < best[1]:
        return None
    return best


def _common_prefix(a: list[int], b: list[int], known: int) -> int:
    """How many tokens two lists have in common, at their beginning, that have so many."""
    limit = min(len(a), len(b))
    return next((i for i in range(known, limit) if a[i] != b[i]), limit)
