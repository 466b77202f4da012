"""``min_tokens``: nothing that would end the output can be drawn before it has that many tokens."""

from octavo.sampling.row import SampleRow


def ends_too_early(row: SampleRow, eos_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that would: ``eos_token_ids``, the model's own ends, and the request's ``stop_token_ids``."""
    if row.num_output_tokens >= row.params.min_tokens:
        return ()
    return *eos_token_ids, *(row.params.stop_token_ids or ())
