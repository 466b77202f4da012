"""Octavo: a serving engine for large language models, with its KV cache in fixed-size blocks.

The public API, imported lazily so that ``import octavo`` costs milliseconds.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CompletionOutput",
    "RepetitionDetectionParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.outputs import BeamSearchOutput, CompletionOutput, RequestOutput
    from octavo.sampling_params import BeamSearchParams, RepetitionDetectionParams, SamplingParams, StructuredOutputsParams

_HOMES = {
    "LLM": "octavo.llm",
    "BeamSearchOutput": "octavo.outputs",
    "BeamSearchParams": "octavo.sampling_params",
    "CompletionOutput": "octavo.outputs",
    "RepetitionDetectionParams": "octavo.sampling_params",
    "RequestOutput": "octavo.outputs",
    "SamplingParams": "octavo.sampling_params",
    "StructuredOutputsParams": "octavo.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
