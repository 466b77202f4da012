"""Which processor kernels are tuned for is a matter of time only, but for weights in pairs of groups (test_pairs.py)."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from tests.ops.devices import BF16, ISAS, normal, same_bits
from tests.ops.test_recorded import KINDS, Tiny, results_of

TUNINGS = _native.tunings()
ROWS = (1, 2, 3, 8, 9, 16, 32, 33, 70)


@cache
def tuned(isa: str, tuning: str) -> CpuBackend:
    return CpuBackend(isa=isa, tuning=tuning, num_threads=2)


@pytest.mark.parametrize("kind", ["dense", "int8", "int4"])
@pytest.mark.parametrize("isa", ISAS)
def test_products_have_the_same_bits(isa: str, kind: str) -> None:
    matrix, inputs = normal(1, 320, 576).astype(BF16).astype(np.float32), normal(2, max(ROWS), 576).astype(BF16)

    found: dict[bool, list[np.ndarray]] = {}
    for tuning in TUNINGS:
        backend = tuned(isa, tuning)
        weight: Any = backend.weight(KINDS[kind](matrix))
        products = [backend.to_host(backend.ops.linear(inputs[:rows].copy(), weight)) for rows in ROWS]
        first = found.setdefault(kind == "int4" and weight.paired, products)
        assert all(same_bits(a, b) for a, b in zip(first, products, strict=True))


@pytest.mark.parametrize("isa", ISAS)
def test_steps_have_the_same_bits(isa: str) -> None:
    first, *others = [results_of(Tiny(tuned(isa, tuning), "dense").forward) for tuning in TUNINGS]
    for other in others:
        assert all(same_bits(a, b) for a, b in zip(first, other, strict=True))


def test_a_tuning_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="known are auto, common, zen5, zen4"):
        CpuBackend(tuning="zen9")
