"""What a scheduler counts."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the scheduler was made. Prefix-cache queries and hits are in tokens; ``drafts`` are verifications, each of
    one draft token or several."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
