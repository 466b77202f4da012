"""How a group's tokens become more tokens: fork at the end of the prompt, place what is drawn, verify what was guessed.

Called by the scheduler alone; changes sequences through the KV cache manager's fork / allocate / free.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.engine.sequence import Sequence, SequenceGroup, branch_seed
from octavo.memory.interface import KVManager
from octavo.step import PENDING


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
        child = Sequence(
            seq_id=next(seq_ids),
            branch=branch,
            seed=branch_seed(group.request.seed, branch),
            token_ids=list(parent.token_ids),
            prompt_len=parent.prompt_len,
            cache_root=parent.cache_root,
            usage=parent.usage,
            max_len=parent.max_len,
            group_size=parent.group_size,
        )
        kv.fork(parent, child)
        kv.hold_row(child)
        group.sequences.append(child)
    group.forked = True


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
            shared = _common_prefix(sibling.token_ids, seq.token_ids, len(seq.token_ids) - 1)
            if best is None or shared > best[1]:
                best = (sibling, shared)
    if best is None or best[0].num_computed < best[1]:
        return None
    return best


def _common_prefix(a: list[int], b: list[int], limit: int) -> int:
    limit = min(limit, len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)
