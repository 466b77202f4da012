"""Drafts by prompt lookup: what followed the last time that the text ended as it does now (Saxena 2023).

Pure guessing: every draft is verified, so a wrong one costs a little compute and never changes an output.
"""

LONGEST = 4
SHORTEST = 2


def propose(token_ids: list[int], num_drafts: int, *, window: int = 1024) -> list[int]:
    """Up to ``num_drafts`` tokens that followed the latest earlier occurrence of the longest matching suffix.

    Looks back ``window`` tokens at most, so that the cost of a step does not grow with the context.
    """
    if num_drafts <= 0:
        return []
    recent = token_ids[-window:]
    for size in range(LONGEST, SHORTEST - 1, -1):
        suffix = recent[-size:]
        for start in range(len(recent) - size - 1, -1, -1):
            if recent[start : start + size] == suffix:
                return recent[start + size : start + size + num_drafts]
    return []
