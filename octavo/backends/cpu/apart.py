"""Packed weights as arrays and what to make of them, so that they can be kept in a file.

A weight is put together from where the arrays lie, without a copy. Its form is plain data, as JSON has it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.cpu.stacked import StackedWeight

if TYPE_CHECKING:
    from octavo import _native

_COMPACT = 6
"""Arrays beside a compact weight's memory."""


def take_apart(
    native: Any, weight: "_native.PackedWeight | _native.IntegerWeight | StackedWeight"
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The form of a weight and its arrays, which lie in its memory."""
    if isinstance(weight, StackedWeight):
        forms, arrays = zip(*(take_apart(native, part) for part in weight.parts), strict=True)
        return {"parts": list(forms)}, [array for own in arrays for array in own]
    form = {"rows": weight.rows, "columns": weight.columns, "gated": weight.gated}
    if isinstance(weight, native.IntegerWeight):
        return {**form, "bits": weight.bits, "paired": weight.paired}, [native.memory_of(weight)]
    compact = native.compact_of(weight)
    return {**form, "compact": compact is not None}, [native.memory_of(weight), *(compact or ())]


def put_together(
    device: "_native.Device", form: dict[str, Any], arrays: list[np.ndarray]
) -> "_native.PackedWeight | _native.IntegerWeight | StackedWeight":
    """The weight. Raises ``ValueError`` for what cannot be one, ``KeyError`` and ``TypeError`` for what is no form."""
    left = iter(arrays)
    weight = _put_together(device, form, left)
    if next(left, None) is not None:
        raise ValueError("there are more arrays than a weight of this form has")
    return weight


def _put_together(
    device: "_native.Device", form: dict[str, Any], arrays: Iterator[np.ndarray]
) -> "_native.PackedWeight | _native.IntegerWeight | StackedWeight":
    if "parts" in form:
        return StackedWeight(tuple(_one(device, part, arrays) for part in form["parts"]))
    return _one(device, form, arrays)


def _one(
    device: "_native.Device", form: dict[str, Any], arrays: Iterator[np.ndarray]
) -> "_native.PackedWeight | _native.IntegerWeight":
    def following(count: int) -> list[np.ndarray]:
        found = [array for _, array in zip(range(count), arrays, strict=False)]
        if len(found) < count:
            raise ValueError("there are fewer arrays than a weight of this form has")
        return found

    rows, columns, gated = form["rows"], form["columns"], form["gated"]
    (memory,) = following(1)
    if "bits" in form:
        return device.restore_integer(form["bits"], rows, columns, memory, gated=gated, paired=form["paired"])
    compact: Any = tuple(following(_COMPACT)) if form["compact"] else None
    return device.restore(rows, columns, memory, compact, gated=gated)
