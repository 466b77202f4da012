"""Whatever the schema, every finished output parses and validates: with a model that knows nothing, greedy and at random."""

import json
from collections.abc import Iterator

import jsonschema
import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from tests.server.tiny import write_tiny_llama
from tests.structured.schemas import random_schema

NUM_SCHEMAS = 1000


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
    llm = LLM(str(model), max_num_seqs=32, num_gpu_blocks_override=1500)
    yield llm
    llm.shutdown()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_finished_output_is_valid(llm: LLM, temperature: float) -> None:
    schemas = [random_schema(seed) for seed in range(NUM_SCHEMAS)]
    params = [
        SamplingParams(
            temperature=temperature,
            seed=seed,
            max_tokens=480,
            structured_outputs=StructuredOutputsParams(json=schema, disable_any_whitespace=seed % 2 == 0),
        )
        for seed, schema in enumerate(schemas)
    ]
    outputs = llm.generate(["JSON: "] * len(schemas), params, use_tqdm=False)
    finished = 0
    for schema, output in zip(schemas, outputs, strict=True):
        (branch,) = output.outputs
        assert branch.finish_reason in ("stop", "length"), (schema, branch)
        if branch.finish_reason == "stop":
            finished += 1
            jsonschema.validate(json.loads(branch.text), schema)
    assert finished >= 0.9 * len(schemas), f"only {finished} of {len(schemas)} came to an end"
