"""What can never be served, said when it arrives: requests and prefixes that would not fit an empty device.

Knows the sizes of things, no sequence and no queue. What fits an empty device but not the device of this moment waits instead.
"""

from collections.abc import Sequence

from octavo.memory.interface import KVManager
from octavo.request import Request
from octavo.sampling_params import ParameterError


class Limits:
    """Of sequences in tokens, of rows, of KV blocks."""

    def __init__(self, kv: KVManager, *, max_model_len: int, max_num_seqs: int) -> None:
        self._kv = kv
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs

    def check(self, request: Request, num_sequences: int) -> int:
        """The most tokens, prompt included, that each of the request's ``num_sequences`` may have.

        Raises:
            ParameterError: the request can never be served.
        """
        prompt_len, width, limit = len(request.prompt_token_ids), request.params.width_name, self._max_model_len
        if request.params.max_tokens is not None:
            limit = min(limit, prompt_len + request.params.max_tokens)
        if prompt_len == 0:
            raise ParameterError("The prompt is empty.", param="prompt", value="")
        if prompt_len >= self._max_model_len:
            raise ParameterError(
                f"This model's maximum context length is {self._max_model_len} tokens. However, your prompt contains "
                f"{prompt_len} input tokens, which leaves no room for output. Please reduce the length of the prompt.",
                param="input_tokens",
                value=prompt_len,
            )
        if num_sequences > self._max_num_seqs:
            raise ParameterError(
                f"{width}={num_sequences} sequences cannot run at once: max_num_seqs is {self._max_num_seqs}.",
                param=width,
                value=num_sequences,
            )
        self._check_blocks(request, limit, num_sequences)
        return limit

    def _check_blocks(self, request: Request, limit: int, num_sequences: int) -> None:
        kv, width = self._kv, request.params.width_name
        needed = kv.blocks_needed(prompt_len=len(request.prompt_token_ids), max_len=limit, num_sequences=num_sequences)
        shares = request.params.prompt_logprobs is None
        available = kv.capacity_for(request.prompt_token_ids if shares else (), request.cache_scope)
        if needed > available:
            raise ParameterError(
                f"The request needs up to {needed} KV blocks of {kv.block_size} tokens ({num_sequences} x {limit} tokens)"
                f", but there are only {available}. Please reduce max_tokens, {width} or the prompt.",
                param="max_tokens" if num_sequences == 1 else width,
                value=needed,
            )

    def check_pin(self, token_ids: Sequence[int], cache_scope: str) -> None:
        """Raises ``ParameterError`` for a prefix that has nothing to pin, or would leave others no room."""
        kv = self._kv
        if not kv.enable_prefix_caching:
            raise ParameterError("Prefixes can only be pinned with enable_prefix_caching.", param="enable_prefix_caching")
        if len(token_ids) < kv.block_size:
            raise ParameterError(
                f"A prefix of {len(token_ids)} tokens does not fill a KV block of {kv.block_size}: there is nothing to pin.",
                param="prefix",
                value=len(token_ids),
            )
        pinned, needed = kv.num_pinned_with(token_ids, cache_scope), kv.num_blocks_for(self._max_model_len)
        if kv.device.num_blocks - pinned < needed:
            raise ParameterError(
                f"With this prefix {pinned} of {kv.device.num_blocks} KV blocks would be pinned, and the rest would not hold a "
                f"sequence of {self._max_model_len} tokens ({needed} blocks): use a larger KV cache, a smaller max_model_len "
                "or a shorter prefix.",
                param="prefix",
                value=pinned,
            )
