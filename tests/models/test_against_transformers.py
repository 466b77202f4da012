"""Logits of every family variant against ``transformers``: whole prompts, chunks, decoding, several sequences at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.base import Backend
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference.backend import ReferenceBackend
from octavo.models import load_model
from octavo.weights.checkpoint import open_checkpoint
from tests.models.paged import PagedRunner
from tests.models.variants import VARIANTS, build, reference_logits

PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 128, 40)]
OTHER = [int(token) for token in np.random.default_rng(4).integers(0, 128, 23)]


def runner(directory: Path, backend: Backend, *, num_seqs: int = 1, max_model_len: int = 64) -> PagedRunner:
    checkpoint = open_checkpoint(directory)
    model = load_model(checkpoint.config, checkpoint.source, backend, max_model_len=max_model_len)
    return PagedRunner(model, backend, checkpoint.config, num_seqs=num_seqs, max_len=max_model_len)


def make_backend(name: str, compute_dtype: str) -> Backend:
    if name == "reference":
        return ReferenceBackend(compute_dtype=compute_dtype)
    return CpuBackend(compute_dtype=compute_dtype, isa="auto", num_threads=2)


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp(request.param)
    return directory, build(request.param, directory)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_whole_prompt(variant: tuple[Path, Any], backend: str) -> None:
    directory, model = variant
    [logits] = runner(directory, make_backend(backend, "float32")).step([(0, PROMPT)])
    close(logits, reference_logits(model, PROMPT))


def test_chunks_then_decoding_beside_another_sequence(variant: tuple[Path, Any], backend: str) -> None:
    directory, model = variant
    run = runner(directory, make_backend(backend, "float32"), num_seqs=2)
    first: list[np.ndarray] = []
    second: list[np.ndarray] = []
    first += run.step([(0, PROMPT[:9])])
    for parts in ([(1, OTHER[:16]), (0, PROMPT[9:22])], [(1, OTHER[16:17]), (0, PROMPT[22:23])]):
        late, early = run.step(parts)
        second.append(late)
        first.append(early)
    second += run.step([(1, OTHER[17:])])
    first += [run.step([(0, [token])])[0] for token in PROMPT[23:]]
    close(np.concatenate(first), reference_logits(model, PROMPT))
    close(np.concatenate(second), reference_logits(model, OTHER))


def test_bfloat16_is_near(variant: tuple[Path, Any], backend: str) -> None:
    directory, model = variant
    [logits] = runner(directory, make_backend(backend, "bfloat16")).step([(0, PROMPT)])
    expected = reference_logits(model, PROMPT)
    assert np.sqrt(np.mean((logits - expected) ** 2)) < 0.05 * expected.std()


def test_shards_and_bfloat16_files(tmp_path: Path) -> None:
    model = build("qwen2", tmp_path, max_shard_size="50KB", dtype=torch.bfloat16)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    [logits] = runner(tmp_path, ReferenceBackend()).step([(0, PROMPT)])
    close(logits, reference_logits(model, PROMPT))


def test_float16_files(tmp_path: Path) -> None:
    model = build("llama2", tmp_path, dtype=torch.float16)
    assert open_checkpoint(tmp_path).config.dtype == "float16"
    [logits] = runner(tmp_path, ReferenceBackend()).step([(0, PROMPT)])
    close(logits, reference_logits(model, PROMPT))


def test_dynamic_scaling_beyond_the_context_equals_transformers_at_the_longest_sequence(tmp_path: Path) -> None:
    model = build("dynamic", tmp_path)
    longest = [int(token) for token in np.random.default_rng(8).integers(0, 128, 96)]
    [logits] = runner(tmp_path, ReferenceBackend(), max_model_len=96).step([(0, longest)])
    close(logits, reference_logits(model, longest), tolerance=5e-5)
    assert np.abs(logits - runner(tmp_path, ReferenceBackend(), max_model_len=128).step([(0, longest)])[0]).max() > 1e-3
