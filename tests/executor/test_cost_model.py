"""What a step costs: the counting of its work, the limits of a machine, and the fit to measured steps."""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.executor.cost_model import RooflineCost, StepWork, total_seconds, work_of
from octavo.executor.fitted_cost import FitError, FittedCost, Observation, fit
from octavo.executor.presets import PRESETS
from octavo.step import BlockCopies, ScheduledSequence, SchedulerOutput

SIZES = st.integers(0, 5000)
WORKS = st.builds(StepWork, *[SIZES] * 9)
FIELDS = [field.name for field in dataclasses.fields(StepWork)]
TRUTH = FittedCost(
    base=2e-3,
    knots=(0, 1, 8, 64, 512),
    increments=(3e-3, 1e-4, 5e-3, 6e-2),
    per_row=1e-4,
    per_sequence=5e-5,
    per_context_token=2e-7,
    per_attention_pair=1e-7,
    per_copied_token=4e-7,
    per_swapped_token=8e-7,
    error=FitError(0.0, 0.0, 0),
)


def sequence(start: int, num_tokens: int, *, rows: int = 1, num_drafts: int = 0) -> ScheduledSequence:
    return ScheduledSequence(
        seq_id=0,
        row=0,
        start=start,
        token_ids=[1] * num_tokens,
        prompt_len=1,
        num_drafts=num_drafts,
        sample_rows=tuple(range(rows)),
        seeds=(0,) * rows,
    )


def plan(*sequences: ScheduledSequence, copies: BlockCopies | None = None) -> SchedulerOutput:
    copies = copies or BlockCopies(swap_out=[], swap_in=[], copy=[])
    tables = np.arange(4 * len(sequences), dtype=np.int32).reshape(-1, 4)
    return SchedulerOutput(step_id=0, sequences=list(sequences), block_tables=tables, copies=copies)


def test_the_work_of_a_plan() -> None:
    copies = BlockCopies(swap_out=[(0, 0)], swap_in=[(1, 1), (2, 2)], copy=[(3, 4)])
    work = work_of(plan(sequence(9, 1), sequence(2, 3, rows=0), sequence(5, 4, num_drafts=3), copies=copies), block_size=8)
    assert work == StepWork(
        num_tokens=8,
        num_sequences=3,
        num_rows=1 + 4,
        context_tokens=10 + 5 + 9,
        attention_pairs=10 + (3 + 4 + 5) + (6 + 7 + 8 + 9),
        copied_tokens=8,
        swapped_tokens=24,
    )


def test_a_shared_prefix_is_counted_once_and_what_repeats_it_apart() -> None:
    made = plan(sequence(20, 1), sequence(19, 1), sequence(30, 1), sequence(17, 1))
    # Of 8 positions each: the first two share two blocks, the third one of them; its next block and the fourth are their own.
    made.block_tables[:, :] = [[7, 8, 1, 0], [7, 8, 2, 0], [7, 3, 4, 5], [9, 10, 11, 0]]
    work = work_of(made, block_size=8)
    assert (work.repeated_tokens, work.shared_tokens) == (3 * 8, 2 * 8)
    assert work.read_tokens == 21 + 20 + 31 + 18 and work.context_tokens == work.read_tokens - 3 * 8


def test_what_is_shared_is_read_faster_while_it_fits_into_the_cache() -> None:
    cost = PRESETS["llama-13b"].cost
    alone = total_seconds(cost(StepWork(200, 200, 200, 80_000, 80_000)))
    small = StepWork(200, 200, 200, 80_000 - 199 * 336, 80_000, repeated_tokens=199 * 336, shared_tokens=336)
    large = dataclasses.replace(small, shared_tokens=3000)
    assert total_seconds(cost(small)) < alone
    assert total_seconds(cost(large)) == pytest.approx(alone)


def test_one_row_of_logits_serves_all_branches() -> None:
    assert work_of(plan(sequence(0, 5, rows=4)), block_size=8).num_rows == 1


@pytest.mark.parametrize("cost", [*(preset.cost for preset in PRESETS.values()), TRUTH], ids=[*PRESETS, "fitted"])
@given(work=WORKS, field=st.sampled_from(FIELDS), more=st.integers(0, 3000))
def test_more_work_never_takes_less_time(cost: RooflineCost | FittedCost, work: StepWork, field: str, more: int) -> None:
    larger = dataclasses.replace(work, **{field: getattr(work, field) + more})
    assert 0 <= total_seconds(cost(work)) <= total_seconds(cost(larger)) * (1 + 1e-12)


def test_a_small_step_reads_the_weights_and_a_large_one_multiplies() -> None:
    preset = PRESETS["opt-13b"]
    hardware = preset.hardware
    alone = total_seconds(preset.cost(StepWork(1, 1, 1, 1, 1))) - hardware.step_overhead - hardware.sequence_overhead
    assert alone == pytest.approx(preset.shape.weight_bytes / (1.555e12 * hardware.weight_efficiency), rel=1e-3)
    prompt = total_seconds(preset.cost(StepWork(2000, 1, 1, 2000, 2000 * 2001 // 2)))
    assert prompt > 2 * preset.shape.layer_parameters * 2000 / 312e12


@pytest.mark.parametrize(
    ("name", "parameters", "kv_bytes"),
    [
        ("opt-13b", 12.85e9, 819_200),
        ("opt-66b", 65.7e9, 2_359_296),
        ("opt-175b", 174.6e9, 4_718_592),
        ("llama-13b", 12.85e9, 819_200),
    ],
)
def test_presets_have_the_sizes_of_their_models(name: str, parameters: float, kv_bytes: int) -> None:
    preset = PRESETS[name]
    assert preset.shape.layer_parameters + preset.shape.head_parameters == pytest.approx(parameters, rel=0.01)
    assert preset.shape.kv_bytes_per_token == kv_bytes
    assert preset.num_blocks(16) * 16 <= preset.kv_slots < (preset.num_blocks(16) + 1) * 16


def test_several_devices_share_the_work_and_pay_for_it() -> None:
    preset = PRESETS["opt-66b"]
    work = StepWork(10, 10, 10, 5000, 5000)
    alone = RooflineCost(preset.shape, dataclasses.replace(preset.hardware, num_devices=1))
    free = RooflineCost(preset.shape, dataclasses.replace(preset.hardware, reduction_latency=0.0, link_bandwidth=1e30))
    assert total_seconds(free(work)) < total_seconds(preset.cost(work)) < total_seconds(alone(work))


def random_work(rng: random.Random) -> StepWork:
    sequences, chunk = rng.randint(1, 64), rng.choice([0, 0, rng.randint(1, 448)])
    context = sequences * rng.randint(10, 1500)
    pairs = context + chunk * rng.randint(1, 1000)
    copied, swapped = rng.choice([0, 16, 512]), rng.choice([0, 0, 64, 1024])
    return StepWork(sequences + chunk, sequences, rng.randint(1, sequences), context, pairs, copied, swapped)


def grid() -> list[StepWork]:
    """Steps whose tokens are just the places where the truth bends."""
    return [StepWork(knot, 1, 1, knot + 3, knot * 3) for knot in TRUTH.knots[1:]]


def test_a_fit_finds_what_made_the_steps() -> None:
    rng = random.Random(5)
    works = [*grid(), *(random_work(rng) for _ in range(300)), StepWork(0, 0, 0, 0, 0, 64, 0), StepWork(0, 0, 0, 0, 0, 0, 64)]
    fitted = fit([Observation(work, total_seconds(TRUTH(work))) for work in works])
    unseen = [random_work(rng) for _ in range(200)]
    errors = [abs(total_seconds(fitted(work)) / total_seconds(TRUTH(work)) - 1) for work in unseen]
    assert fitted.error.p90 < 0.02 and fitted.error.num_steps == len(works)
    assert max(errors) < 0.05
    assert fitted.per_context_token == pytest.approx(TRUTH.per_context_token, rel=0.05)
    assert fitted.per_swapped_token == pytest.approx(TRUTH.per_swapped_token, rel=0.05)
    assert fitted.per_copied_token == pytest.approx(TRUTH.per_copied_token, rel=0.05)


def test_noise_is_reported_as_an_error() -> None:
    rng = random.Random(6)
    works = [random_work(rng) for _ in range(300)]
    noisy = fit([Observation(work, total_seconds(TRUTH(work)) * rng.uniform(0.8, 1.2)) for work in works])
    assert 0.05 < noisy.error.median < 0.15 < noisy.error.p90 < 0.25


def test_no_coefficient_is_negative_whatever_was_measured() -> None:
    rng = random.Random(7)
    fitted = fit([Observation(random_work(rng), rng.uniform(0.001, 0.1)) for _ in range(100)])
    assert min(fitted.base, *fitted.increments, fitted.per_row, fitted.per_sequence, fitted.per_context_token) >= 0
    assert min(fitted.per_attention_pair, fitted.per_copied_token, fitted.per_swapped_token) >= 0


def test_a_fit_needs_steps_that_took_time() -> None:
    with pytest.raises(ValueError, match="at least two steps"):
        fit([Observation(StepWork(1, 1, 1, 1, 1), 0.1)])
    with pytest.raises(ValueError, match="took time"):
        fit([Observation(StepWork(1, 1, 1, 1, 1), 0.0)] * 3)
