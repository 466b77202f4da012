"""Statistics, and where reports go."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.report import check_writable, emit, summarize
from octavo.config import ConfigError

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=30)


@given(VALUES)
def test_a_summary_agrees_with_itself(values: list[float]) -> None:
    found = summarize(values)
    assert found.median == pytest.approx(found.percentiles["50"])
    in_order = [found.percentiles[str(p)] for p in (10, 25, 50, 75, 90, 99)]
    assert in_order == sorted(in_order)
    assert min(values) <= in_order[0] and in_order[-1] <= max(values)


def test_reports_go_to_the_terminal_and_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    emit(summarize([1.0]), "words", as_json=False, output_json=str(file))
    assert capsys.readouterr().out == "words\n"
    assert json.loads(file.read_text())["mean"] == 1.0
    emit(summarize([2.0]), "words", as_json=True, output_json=None)
    assert json.loads(capsys.readouterr().out)["median"] == 2.0


def test_what_cannot_be_written_is_one_line_after_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        emit(summarize([1.0]), "words", as_json=False, output_json="/dev/full")
    assert capsys.readouterr().out == "words\n"


def test_what_cannot_be_written_is_found_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(None, "--plot")
    check_writable(str(tmp_path / "x.svg"), "--plot")
    check_writable("x.svg", "--plot")
    with pytest.raises(ConfigError, match=r"--plot .*: there is no directory .*missing"):
        check_writable(str(tmp_path / "missing" / "x.svg"), "--plot")
    with pytest.raises(ConfigError, match=r"--plot .*: is a directory"):
        check_writable(str(tmp_path), "--plot")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"--plot .*: may not be written"):
        check_writable(str(tmp_path / "x.svg"), "--plot")
