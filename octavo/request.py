"""``Request``: what crosses from the API to the engine. Token ids only; text never reaches the engine."""

import msgspec

from octavo.sampling_params import SamplingParams


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """An output that reasons before it answers: from ``opening`` to ``closing``, texts that are not empty.

    ``tagged``: it may begin with ``opening``, which the prompt has not written. ``implied``: it reasons whether or not it
    begins so; else an output that begins otherwise is all answer.
    """

    opening: str
    closing: str
    tagged: bool
    implied: bool


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and what to do with it.

    ``seed`` is always set: the client's, or one that the API drew. ``arrival_time`` is on the monotonic clock, which all
    processes of a host share. ``cache_scope`` separates tenants: prefix-cache blocks are only shared within one scope.
    ``tenant`` is whose request it is, for policies that share the engine among those who ask; empty where nobody is told apart.
    ``bad_words_token_ids`` holds the token sequences of ``params.bad_words``, because only the API has a tokenizer. With
    ``thinking`` what the parameters say of the form of the text begins to hold when the reasoning is over, and
    ``params.thinking_token_budget`` says how long that may be.
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
    thinking: Thinking | None = None
