"""What was measured is found again, and nothing else is taken for it."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from octavo.bench.paper.store import Store, write
from octavo.config import ConfigError


def never() -> dict[str, object]:
    raise AssertionError("computed again")


def gives(value: object) -> Callable[[], dict[str, object]]:
    return lambda: {"value": value}


def test_a_result_is_computed_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    assert store.once("a run", {"x": 1}, gives(7)) == {"value": 7}
    assert Store(tmp_path / "runs").once("a run", {"x": 1}, never) == {"value": 7}


def test_another_specification_is_another_result(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.once("a run", {"x": 1, "y": [1, 2]}, gives(7))
    assert store.once("a run", {"x": 1, "y": [2, 1]}, gives(8)) == {"value": 8}
    assert store.once("a run", {"y": [1, 2], "x": 1}, never) == {"value": 7}


def test_force_measures_again_but_once(tmp_path: Path) -> None:
    Store(tmp_path).once("a run", {"x": 1}, gives(7))
    forced = Store(tmp_path, force=True)
    assert forced.once("a run", {"x": 1}, gives(8)) == {"value": 8}
    assert forced.once("a run", {"x": 1}, never) == {"value": 8}


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"spec": {"x": 2}, "result": {}}', '{"spec": {"x": 1}, "result": 3}'])
def test_what_is_not_the_result_is_not_taken(tmp_path: Path, content: str) -> None:
    store = Store(tmp_path)
    store.path_of("a run", {"x": 1}).write_text(content)
    assert store.once("a run", {"x": 1}, gives(9)) == {"value": 9}
    assert Store(tmp_path).once("a run", {"x": 1}, never) == {"value": 9}


def test_nothing_is_stored_of_a_run_that_failed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(AssertionError):
        store.once("a run", {"x": 1}, never)
    assert store.find("a run", {"x": 1}) is None


def write_often(path: Path, text: str) -> None:
    for _ in range(500):
        write(path, text)


def test_processes_may_store_the_same_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for written in [pool.submit(write_often, path, letter * 10_000) for letter in "ab"]:
            written.result()
    assert path.read_text() in ("a" * 10_000, "b" * 10_000)
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x.json: cannot be written \(No such file or directory\)"):
        write(tmp_path / "gone" / "x.json", "text")


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=r"--out .*taken"):
        Store(tmp_path / "taken")
