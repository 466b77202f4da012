"""Traces: lengths, arrivals and seeds."""

import numpy as np
import pytest

from octavo.bench.traces import (
    PAPER_ALPACA_MEANS,
    Trace,
    TraceRequest,
    alpaca,
    translation,
    with_arrivals,
    with_means,
)


def uneven(count: int = 500) -> Trace:
    random = np.random.default_rng(0)
    inputs, outputs = random.geometric(1 / 150, count), random.geometric(1 / 300, count)
    requests = [TraceRequest([1] * int(i), int(o)) for i, o in zip(inputs, outputs, strict=True)]
    return Trace(name="uneven", description="made up", requests=requests)


def test_poisson_arrivals_have_the_rate_and_the_spread() -> None:
    trace = with_arrivals(uneven(), rate=4.0, seed=3, num_requests=20_000)
    arrivals = np.array([request.arrival for request in trace.requests])
    gaps = np.diff(arrivals, prepend=0.0)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.05)  # of an exponential distribution it is the mean
    assert trace.duration == arrivals[-1]


def test_arrivals_repeat_with_their_seed_and_keep_the_requests() -> None:
    trace = uneven(10)
    first, again, other = (with_arrivals(trace, rate=1.0, seed=seed, num_requests=25) for seed in (1, 1, 2))
    assert first == again
    assert [r.arrival for r in first.requests] != [r.arrival for r in other.requests]
    assert [r.output_len for r in first.requests] == [trace.requests[i % 10].output_len for i in range(25)]
    assert len(with_arrivals(trace, rate=1.0).requests) == 10
    with pytest.raises(ValueError, match="positive rate"):
        with_arrivals(trace, rate=0.0)


def test_a_faster_rate_is_the_same_process_in_less_time() -> None:
    slow, fast = (with_arrivals(uneven(50), rate=rate, seed=7) for rate in (1.0, 2.0))
    assert [r.arrival for r in fast.requests] == pytest.approx([r.arrival / 2 for r in slow.requests])


def test_alpaca_has_the_published_means_and_says_what_it_is() -> None:
    trace = alpaca(num_requests=20_000, vocab_size=100, seed=1)
    assert trace.mean_input == pytest.approx(PAPER_ALPACA_MEANS[0], rel=0.02)
    assert trace.mean_output == pytest.approx(PAPER_ALPACA_MEANS[1], rel=0.02)
    assert "no real texts" in trace.description and "gamma" in trace.description and "geometric" in trace.description
    assert min(request.output_len for request in trace.requests) >= 1
    assert {token for request in trace.requests[:200] for token in request.prompt_token_ids} == set(range(100))
    assert alpaca(num_requests=50, vocab_size=100, seed=1) == alpaca(num_requests=50, vocab_size=100, seed=1)
    assert alpaca(num_requests=50, vocab_size=100, seed=1) != alpaca(num_requests=50, vocab_size=100, seed=2)


@pytest.mark.parametrize("prefix_len", [80, 341])
def test_translations_begin_alike_and_go_on_differently(prefix_len: int) -> None:
    trace = translation(num_requests=300, prefix_len=prefix_len, vocab_size=5000)
    assert len({tuple(request.prompt_token_ids[:prefix_len]) for request in trace.requests}) == 1
    assert len({tuple(request.prompt_token_ids[prefix_len:]) for request in trace.requests}) > 290
    assert min(len(request.prompt_token_ids) for request in trace.requests) > prefix_len
    assert trace.mean_input - prefix_len == pytest.approx(25, rel=0.1)
    assert str(prefix_len) in trace.description and "assumption" in trace.description


@pytest.mark.parametrize("means", [(161.31, 337.99), (40.0, 600.0), (300.0, 20.0)])
def test_lengths_are_scaled_to_means_within_the_context(means: tuple[float, float]) -> None:
    trace = with_arrivals(uneven(2000), rate=1.0)
    scaled = with_means(trace, mean_input=means[0], mean_output=means[1], vocab_size=500)
    assert scaled.mean_input == pytest.approx(means[0], rel=0.01)
    assert scaled.mean_output == pytest.approx(means[1], rel=0.01)
    assert max(len(r.prompt_token_ids) + r.output_len for r in scaled.requests) <= 2048
    assert min(min(len(r.prompt_token_ids), r.output_len) for r in scaled.requests) >= 1
    assert [r.arrival for r in scaled.requests] == [r.arrival for r in trace.requests]
    assert "made up; lengths scaled" in scaled.description


def test_of_an_empty_trace_there_are_means_too() -> None:
    nothing = Trace(name="nothing", description="", requests=[])
    assert (nothing.mean_input, nothing.mean_output, nothing.duration) == (0.0, 0.0, 0.0)
