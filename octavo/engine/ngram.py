"""Drafts by prompt lookup: what followed the last time that the text ended as it does now (Saxena 2023).

Pure guessing: every draft is verified, so a wrong one costs a little compute and never changes an output.
"""

from array import array

LONGEST = 4
SHORTEST = 2
WINDOW = 4096

_BYTES = array("i").itemsize


def propose(token_ids: list[int], num_drafts: int) -> list[int]:
    """Up to ``num_drafts`` tokens that followed the latest earlier occurrence of the longest matching suffix.

    Looks back ``WINDOW`` tokens at most, so that the cost of a step does not grow with the context.
    """
    if num_drafts <= 0:
        return []
    recent = array("i", token_ids[-WINDOW:])
    data = recent.tobytes()
    found = _before_end(data, SHORTEST)
    if found < 0:
        return []
    for size in range(LONGEST, SHORTEST, -1):
        longer = _before_end(data, size)
        if longer >= 0:
            found = longer
            break
    return recent[found : found + num_drafts].tolist()


def _before_end(data: bytes, size: int) -> int:
    """Where the token stands that followed the last ``size`` tokens when they came the last time before; -1: they did not."""
    suffix = data[-size * _BYTES :]
    end = len(data) - _BYTES
    while (at := data.rfind(suffix, 0, end)) >= 0:
        if at % _BYTES == 0:
            return at // _BYTES + size
        end = at + len(suffix) - 1
    return -1
