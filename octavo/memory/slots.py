"""What the slots of a KV cache hold at one moment: one record for every way of managing it, so that they can be compared.

A slot is room for one token's keys and values. The words are those of Kwon et al., "Efficient Memory Management for Large
Language Model Serving with PagedAttention" (SOSP 2023), section 3.1.
"""

import msgspec


class KVSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of slots; those from ``tokens`` to ``free`` sum to ``total``.

    ``tokens`` hold a token that a running sequence needs. ``reserved`` are kept for tokens that a running sequence may yet
    have, within its own ``max_tokens``. ``internal`` are allocated and will hold nothing: what was reserved beyond
    ``max_tokens``, the unfilled end of a last block, the space of sequences that ended and was not given back. ``rounding`` is
    what sizes of powers of two add. ``unusable`` are free slots while the request that is next in line waits and does not fit;
    while it would fit, or when nobody waits, free slots are ``cached`` (a prefix can still be found there) or ``free``.

    ``saved`` is not part of the sum: the slots that sharing saves, counting each further owner of a block.
    """

    total: int
    tokens: int
    reserved: int = 0
    internal: int = 0
    rounding: int = 0
    unusable: int = 0
    cached: int = 0
    free: int = 0
    saved: int = 0

    @property
    def external(self) -> int:
        """External fragmentation: what the allocator's sizes and the holes between its runs cost."""
        return self.rounding + self.unusable

    @property
    def wanted(self) -> int:
        """All slots but those that nobody asks for: what percentages of the memory in demand are taken of."""
        return self.total - self.cached - self.free


def free_slots(*, num_free: int, num_cached: int, short: bool) -> dict[str, int]:
    """The fields of ``KVSlots`` for free slots, of which ``num_cached`` keep a prefix. ``short``: somebody waits for more."""
    if short:
        return {"unusable": num_free}
    return {"cached": num_cached, "free": num_free - num_cached}
