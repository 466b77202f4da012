"""Packed weights as arrays and what to make of them, so that they can be kept in a file.

A weight is put together from where the arrays lie, without a copy. Its form is plain data, as JSON has it.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from octavo.backends.cpu.stacked import StackedWeight

if TYPE_CHECKING:
    from octavo import _native

Packed: TypeAlias = "_native.PackedWeight | _native.IntegerWeight"

_COMPACT = 6
"""Arrays beside a compact weight's memory."""


def take_apart(native: Any, weight: "Packed | StackedWeight") -> tuple[dict[str, Any], list[np.ndarray]]:
    """The form of a weight and its arrays, which lie in its memory."""
    if isinstance(weight, StackedWeight):
        forms, arrays = zip(*(_take_apart(native, part) for part in weight.parts), strict=True)
        return {"parts": list(forms)}, [array for own in arrays for array in own]
    return _take_apart(native, weight)


def _take_apart(native: Any, weight: Packed) -> tuple[dict[str, Any], list[np.ndarray]]:
    form = {"rows": weight.rows, "columns": weight.columns, "gated": weight.gated}
    if isinstance(weight, native.IntegerWeight):
        return {**form, "bits": weight.bits, "paired": weight.paired}, [native.memory_of(weight)]
    compact = native.compact_of(weight)
    return {**form, "compact": compact is not None}, [native.memory_of(weight), *(compact or ())]


def put_together(device: "_native.Device", form: dict[str, Any], arrays: list[np.ndarray]) -> "Packed | StackedWeight":
    """The weight. Raises ``ValueError`` for what cannot be one, ``KeyError`` and ``TypeError`` for what is no form."""
    left = iter(arrays)
    parts = tuple(_put_together(device, part, left) for part in form.get("parts", [form]))
    if next(left, None) is not None:
        raise ValueError("there are more arrays than a weight of this form has")
    return StackedWeight(parts) if "parts" in form else parts[0]


def _put_together(device: "_native.Device", form: dict[str, Any], arrays: Iterator[np.ndarray]) -> Packed:
    rows, columns, gated = form["rows"], form["columns"], form["gated"]
    count = 1 + _COMPACT if form.get("compact") else 1
    own = list(itertools.islice(arrays, count))
    if len(own) < count:
        raise ValueError("there are fewer arrays than a weight of this form has")
    if "bits" in form:
        return device.restore_integer(form["bits"], rows, columns, own[0], gated=gated, paired=form["paired"])
    compact: Any = tuple(own[1:]) if form["compact"] else None
    return device.restore(rows, columns, own[0], compact, gated=gated)
