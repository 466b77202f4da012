"""The native CPU backend: thin calls into ``octavo._native``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]


def __getattr__(name: str) -> Any:
    if name != "CpuBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from octavo.backends.cpu.backend import CpuBackend

    return CpuBackend
