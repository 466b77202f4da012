"""A bench over a tiny model and a few invented conversations; and records as runs would leave them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.bench.options import PaperOptions
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.driver import SLOTS, Replayed
from octavo.config import EngineConfig

MakeBench = Callable[..., Bench]


@pytest.fixture(scope="session")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ShareGPT's format: each with two rounds, so that all traces have something in them."""
    made = []
    for i in range(60):
        question, answer = "what is a page " * (1 + i % 7), "a page holds tokens " * (1 + i % 5)
        turns = [("human", question), ("gpt", answer), ("human", f"and {question}"), ("gpt", answer[::-1])]
        made.append({"id": str(i), "conversations": [{"from": who, "value": text} for who, text in turns]})
    path = tmp_path_factory.mktemp("sharegpt") / "sharegpt.json"
    path.write_text(json.dumps(made))
    return path


@pytest.fixture(autouse=True)
def cache_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenized samples stay out of the user's cache."""
    monkeypatch.setattr("octavo.bench.paper.workload.trace_cache", lambda: tmp_path / "traces")


@pytest.fixture
def make_bench(tiny: str, tmp_path: Path, conversations: Path) -> MakeBench:
    def make(*, quick: bool = True, force: bool = False) -> Bench:
        options = PaperOptions(quick=quick, out=str(tmp_path / "out"), sharegpt=str(conversations), force=force)
        return Bench(EngineConfig(model=tiny, num_threads=1, swap_space=0.01), options)

    return make


def replayed(**changes: object) -> Replayed:
    """A run in which half of the slots hold tokens."""
    fields: dict[str, object] = {
        "normalized_latency": 0.05,
        "latency_percentiles": {"50": 0.04, "90": 0.09, "99": 0.2},
        "gave_up": False,
        "num_requests": 10,
        "num_finished": 10,
        "output_tokens": 1000,
        "seconds": 10.0,
        "loaded_seconds": 8.0,
        "requests_at_once": 5.0,
        "sequences_at_once": 5.0,
        "output_rate": 100.0,
        "slots": dict.fromkeys(SLOTS, 0.0) | {"tokens": 500.0, "internal": 500.0},
        "total_slots": 1000,
        "preemptions": 1,
        "swapped_blocks": 2,
        "copied_blocks": 3,
        "steps": 100,
    }
    return Replayed(**(fields | changes))  # type: ignore[arg-type]
