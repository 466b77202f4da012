"""``Request``: what crosses from the API to the engine. Token ids only; text never reaches the engine."""

import msgspec

from octavo.sampling_params import SamplingParams


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and what to do with it.

    ``seed`` is always set: the client's, or one that the API drew. ``arrival_time`` is on the monotonic clock, which all
    processes of a host share. ``cache_scope`` separates tenants: prefix-cache blocks are only shared within one scope.
    ``tenant`` is whose request it is, for policies that share the engine among those who ask; empty where nobody is told apart.
    ``bad_words_token_ids`` holds the token sequences of ``params.bad_words``, because only the API has a tokenizer.
    """

    id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    arrival_time: float
    priority: int = 0
    cache_scope: str = ""
    tenant: str = ""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
