"""Every op of ``backends.base.Ops`` in the plainest numpy. Knows arrays only; keeps no state but the activation dtype."""

from typing import Any

import numpy as np

from octavo.backends.base import AttentionShape, Batch, LogitBias, Penalties
from octavo.backends.reference import integer, sampling


def _check_range(name: str, values: np.ndarray, low: int, high: int) -> None:
    if values.size and (values.min() < low or values.max() >= high):
        raise ValueError(f"{name} out of range: values must be in [{low}, {high})")


class ReferenceOps:
    """See ``backends.base.Ops`` for what each op means; its docstrings are the specification, this is the same in code."""

    def __init__(self, *, act: Any, activation_bits: int = 8) -> None:
        self._act = act
        self._activation_bits = activation_bits

    def embedding(self, ids: np.ndarray, table: np.ndarray | integer.IntegerWeight) -> np.ndarray:
        _check_range("token id", ids, 0, table.shape[0])
        if isinstance(table, integer.IntegerWeight):
            return table.rows(ids)
        return np.array(table[ids], np.float32)

    def linear(
        self,
        x: np.ndarray,
        weight: np.ndarray | integer.IntegerWeight | integer.StackedWeight,
        *,
        bias: np.ndarray | None = None,
        residual: np.ndarray | None = None,
    ) -> np.ndarray:
        if isinstance(weight, integer.StackedWeight):
            out = np.concatenate(
                [integer.linear(x.astype(np.float32), part, self._activation_bits) for part in weight.parts], axis=1
            )
        elif isinstance(weight, integer.IntegerWeight):
            out = integer.linear(x.astype(np.float32), weight, self._activation_bits)
        else:
            out = np.empty((x.shape[0], weight.shape[0]), np.float32)
            for i, row in enumerate(x.astype(np.float32)):
                out[i] = weight @ row
        if bias is not None:
            out += bias
        if residual is not None:
            out += residual
        return out

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, *, eps: float) -> np.ndarray:
        return self._rms_norm(x, weight, eps).astype(self._act)

    def head_norm(self, qkv: np.ndarray, weight: np.ndarray, shape: AttentionShape, *, part: str, eps: float) -> None:
        q, k, _ = _split(qkv, shape)
        heads = {"q": q, "k": k}[part]
        heads[:] = self._rms_norm(heads, weight, eps)

    def rotary(self, qkv: np.ndarray, positions: np.ndarray, cos_sin: np.ndarray, shape: AttentionShape) -> None:
        _check_range("position", positions, 0, cos_sin.shape[0])
        half = shape.head_dim // 2
        rows = cos_sin[positions][:, None, :]
        cos, sin = rows[..., :half], rows[..., half:]
        for heads in _split(qkv, shape)[:2]:
            first, second = heads[..., :half].copy(), heads[..., half:].copy()
            heads[..., :half] = first * cos - second * sin
            heads[..., half:] = second * cos + first * sin

    def attention(
        self,
        cache: Any,
        layer: int,
        qkv: np.ndarray,
        batch: Batch,
        shape: AttentionShape,
        *,
        scale: float,
        window: int | None,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        q, k, v = _split(qkv, shape)
        self._store(cache, layer, k, v, batch.slot_mapping)
        out = np.zeros((qkv.shape[0], shape.num_heads, shape.head_dim), np.float32)
        for i, seq_len in enumerate(batch.seq_lens):
            first, last = batch.query_start[i], batch.query_start[i + 1]
            keys, values = self._gather(cache, layer, batch.block_tables[i], int(seq_len))
            for t in range(first, last):
                end = int(seq_len) - (last - 1 - t)
                begin = 0 if window is None else max(0, end - window)
                out[t] = _attend(q[t], keys[:, begin:end], values[:, begin:end], scale)
        attended: np.ndarray = out.reshape(qkv.shape[0], -1).astype(self._act)
        return attended if rows is None else self.gather_rows(attended, rows)

    def silu_and_mul(self, gate_up: np.ndarray) -> np.ndarray:
        gate, up = np.split(gate_up, 2, axis=1)
        with np.errstate(over="ignore"):
            gated: np.ndarray = gate / (1 + np.exp(-gate)) * up
        return gated.astype(self._act)

    def gated_linear(
        self, x: np.ndarray, weight: np.ndarray | integer.IntegerWeight, *, bias: np.ndarray | None = None
    ) -> np.ndarray:
        return self.silu_and_mul(self.linear(x, weight, bias=bias))

    def gather_rows(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        _check_range("row", rows, 0, x.shape[0])
        return np.array(x[rows])

    def copy_blocks(self, cache: Any, copies: Any) -> None:
        moves = [
            (copies.swap_out, cache.device, cache.host),
            (copies.swap_in, cache.host, cache.device),
            (copies.copy, cache.device, cache.device),
        ]
        for pairs, source, target in moves:
            for src, dst in pairs:
                _check_range("source block", np.array(src), 0, source.shape[2])
                _check_range("target block", np.array(dst), 0, target.shape[2])
                target[:, :, dst] = source[:, :, src]

    def linear_argmax(self, x: np.ndarray, weight: Any, allowed: np.ndarray | None = None) -> np.ndarray:
        logits = self.linear(x, weight)
        return self.argmax(logits if allowed is None else sampling.masked(logits, allowed))

    def argmax(self, logits: np.ndarray) -> np.ndarray:
        return np.array([sampling.argmax(row) for row in logits], np.int32)

    def adjust(
        self,
        logits: np.ndarray,
        *,
        allowed: np.ndarray | None = None,
        bias: LogitBias | None = None,
        penalties: Penalties | None = None,
    ) -> np.ndarray:
        result = logits.copy() if allowed is None else sampling.masked(logits, allowed)
        for i in range(len(result)):
            if (b := bias) is not None:
                some = slice(b.starts[i], b.starts[i + 1])
                result[i] = sampling.biased(result[i], b.tokens[some], b.values[some])
            if (p := penalties) is not None:
                tokens, output = p.tokens[p.starts[i] : p.starts[i + 1]], p.tokens[p.outputs[i] : p.starts[i + 1]]
                own = p.repetition[i], p.frequency[i], p.presence[i]
                result[i] = sampling.penalized(result[i], tokens, output, own)
        return result

    def sample(
        self,
        logits: np.ndarray,
        *,
        temperature: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        seeds: np.ndarray,
        positions: np.ndarray,
        allowed: np.ndarray | None = None,
        bias: LogitBias | None = None,
        penalties: Penalties | None = None,
    ) -> np.ndarray:
        adjusted = self.adjust(logits, allowed=allowed, bias=bias, penalties=penalties)
        columns = zip(adjusted, temperature, top_k, top_p, min_p, seeds, positions, strict=True)
        return np.array([sampling.draw(*column) for column in columns], np.int32)

    def top_logprobs(
        self, logits: np.ndarray, chosen: np.ndarray, num: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        _check_range("chosen token", chosen, 0, logits.shape[1])
        _check_range("number of log-probabilities", np.array(num), 0, logits.shape[1] + 1)
        logprobs = np.empty(len(logits), np.float32)
        ranks = np.empty(len(logits), np.int32)
        ids = np.empty((len(logits), num), np.int32)
        top = np.empty((len(logits), num), np.float32)
        for i, row in enumerate(logits):
            logp, order = sampling.log_softmax(row), sampling.descending(row)
            logprobs[i] = logp[chosen[i]]
            ranks[i] = 1 + int(np.flatnonzero(order == chosen[i])[0])
            ids[i] = order[:num]
            top[i] = logp[order[:num]]
        return logprobs, ranks, ids, top

    @staticmethod
    def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        normed: np.ndarray = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
        return normed

    @staticmethod
    def _store(cache: Any, layer: int, k: np.ndarray, v: np.ndarray, slots: np.ndarray) -> None:
        size = cache.spec.block_size
        _check_range("slot", slots, -1, cache.num_blocks * size)
        if cache.spec.dtype == "int8":
            k, v = _through_int8(k), _through_int8(v)
        for t, slot in enumerate(slots):
            if slot >= 0:
                cache.device[0, layer, slot // size, :, slot % size] = k[t]
                cache.device[1, layer, slot // size, :, slot % size] = v[t]

    @staticmethod
    def _gather(cache: Any, layer: int, table: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
        """The sequence's keys and values, float32[num_kv_heads, seq_len, head_dim]."""
        blocks = table[: -(-seq_len // cache.spec.block_size)]
        _check_range("block", blocks, 0, cache.num_blocks)
        if len(blocks) * cache.spec.block_size < seq_len:
            raise ValueError(f"block table of {len(table)} blocks is too short for {seq_len} tokens")
        gathered = cache.device[:, layer, blocks].astype(np.float32)
        both = np.moveaxis(gathered, 1, 2).reshape(2, cache.spec.num_kv_heads, -1, cache.spec.head_dim)[:, :, :seq_len]
        return both[0], both[1]


def _split(qkv: np.ndarray, shape: AttentionShape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Views [T, heads, head_dim] of q, k and v."""
    heads = qkv.reshape(qkv.shape[0], -1, shape.head_dim)
    a, b = shape.num_heads, shape.num_heads + shape.num_kv_heads
    return heads[:, :a], heads[:, a:b], heads[:, b:]


def _through_int8(heads: np.ndarray) -> np.ndarray:
    """What is read back of float32[T, heads, head_dim] that was stored in int8."""
    quants, scales = integer.quantize_groups(heads)
    read: np.ndarray = quants * scales[..., None]
    return read


def _attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """One row's heads float32[num_heads, head_dim] over keys and values float32[num_kv_heads, tokens, head_dim]."""
    group = q.shape[0] // keys.shape[0]
    out = np.empty(q.shape, np.float32)
    for head, vector in enumerate(q):
        scores = (keys[head // group] @ vector) * np.float32(scale)
        weights = np.exp(scores - scores.max())
        out[head] = (weights / weights.sum()) @ values[head // group]
    return out
