"""Runs a model by hand: sequences over shuffled blocks, any mix of tokens in a step, logits of every row."""

import itertools
from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Backend, Batch, KVCacheSpec
from octavo.config import ModelConfig
from octavo.models import Model


class PagedRunner:
    """Block tables are random permutations, so that a model that forgets the table cannot pass."""

    def __init__(
        self, model: Model, backend: Backend, config: ModelConfig, *, num_seqs: int = 1, max_len: int = 64, block_size: int = 4
    ) -> None:
        self._model, self._backend, self._block_size = model, backend, block_size
        width = -(-max_len // block_size)
        blocks = np.random.default_rng(5).permutation(num_seqs * width + 3)[: num_seqs * width]
        self._tables = blocks.astype(np.int32).reshape(num_seqs, width)
        self._computed = [0] * num_seqs
        spec = KVCacheSpec(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=block_size,
            dtype=backend.compute_dtype,
        )
        self._cache = backend.kv_cache(spec, num_blocks=num_seqs * width + 3, num_host_blocks=0)

    def step(self, parts: Sequence[tuple[int, Sequence[int]]]) -> list[np.ndarray]:
        """Append tokens to sequences: (sequence, tokens) each -> logits float32[tokens, V] each."""
        starts = np.cumsum([0] + [len(tokens) for _, tokens in parts])
        positions = np.concatenate([self._computed[seq] + np.arange(len(tokens)) for seq, tokens in parts])
        slots = np.concatenate([self._slots(seq, len(tokens)) for seq, tokens in parts])
        for seq, tokens in parts:
            self._computed[seq] += len(tokens)
        rows = np.arange(starts[-1])
        arrays = {
            "input_ids": np.concatenate([np.asarray(tokens) for _, tokens in parts]),
            "positions": positions,
            "slot_mapping": slots,
            "query_start": starts,
            "seq_lens": np.array([self._computed[seq] for seq, _ in parts]),
            "block_tables": self._tables[[seq for seq, _ in parts]],
            "logits_rows": rows,
        }
        batch = Batch(**{name: self._backend.tensor(array.astype(np.int32)) for name, array in arrays.items()})
        hidden = self._model.forward(batch, self._cache, batch.logits_rows)
        logits = self._backend.to_host(self._model.logits(hidden))
        return [logits[a:b] for a, b in itertools.pairwise(starts)]

    def _slots(self, seq: int, count: int) -> np.ndarray:
        positions = self._computed[seq] + np.arange(count)
        slots: np.ndarray = self._tables[seq][positions // self._block_size] * self._block_size + positions % self._block_size
        return slots
