"""``octavo bench throughput`` on a tiny model; lengths that are refused, here and by ``octavo bench latency``."""

import pytest

from octavo import build, cli
from octavo.bench import throughput
from octavo.bench.options import ThroughputOptions
from octavo.config import EngineConfig


def test_tokens_that_came_are_counted(tiny: str) -> None:
    loaded = build.load(EngineConfig(model=tiny, swap_space=0, max_model_len=32))
    options = ThroughputOptions(num_prompts=3, input_len=28, output_len=9, n=2)
    found = throughput.measure(loaded, options, run=0)
    loaded.engine.shutdown()
    assert found.output_tokens == 3 * 2 * 4, "to the end of the context"


@pytest.mark.parametrize("measurement", ["throughput", "latency"])
def test_outputs_that_the_context_would_cut_are_refused(
    tiny: str, measurement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--input-len", "500", "--output-len", "13", "--swap-space", "0"]
    assert cli.main(["bench", measurement, tiny, *lengths]) == 64
    told = capsys.readouterr().err
    assert "--input-len 500 and --output-len 13 are more than the 512 tokens of the context" in told
