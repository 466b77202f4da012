"""The block formats of GGUF tensors and how to turn their bytes into numbers, in vectorised numpy: the reference.

Knows bytes and arrays; not files, names or devices. The invariant: float32 output is exact in the sense of ggml's reference
(each value is computed in float32 with one rounding a step: ``d * q``, then ``+ m``), bfloat16 output is that value rounded
to nearest even. A faster ``Dequantize`` must give the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np


class GgmlType(IntEnum):
    """Tensor types that Octavo reads, with ggml's numbers (https://github.com/ggml-org/ggml, enum ggml_type)."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


OTHER_TYPES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
"""Names of types that exist and are not read, for messages."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """``elements`` consecutive values of a row are stored in ``bytes`` bytes. Whole numbers have a scale for each ``inputs`` of
    them, else 0, and if ``minimums`` as many of these. ``offset``: what is added to values that begin below 0 for a layout
    whose values do not."""

    elements: int
    bytes: int
    inputs: int = 0
    minimums: bool = False
    offset: int = 0


FORMATS = {
    GgmlType.F32: BlockFormat(1, 4),
    GgmlType.F16: BlockFormat(1, 2),
    GgmlType.BF16: BlockFormat(1, 2),
    GgmlType.Q4_0: BlockFormat(32, 18, 32, offset=8),
    GgmlType.Q4_1: BlockFormat(32, 20, 32, minimums=True),
    GgmlType.Q5_0: BlockFormat(32, 22, 32, offset=16),
    GgmlType.Q5_1: BlockFormat(32, 24, 32, minimums=True),
    GgmlType.Q8_0: BlockFormat(32, 34, 32),
    GgmlType.Q2_K: BlockFormat(256, 84, 16, minimums=True),
    GgmlType.Q3_K: BlockFormat(256, 110, 16),
    GgmlType.Q4_K: BlockFormat(256, 144, 32, minimums=True),
    GgmlType.Q5_K: BlockFormat(256, 176, 32, minimums=True),
    GgmlType.Q6_K: BlockFormat(256, 210, 16),
}

Dequantize = Callable[[GgmlType, np.ndarray, np.ndarray], None]
"""(type, contiguous uint8[bytes], contiguous out float32[n] or bfloat16[n]) -> fills out."""

Split = Callable[[GgmlType, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], bool]
"""(type of whole numbers, contiguous uint8[bytes], values, scales, minimums) -> fills the last three, contiguous and
one-dimensional, as the layouts have them, and says whether all scales and minimums are finite. values: uint8[n], bytes that
are signed if there are no minimums; or uint8[n / 2], two in a byte as ``Int4Group`` has them. scales: float16[n / inputs];
minimums: as many if the format has any or an offset, else None."""


@dataclass(frozen=True, slots=True)
class Unpack:
    """What becomes of blocks: plain numbers, or whole ones and their scales."""

    dequantize: Dequantize
    split: Split


_PLAIN: dict[GgmlType, Any] = {
    GgmlType.F32: np.dtype("<f4"),
    GgmlType.F16: np.dtype("<f2"),
    GgmlType.BF16: np.dtype(ml_dtypes.bfloat16),
}

_CHUNK = 1 << 18
"""Values converted at once: the intermediate arrays stay in the second-level cache."""


def dequantize(kind: GgmlType, data: np.ndarray, out: np.ndarray) -> None:
    """Convert ``data``, uint8[bytes], into ``out``, float32[n] or bfloat16[n]; both contiguous and one-dimensional.

    Raises ``ValueError`` if the sizes do not agree.
    """
    block = FORMATS[kind]
    if out.size % block.elements or data.size != out.size // block.elements * block.bytes:
        raise ValueError(f"{data.size} bytes of {kind.name} are not {out.size} values")
    with np.errstate(invalid="ignore", over="ignore"):
        if kind in _PLAIN:
            out[...] = data.view(_PLAIN[kind])
            return
        blocks, values = data.reshape(-1, block.bytes), out.reshape(-1, block.elements)
        step = _CHUNK // block.elements
        for start in range(0, len(blocks), step):
            part = blocks[start : start + step]
            values[start : start + step] = _affine(_SPLITS[kind](part)).reshape(len(part), block.elements)


def split(kind: GgmlType, data: np.ndarray, values: np.ndarray, scales: np.ndarray, minimums: np.ndarray | None) -> bool:
    """A ``Split``. Raises ``ValueError`` if the sizes do not agree."""
    block = FORMATS[kind]
    blocks = data.reshape(-1, block.bytes)
    count = len(blocks) * block.elements
    lowered = block.minimums or block.offset > 0
    if not block.inputs or scales.size * block.inputs != count or lowered != (minimums is not None):
        raise ValueError("scales and minimums must fit the type")
    packed = values.size * 2 == count
    step = _CHUNK // block.elements
    groups = block.elements // block.inputs
    for start in range(0, len(blocks), step):
        some = slice(start * groups, (start + step) * groups)
        with np.errstate(invalid="ignore", over="ignore"):
            quants = _SPLITS[kind](blocks[start : start + step])
            scales[some] = quants.scales.reshape(-1)
            if minimums is not None:
                lowest = quants.scales * -block.offset if quants.minimums is None else quants.minimums
                minimums[some] = lowest.reshape(-1)
        whole = quants.values.view(np.uint8).reshape(-1) + np.uint8(block.offset)
        if packed:
            pairs = whole.reshape(-1, 2, 16)
            whole = (pairs[:, 0] & np.uint8(15) | pairs[:, 1] << np.uint8(4)).reshape(-1)
        first = start * block.elements // (2 if packed else 1)
        values[first : first + whole.size] = whole
    return all(bool(np.isfinite(part).all()) for part in (scales, minimums) if part is not None)


IN_NUMPY = Unpack(dequantize, split)


@dataclass(frozen=True, slots=True)
class _Quants:
    """Blocks as whole numbers: ``values`` int8 or uint8[blocks, groups, inputs], ``scales`` and ``minimums`` float32[blocks,
    groups]."""

    values: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None = None


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """The half-precision number at byte ``start`` of each block, float32[blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """uint8[..., k] -> uint8[..., 2, k]: the low half of each byte, then the high half."""
    out = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])
    return out


def _pairs(packed: np.ndarray) -> np.ndarray:
    """uint8[..., k] -> uint8[..., 4, k]: two bits of each byte, lowest first."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return packed[..., None, :] >> shifts & 3


def _fifth_bits(blocks: np.ndarray, start: int) -> np.ndarray:
    """The 32 bits at ``start`` as 0 or 16, uint8[blocks, 2, 16]."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little").reshape(-1, 2, 16) << 4


def _affine(quants: _Quants) -> np.ndarray:
    """scale * value + minimum in float32, one rounding each."""
    values = quants.values.astype(np.float32)
    values *= quants.scales[..., None]
    if quants.minimums is not None:
        values += quants.minimums[..., None]
    return values


def _whole(quants: np.ndarray) -> np.ndarray:
    """[blocks, 2, 16] -> [blocks, 1, 32]"""
    return quants.reshape(-1, 1, 32)


def _q4_0(blocks: np.ndarray) -> _Quants:
    values = _whole(_nibbles(blocks[:, 2:])).view(np.int8)
    values -= 8
    return _Quants(values, _half(blocks, 0))


def _q4_1(blocks: np.ndarray) -> _Quants:
    return _Quants(_whole(_nibbles(blocks[:, 4:])), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: np.ndarray) -> _Quants:
    values = _whole(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)).view(np.int8)
    values -= 16
    return _Quants(values, _half(blocks, 0))


def _q5_1(blocks: np.ndarray) -> _Quants:
    return _Quants(_whole(_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: np.ndarray) -> _Quants:
    return _Quants(_whole(blocks[:, 2:].view(np.int8)), _half(blocks, 0))


def _q2_k(blocks: np.ndarray) -> _Quants:
    """16 groups of 16; scales[16] holds a 4-bit scale and a 4-bit minimum, then 64 bytes of quants, d, dmin."""
    packed = blocks[:, :16]
    scales = _half(blocks, 80) * (packed & 15).astype(np.float32)
    minima = _half(blocks, 82) * (packed >> 4).astype(np.float32)
    return _Quants(_pairs(blocks[:, 16:80].reshape(-1, 2, 32)).reshape(-1, 16, 16), scales, -minima)


def _q3_k(blocks: np.ndarray) -> _Quants:
    """16 groups of 16; 32 bytes of high bits, 64 of low bits, 12 of 6-bit scales, d. A clear high bit subtracts 4."""
    quants = _pairs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    high = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    signed = (quants | high << 2).view(np.int8)
    signed -= 4
    low = _nibbles(blocks[:, 96:104]).reshape(-1, 16)
    top = _pairs(blocks[:, 104:108]).reshape(-1, 16)
    scales = (low | top << 4).view(np.int8) - np.int8(32)
    return _Quants(signed.reshape(-1, 16, 16), _half(blocks, 108) * scales.astype(np.float32))


def _k_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K from their 12 bytes, uint8[blocks, 8] each."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def _k_quants(blocks: np.ndarray, values: np.ndarray) -> _Quants:
    """values uint8[blocks, 8, 32] with the scales of Q4_K and Q5_K: d, dmin, then 12 bytes of packed scales."""
    scales, minima = _k_scales(blocks[:, 4:16])
    return _Quants(values, _half(blocks, 0) * scales.astype(np.float32), -(_half(blocks, 2) * minima.astype(np.float32)))


def _q4_k(blocks: np.ndarray) -> _Quants:
    return _k_quants(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: np.ndarray) -> _Quants:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _k_quants(blocks, low | high << 4)


def _q6_k(blocks: np.ndarray) -> _Quants:
    """16 groups of 16; 128 bytes of low nibbles, 64 of high pairs, 16 signed scales, d."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = _pairs(blocks[:, 128:192].reshape(-1, 2, 32))
    quants = (low | high << 4).view(np.int8)
    quants -= 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _Quants(quants.reshape(-1, 16, 16), scales)


_SPLITS: dict[GgmlType, Callable[[np.ndarray], _Quants]] = {
    GgmlType.Q4_0: _q4_0,
    GgmlType.Q4_1: _q4_1,
    GgmlType.Q5_0: _q5_0,
    GgmlType.Q5_1: _q5_1,
    GgmlType.Q8_0: _q8_0,
    GgmlType.Q2_K: _q2_k,
    GgmlType.Q3_K: _q3_k,
    GgmlType.Q4_K: _q4_k,
    GgmlType.Q5_K: _q5_k,
    GgmlType.Q6_K: _q6_k,
}
