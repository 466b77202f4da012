"""Repetition told token by token is what the whole output shows."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.repetition import RepetitionWatch
from octavo.sampling_params import RepetitionDetectionParams, SamplingParams
from tests.engine.fake import repeats


@given(
    tokens=st.lists(st.integers(0, 2), max_size=60),
    smallest=st.integers(0, 4),
    more=st.integers(0, 6),
    count=st.integers(2, 5),
    forks_at=st.integers(0, 60),
)
def test_every_token_tells_what_the_output_shows(
    tokens: list[int], smallest: int, more: int, count: int, forks_at: int
) -> None:
    watched = RepetitionDetectionParams(max_pattern_size=smallest + more + 1, min_pattern_size=smallest, min_count=count)
    params, watch = SamplingParams(repetition_detection=watched), RepetitionWatch(watched)
    for i, token in enumerate(tokens):
        if i == forks_at:
            aside, watch = watch, watch.fork()
            aside.push(9)
        assert watch.push(token) == repeats(tokens[: i + 1], params)


def test_a_long_pattern_far_into_an_output() -> None:
    watch = RepetitionWatch(RepetitionDetectionParams(max_pattern_size=100, min_pattern_size=100, min_count=3))
    told = [watch.push(token) for token in [*range(1000), *(list(range(100)) * 3)]]
    assert told.index(True) == 1299
