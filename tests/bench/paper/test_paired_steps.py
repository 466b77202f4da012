"""Steps of several block sizes in turn: what is counted, and that a planted cost is found."""

import pytest

from octavo.bench.paper import paired_steps
from octavo.bench.paper.paired_steps import compare_steps
from octavo.clock import VirtualClock
from octavo.engine.engine import Engine
from tests.bench.paper.conftest import MakeBench

SECONDS = {16: 0.010, 8: 0.0103, 4: 0.02}


def test_what_a_block_size_costs_is_found(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real engines, whose steps are said to take so long; the machine is said to become slower all the time."""
    bench, clock = make_bench(), VirtualClock()
    parts, original, steps = bench.parts(max_model_len=64), paired_steps._engine, []

    def timed(config: object, parts: object, block_size: int, **others: object) -> Engine:
        engine = original(config, parts, block_size, **others)  # type: ignore[arg-type]
        step, began = engine.step, list[bool]()

        def slower() -> object:
            steps.append(block_size)
            clock.advance(SECONDS[block_size] * (1 + len(steps) / 1e6) * (1 if began else 50))
            began.append(True)
            return step()

        engine.step = slower  # type: ignore[method-assign, assignment]
        return engine

    monkeypatch.setattr(paired_steps, "_engine", timed)
    found = compare_steps(bench.config, parts, clock, sizes=(16, 8, 4), rows=3, lengths=(20, 7), rounds=2)
    assert set(found["seconds"]) == {"16", "8", "4", "again"} and set(found["cost"]) == {"8", "4", "again"}
    assert found["cost"]["8"]["cost"] == pytest.approx(0.03, abs=1e-4)
    assert found["cost"]["4"]["low"] == pytest.approx(1, abs=1e-4) == found["cost"]["4"]["high"]
    assert found["cost"]["again"]["cost"] == pytest.approx(0, abs=1e-4)
    assert found["seconds"]["16"] == pytest.approx(0.010, rel=1e-3)
    assert steps.count(8) == 3 * 7 and steps.count(16) == 2 * 3 * 7


def test_engines_take_turns_in_being_first(make_bench: MakeBench) -> None:
    """Whoever follows the step of a larger block finds other caches: nobody always does."""
    order: list[int] = []

    class Fake:
        def __init__(self, number: int) -> None:
            self.number, self.left = number, 12

        @property
        def has_work(self) -> bool:
            return self.left > 0

        def step(self) -> None:
            order.append(self.number)
            self.left -= 1

    taken = paired_steps._steps_in_turn([Fake(i) for i in range(3)], VirtualClock())  # type: ignore[misc]
    assert [len(steps) for steps in taken] == [12, 12, 12]
    rounds = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert {first for first, _, _ in rounds} == {0, 1, 2} and len(set(rounds)) == 6
