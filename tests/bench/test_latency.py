"""``octavo bench latency`` on a tiny model."""

import json

import pytest

from octavo import build, cli
from octavo.bench import latency
from octavo.bench.options import LatencyOptions
from octavo.config import EngineConfig

SMALL = ["--batch-size", "3", "--input-len", "9", "--output-len", "5", "--num-iters-warmup", "1", "--num-iters", "2"]


def test_every_token_is_counted(tiny: str) -> None:
    """Of prompts that do not fit one step, too: their first tokens come later."""
    loaded = build.load(EngineConfig(model=tiny, swap_space=0, max_num_seqs=8, max_num_batched_tokens=16))
    options = LatencyOptions(batch_size=3, input_len=12, output_len=5, n=2)
    found = latency.measure(loaded, options, [1, 2, 3])
    loaded.engine.shutdown()
    assert len(found.first_tokens) == 3 and len(found.gaps) == 3 * 2 * 4
    assert found.first_tokens == sorted(found.first_tokens) and found.first_tokens[0] < found.first_tokens[-1]
    assert found.first_tokens[-1] < found.seconds
    assert sum(found.gaps) / 6 < found.seconds


@pytest.mark.parametrize("rows, later", [(3, 3 * 5 - 3), (1, 3 * 5 - 1)])
def test_tokens_are_counted_from_the_first_to_the_last(tiny: str, rows: int, later: int) -> None:
    """However many run at once."""
    loaded = build.load(EngineConfig(model=tiny, swap_space=0, max_num_seqs=rows))
    found = latency.measure(loaded, LatencyOptions(batch_size=3, input_len=9, output_len=5), [1, 2, 3])
    loaded.engine.shutdown()
    assert found.later_tokens == later and 0 < found.later_seconds < found.seconds


def test_json(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "latency", tiny, *SMALL, "--swap-space", "0", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "", "no bar where there is no terminal"
    result = json.loads(captured.out)
    assert len(result["latencies"]) == 2
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 2)
    assert list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert 0 < result["ttft"]["mean"] < max(result["latencies"])
    assert 0 < result["itl"]["percentiles"]["10"] <= result["itl"]["percentiles"]["99"]
    assert result["output_tokens_per_s"] > 3 * 4 / max(result["latencies"])


def test_lines(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "latency", tiny, *SMALL, "--swap-space", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Avg latency: ") and "\n99% percentile latency: " in out
    assert "\nTime to first token (ms): mean " in out and "\nInter-token latency (ms): mean " in out
    assert "\n3 sequences: " in out and out.endswith(" tokens/s from the first token to the last\n")


def test_one_token_has_no_token_before(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "latency", tiny, *SMALL, "--output-len", "1", "--swap-space", "0", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["itl"] is None and result["output_tokens_per_s"] is None
