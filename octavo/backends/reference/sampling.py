"""Drawing one token from one row of logits, in float64 and with a full sort: what ``Ops.sample`` means.

Order among equals is always by lowest index. From a row with NaN or plus infinity nothing is drawn.
"""

import numpy as np

GREEDY_TEMPERATURE = 1e-5
_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) with 53 random bits that belongs to (seed, position), and to nothing else."""
    key = _mix((seed + 0x9E3779B97F4A7C15) & _MASK)
    word = _mix(key ^ ((position * 0xD1B54A32D192ED03) & _MASK))
    return (_mix((word + 0x9E3779B97F4A7C15) & _MASK) >> 11) * 2.0**-53


def _clean(logits: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(logits), -np.inf, logits.astype(np.float64))


def argmax(logits: np.ndarray) -> int:
    return int(np.argmax(logits)) if np.isfinite(logits.max()) else -1


def masked(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """[R, V] with minus infinity where a bit of int32[R, ceil(V / 32)] is 0; a row that cannot be drawn from stays so."""
    words = allowed.astype("<u4")[:, :, None] >> np.arange(32, dtype=np.uint32) & 1
    bits = words.reshape(len(allowed), -1)[:, : logits.shape[1]]
    sound = np.isfinite(logits.max(axis=1, keepdims=True))
    result: np.ndarray = np.where(sound & (bits == 0), np.float32(-np.inf), logits)
    return result


def biased(logits: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> np.ndarray:
    """float32[V] and what some of its tokens gain, one after the other."""
    result = logits.copy()
    for token, value in zip(tokens, values, strict=True):
        if 0 <= token < len(logits):
            result[token] += value
    return result


def penalized(logits: np.ndarray, tokens: np.ndarray, output: np.ndarray, penalties: tuple[float, float, float]) -> np.ndarray:
    """float32[V] after ``tokens``, the last of which are ``output``; penalties for repetition, frequency and presence."""
    repetition, frequency, presence = np.array(penalties, np.float32)
    result = logits.copy()
    seen = np.unique(tokens[(tokens >= 0) & (tokens < len(logits))])
    result[seen] = np.where(logits[seen] > 0, logits[seen] / repetition, logits[seen] * repetition)
    drawn, counts = np.unique(output[(output >= 0) & (output < len(logits))], return_counts=True)
    result[drawn] -= frequency * counts.astype(np.float32)
    result[drawn] -= presence
    return result


def descending(logits: np.ndarray) -> np.ndarray:
    """Token ids from likeliest to least likely; lowest id first among equals."""
    order: np.ndarray = np.argsort(-_clean(logits), kind="stable")
    return order


def log_softmax(logits: np.ndarray) -> np.ndarray:
    clean = _clean(logits)
    shifted = clean - clean.max()
    normed: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return normed


def survivors(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """float64[V]: each token's share, not normalized; 0 for the tokens that top-k, top-p or min-p removed."""
    clean = _clean(logits)
    shares = np.exp((clean - clean.max()) / float(temperature))
    kept = descending(logits)
    if top_k > 0:
        kept = kept[:top_k]
    if top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(shares[kept])])
        kept = kept[: max(1, int(np.sum(before[:-1] < float(top_p) * before[-1])))]
    kept = kept[shares[kept] >= float(min_p)]
    result: np.ndarray = np.zeros_like(shares)
    result[kept] = shares[kept]
    return result


def draw(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int) -> int:
    """Inverse of the cumulative distribution over the survivors in the order of their ids."""
    best = argmax(logits)
    if temperature < GREEDY_TEMPERATURE or best < 0:
        return best
    cumulative = np.cumsum(survivors(logits, temperature, top_k, top_p, min_p))
    return int(np.searchsorted(cumulative, uniform(int(seed), int(position)) * cumulative[-1], side="right"))
