"""Rotary positions (Su et al. 2021) as one table of cosines and sines, with the scalings of Llama checkpoints.

Owns the frequencies; computed in float64, stored in float32. The table is fixed when the model is loaded: a token's rotation
never depends on the batch or on how long its sequence has become, else cached keys would be wrong.
"""

import math

import numpy as np

from octavo.backends.base import Array, AttentionShape
from octavo.config import ModelConfig, RopeScaling
from octavo.layers.loader import Loader

_ROWS = 4096
"""Rows of a table that are made at a time: their float64 is small beside it."""


class Rotary:
    """The table on the device, shared by all layers.

    ``factors_name`` is a tensor float32[head_dim / 2] by which the frequencies are divided, where the source has it (GGUF
    files of Llama 3 carry their scaling so).
    """

    def __init__(self, loader: Loader, *, config: ModelConfig, max_model_len: int, factors_name: str) -> None:
        self._ops = loader.backend.ops
        loader.asked.add(factors_name)
        factors = loader.source.vector(factors_name, size=config.head_dim // 2) if loader.source.has(factors_name) else None
        self._table = loader.backend.tensor(rotary_table(config, max_model_len, factors=factors))

    def __call__(self, qkv: Array, positions: Array, shape: AttentionShape) -> None:
        """Rotate q and k in float32[T, *], in place."""
        self._ops.rotary(qkv, positions, self._table, shape)


def rotary_table(config: ModelConfig, max_model_len: int, *, factors: np.ndarray | None = None) -> np.ndarray:
    """float32[max_model_len, head_dim]: the first half cosines, the second half sines, times the attention factor."""
    frequencies, attention_factor = rotary_frequencies(config, max_model_len)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    table = np.empty((max_model_len, config.head_dim), np.float32)
    half = config.head_dim // 2
    for first in range(0, max_model_len, _ROWS):
        rows = table[first : first + _ROWS]
        angles = np.outer(np.arange(first, first + len(rows), dtype=np.float64), frequencies)
        np.multiply(np.cos(angles), attention_factor, out=rows[:, :half], casting="same_kind")
        np.multiply(np.sin(angles), attention_factor, out=rows[:, half:], casting="same_kind")
    return table


def rotary_frequencies(config: ModelConfig, max_model_len: int) -> tuple[np.ndarray, float]:
    """(radians per position float64[head_dim / 2], the factor on cosines and sines)."""
    scaling = config.rope_scaling
    plain = _frequencies(config.rope_theta, config.head_dim)
    if scaling is None or scaling.rope_type == "default":
        return plain, 1.0
    if scaling.rope_type == "linear":
        return plain / scaling.factor, 1.0
    if scaling.rope_type == "dynamic":
        return _dynamic(config, scaling, max_model_len), 1.0
    if scaling.rope_type == "llama3":
        return _llama3(plain, scaling, config.max_position_embeddings), 1.0
    return _yarn(plain, scaling, config), _yarn_attention_factor(scaling)


def _frequencies(theta: float, head_dim: int) -> np.ndarray:
    return 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def _dynamic(config: ModelConfig, scaling: RopeScaling, max_model_len: int) -> np.ndarray:
    """NTK-aware scaling for sequences of ``max_model_len`` tokens.

    The original raises the base anew as a sequence grows, which would rotate keys that are already cached. This table is
    that of the longest sequence served: equal to the original, at every length, while ``max_model_len`` is at most the
    model's context; beyond, equal to it for a sequence of just ``max_model_len`` tokens.
    """
    dim, context = config.head_dim, config.max_position_embeddings
    length = max(max_model_len, context)
    stretch = scaling.factor * length / context - (scaling.factor - 1)
    return _frequencies(config.rope_theta * stretch ** (dim / (dim - 2)) if dim > 2 else config.rope_theta, dim)


def _llama3(plain: np.ndarray, scaling: RopeScaling, context: int) -> np.ndarray:
    """Long wavelengths are divided by the factor, short ones kept, those between blended (Llama 3.1)."""
    original = scaling.original_max_position_embeddings or context
    turns = original * plain / (2 * math.pi)
    blend = np.clip((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0, 1)
    scaled: np.ndarray = plain * (blend + (1 - blend) / scaling.factor)
    return scaled


def _yarn(plain: np.ndarray, scaling: RopeScaling, config: ModelConfig) -> np.ndarray:
    """Interpolate slow dimensions, keep fast ones, a linear ramp between (Peng et al. 2023)."""
    dim, theta = config.head_dim, config.rope_theta
    original = scaling.original_max_position_embeddings or config.max_position_embeddings

    def dimension_of(turns: float) -> float:
        """The dimension that makes so many turns over the original context."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    interpolated = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low), 0, 1)
    scaled: np.ndarray = plain * (interpolated / scaling.factor + 1 - interpolated)
    return scaled


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    """As published, 0.1 ln(factor) + 1; the mscale pair is DeepSeek's extension of it."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def temper(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return temper(scaling.mscale) / temper(scaling.mscale_all_dim)
    return temper(1.0)
