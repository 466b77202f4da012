"""Several packed weights that are one to a model: parts of a fused matrix that a file stores in different ways."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from octavo import _native


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """Packed weights of the same inputs, one below the other."""

    parts: "tuple[_native.PackedWeight | _native.IntegerWeight, ...]"
    gated: ClassVar[bool] = False

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        return self.parts[0].columns

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)
