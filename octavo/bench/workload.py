"""What is computed in measurements: prompts of token ids that share nothing by accident, so no tokenizer is in the way."""

import time

from octavo.config import ConfigError
from octavo.request import Request
from octavo.sampling_params import SamplingParams


def prompt_of_ids(index: int, length: int, vocab_size: int) -> list[int]:
    """Prompt number ``index``: ids that differ from every other prompt's from the first token on."""
    low = min(1000, vocab_size // 4)
    return [low + (37 * index + 11 * j) % (vocab_size - low) for j in range(length)]


def check_lengths(input_len: int, output_len: int, *, max_model_len: int) -> None:
    """Before anything is measured. Raises ``ConfigError`` where outputs would be cut at the end of the context."""
    if input_len + output_len > max_model_len:
        raise ConfigError(
            f"--input-len {input_len} and --output-len {output_len} are more than the {max_model_len} tokens of the context: "
            "lower one of them"
        )


def request(index: int, *, input_len: int, output_len: int, vocab_size: int, n: int = 1) -> Request:
    """Request number ``index``: greedy unless it has several branches, and never ended by an end-of-sequence token."""
    return Request(
        id=f"bench-{index}",
        prompt_token_ids=prompt_of_ids(index, input_len, vocab_size),
        params=SamplingParams(n=n, temperature=0.0 if n == 1 else 1.0, max_tokens=output_len, ignore_eos=True),
        seed=index,
        arrival_time=time.monotonic(),
    )
