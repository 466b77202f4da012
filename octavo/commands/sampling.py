"""The sampling flags that ``chat`` and ``generate`` share. A flag not given leaves the model's own recommendation."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from octavo.sampling_params import SamplingParams


class SamplingFlags(msgspec.Struct, frozen=True, kw_only=True):
    """``description`` is the help text of the flag of the same name."""

    temperature: Annotated[float | None, Meta(description="randomness of the draws; 0: greedy")] = None
    top_p: Annotated[
        float | None, Meta(description="draw from the likeliest tokens that have this much probability together")
    ] = None
    top_k: Annotated[int | None, Meta(description="draw from this many of the likeliest tokens")] = None
    min_p: Annotated[float | None, Meta(description="leave out tokens less likely than this fraction of the likeliest")] = None
    repetition_penalty: Annotated[float | None, Meta(description="above 1: discourage tokens that have come")] = None
    max_tokens: Annotated[int | None, Meta(description="longest output in tokens; default: as the context allows")] = None
    stop: Annotated[tuple[str, ...], Meta(description="end the output before this text; may be given several times")] = ()

    def given(self) -> dict[str, Any]:
        """What was asked for, by the names of the request fields."""
        fields = {name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, ())}
        return {**fields, "stop": list(self.stop)} if self.stop else fields

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """The model's defaults with these on top. Raises ``ParameterError``."""
        return msgspec.structs.replace(defaults, **{"max_tokens": None, **self.given()})
