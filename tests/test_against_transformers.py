"""The real model says what ``transformers`` says: the same greedy tokens in float32, close logits in bfloat16."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo import build
from octavo.config import EngineConfig
from octavo.outputs import TokenDelta
from octavo.request import Request
from octavo.sampling_params import SamplingParams

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "Water boils at",
    "The three laws of motion are",
    "import numpy as np\n\ndef softmax(x):",
    "In 1969, Neil Armstrong",
    "A recipe for bread needs flour, water,",
    "The opposite of hot is",
    "Q: What is 17 + 25?\nA:",
    "Dear Sir or Madam,",
    "SELECT name, count(*) FROM",
    "Photosynthesis is the process by which",
    "La capitale de l'Italie est",
    "The quick brown fox",
    "1, 1, 2, 3, 5, 8, 13,",
    "Shakespeare wrote",
    "An operating system schedules",
    "The mitochondria are",
    "To be, or not to be,",
    "<html>\n<head>\n<title>",
    "The moon orbits the earth every",
    "Kubernetes pods are",
    "My favourite colour is blue because",
]
NEW_TOKENS = 32


def generate(path: Path, dtype: Any, prompts: list[list[int]], params: SamplingParams) -> dict[int, list[TokenDelta]]:
    loaded = build.load(EngineConfig(model=str(path), dtype=dtype, max_model_len=256, num_gpu_blocks_override=400))
    engine = loaded.engine
    outputs: dict[int, list[TokenDelta]] = {}
    for i, ids in enumerate(prompts):
        engine.add(Request(id=str(i), prompt_token_ids=ids, params=params, seed=0, arrival_time=time.monotonic()))
    while engine.has_work:
        for delta in engine.step():
            outputs.setdefault(int(delta.request_id), []).append(delta)
    engine.shutdown()
    return outputs


def test_greedy_tokens_are_identical_in_float32(smollm2_path: Path, reference: Any) -> None:
    tokenizer = build.open_frontend(EngineConfig(model=str(smollm2_path))).tokenizer
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    ours = generate(smollm2_path, "float32", prompts, params)
    for i, ids in enumerate(prompts):
        got = [token for delta in ours[i] for token in delta.token_ids]
        with torch.no_grad():  # each token is the likeliest after those before it: what greedy decoding is
            logits = reference(torch.tensor([ids + got[:-1]])).logits[0]
        assert got == logits[len(ids) - 1 :].argmax(-1).tolist(), PROMPTS[i]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 0.25)])
def test_prompt_logprobs_are_close(smollm2_path: Path, reference: Any, dtype: str, tolerance: float) -> None:
    tokenizer = build.open_frontend(EngineConfig(model=str(smollm2_path))).tokenizer
    prompts = [tokenizer.encode(" ".join(PROMPTS[i : i + 6])) for i in range(0, 24, 6)]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    ours = generate(smollm2_path, dtype, prompts, params)
    for i, ids in enumerate(prompts):
        with torch.no_grad():
            logprobs = torch.log_softmax(reference(torch.tensor([ids])).logits[0].double(), -1)
        expected = np.array([float(logprobs[p, token]) for p, token in enumerate(ids[1:])])
        got = np.array([entry.logprob for entry in ours[i][0].prompt_logprobs or ()])
        assert got.shape == expected.shape
        assert np.sqrt(np.mean((got - expected) ** 2)) < tolerance
