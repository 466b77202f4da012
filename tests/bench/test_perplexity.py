"""``octavo bench perplexity`` against log-probabilities found in another way."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, SamplingParams, build, cli
from octavo.bench.perplexity import windows_of
from octavo.config import EngineConfig

TEXT = "It was the best of times, it was the worst of times; it was the age of wisdom. " * 3


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.parametrize(
    ("count", "context_len", "stride"), [(40, 8, 8), (41, 8, 8), (40, 8, 3), (8, 8, 8), (9, 8, 1), (7, 8, 8)]
)
@pytest.mark.parametrize("lead", [[], [99]])
def test_every_token_is_foretold_once(count: int, context_len: int, stride: int, lead: list[int]) -> None:
    """But the first of a window that nothing is put before, where no window before foretells it."""
    ids = list(range(count))
    windows = windows_of(ids, lead=lead, context_len=context_len, stride=stride)
    foretold = [token for window in windows for token in window.token_ids[window.first :]]
    alone = set(range(0, count, context_len)) if stride == context_len else {0}
    assert foretold == [token for token in ids if lead or token not in alone]
    for window in windows:
        assert window.token_ids[: len(lead)] == lead and len(window.token_ids) <= context_len + len(lead)
        assert window.first >= 1
    assert all(window.first >= len(lead) + context_len - stride for window in windows[1:])


def test_a_text_without_a_second_token_has_none_to_foretell() -> None:
    assert windows_of([5], lead=[], context_len=8, stride=8) == []
    assert windows_of([], lead=[1], context_len=8, stride=8) == []


@pytest.mark.parametrize("stride", [None, 5])
def test_the_same_as_from_outputs(tiny: str, file: str, stride: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Each token's log-probability as the first output token behind what stands before it in its window."""
    more = [] if stride is None else ["--stride", str(stride)]
    flags = [
        "--file",
        file,
        "--context-len",
        "16",
        "--num-tokens",
        "40",
        "--max-num-batched-tokens",
        "64",
        "--max-num-seqs",
        "8",
    ]
    assert cli.main(["bench", "perplexity", tiny, *flags, *more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ids = build.open_frontend(EngineConfig(model=tiny)).tokenizer.encode(TEXT, add_special_tokens=False)[:40]
    llm = LLM(model=tiny, swap_space=0.0)
    expected = []
    for window in windows_of(ids, lead=[], context_len=16, stride=stride or 16):
        for i in range(window.first, len(window.token_ids)):
            token = window.token_ids[i]
            params = SamplingParams(max_tokens=1, logprob_token_ids=[token])
            (output,) = llm.generate([{"prompt_token_ids": window.token_ids[:i]}], params, use_tqdm=False)
            logprobs = output.outputs[0].logprobs
            assert logprobs is not None
            expected.append(logprobs[0][token].logprob)
    llm.shutdown()
    assert (found["tokens"], found["windows"]) == (len(expected), 3 if stride is None else 6)
    assert found["perplexity"] == pytest.approx(math.exp(-np.mean(expected)), rel=1e-5)
    assert found["error"] == pytest.approx(found["perplexity"] * np.std(expected) / math.sqrt(len(expected)), rel=1e-4)


def test_lines(tiny: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "perplexity", tiny, "--file", file, file, "--context-len", "32"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Perplexity: ") and " +/- " in first
    assert " windows of 32, " in second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "nowhere.txt"], "--file nowhere.txt: cannot be read as text"),
        (["--file", "/dev/null", "--context-len", "64"], "--file /dev/null: a text of 0 tokens has none to foretell"),
        (["--file", "{file}", "--context-len", "100000"], "--context-len 100000 is more than the "),
        (["--file", "{file}", "--context-len", "8", "--stride", "9"], "--stride 9 is more than --context-len 8"),
        ([], "say which file"),
    ],
)
def test_what_cannot_be_measured(
    tiny: str, file: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "perplexity", tiny, *(argument.format(file=file) for argument in arguments)]) == 64
    assert message in capsys.readouterr().err
