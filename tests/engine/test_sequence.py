"""A sequence's record of its own tokens."""

from octavo.engine.sequence import Sequence
from octavo.memory.kv_cache_manager import KVUsage


def test_a_history_stays_as_it_was_given_away() -> None:
    seq = Sequence(
        seq_id=0, branch=0, seed=0, token_ids=list(range(100)), prompt_len=90, cache_root=b"", usage=KVUsage(), max_len=5000
    )
    given = []
    for count in range(100, 1500, 7):
        given.append((len(seq.token_ids), seq.history()))
        seq.token_ids += range(count, count + 7)
    assert seq.history().tolist() == list(range(len(seq.token_ids)))
    for length, history in given:
        assert history.dtype == "int32" and history.tolist() == list(range(length))
