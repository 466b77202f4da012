"""Steps timed on a real engine: the right work, in shapes that the engine can have."""

import pytest

from octavo.bench.step_times import Limits, StepShape, measure_steps, spread
from octavo.build import load
from octavo.config import EngineConfig
from octavo.executor.cost_model import total_seconds
from octavo.executor.fitted_cost import fit

LIMITS = Limits(max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=2048, block_size=16, num_blocks=1000)


def test_the_spread_covers_decodes_prompts_and_both() -> None:
    shapes = spread(LIMITS)
    assert all(LIMITS.admit(shape) for shape in shapes)
    assert len(set(shapes)) == len(shapes)
    assert {shape.decodes for shape in shapes if not shape.chunk} >= {1, 8, 64, 128}
    assert {shape.chunk for shape in shapes if not shape.decodes} >= {16, 256, 1024}
    assert any(shape.chunk and shape.decodes for shape in shapes)
    assert any(shape.chunk_start for shape in shapes)


@pytest.mark.parametrize(
    "shape",
    [StepShape(129, 10), StepShape(128, 10, 10), StepShape(1, 2048), StepShape(0, 0, 10, 2040), StepShape(10, 5, 2039)],
)
def test_shapes_that_no_step_can_have(shape: StepShape) -> None:
    assert not LIMITS.admit(shape)


def test_a_small_pool_bounds_a_sequence() -> None:
    small = Limits(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=2048, block_size=16, num_blocks=4)
    assert small.admit(StepShape(8, 63)) and not small.admit(StepShape(8, 64))
    assert all(shape.context < 64 and shape.num_tokens <= 64 for shape in spread(small))


def test_measured_steps_can_be_fitted_and_the_engine_still_serves(tiny: str) -> None:
    config = EngineConfig(
        model=tiny, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=128, num_gpu_blocks_override=64, swap_space=0.001
    )
    loaded = load(config)
    shapes = [
        *(StepShape(batch, context) for batch in (1, 4, 8) for context in (16, 100)),
        StepShape(0, 0, 64, 32),
        StepShape(3, 50, 20),
    ]
    observations = measure_steps(loaded, config, repeat=1, shapes=[*shapes, StepShape(9, 10)])
    works = [observation.work for observation in observations]
    assert [(work.num_sequences, work.num_tokens) for work in works[:8]] == [
        (1, 1),
        (1, 1),
        (4, 4),
        (4, 4),
        (8, 8),
        (8, 8),
        (1, 64),
        (4, 23),
    ]
    assert works[3].context_tokens == 4 * 101 and works[6].attention_pairs == 64 * 32 + 64 * 65 // 2
    assert {work.copied_tokens for work in works[8:]} >= {16, 8 * 16} and {work.swapped_tokens for work in works[8:]} >= {32}
    assert min(observation.seconds for observation in observations) > 0
    assert total_seconds(fit(observations)(works[0])) > 0
    kv = loaded.engine.scheduler.kv
    assert kv.device.num_free == kv.device.num_blocks
    loaded.engine.shutdown()
