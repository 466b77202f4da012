"""Whose grammar is compiled next, who is turned away and until when, and what happens when the compiling process is lost."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.sampling_params import StructuredOutputsParams
from octavo.server.errors import ApiError
from octavo.server.grammar_checker import FIRST_SECONDS, GrammarChecker
from octavo.server.grammar_lanes import GrammarProcess, Lane, LaneFull, ProcessClosed
from octavo.server.grammar_process import Question, Verdict
from octavo.server.main import API_NICENESS
from octavo.server.structured import Wanted
from octavo.structured.vocabulary import Vocabulary
from tests.server.tiny import grammar_pids

VOCABULARY = Vocabulary([bytes([i]) for i in range(256)] + [b""], [256], [256])
SLOW = {"type": "integer", "multipleOf": 9999991, "minimum": 0, "maximum": 10**18}


def form(text: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=text)


def question(wanted: StructuredOutputsParams, **limits: float) -> Question:
    return Question(wanted=wanted, **{"seconds": 2.0, "wall_seconds": 60.0, **limits})  # type: ignore[arg-type]


class Asked:
    """Answers when it is told to, and remembers the order of the questions."""

    def __init__(self) -> None:
        self.order: list[str | None] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, asked: Question) -> Verdict:
        self.order.append(asked.wanted.regex)
        self.begun.set()
        assert self.go_on.wait(30)
        return Verdict()

    def lane(self, *, most: int = 100, most_each: int = 100, seconds: float = 2.0) -> Lane:
        return Lane(self, seconds=seconds, wall_seconds=30.0, niceness=0, most=most, most_each=most_each)


def test_clients_take_turns() -> None:
    asked = Asked()
    lane = asked.lane()
    first = lane.submit(form("busy"), "")
    assert asked.begun.wait(30)
    answers = [lane.submit(form(f"many{i}"), "many") for i in range(3)]
    answers += [lane.submit(form("few0"), "few"), lane.submit(form("one0"), "one"), lane.submit(form("few1"), "few")]
    asked.go_on.set()
    assert all(answer.result(30) == Verdict() for answer in [first, *answers])
    assert asked.order == ["busy", "many0", "few0", "one0", "many1", "few1", "many2"]
    lane.close()


def test_a_client_cannot_take_all_places_and_all_cannot_take_more_than_there_are() -> None:
    asked = Asked()
    lane = asked.lane(most=4, most_each=3, seconds=2.5)
    lane.submit(form("busy"), "")
    assert asked.begun.wait(30)
    for i in range(3):
        lane.submit(form(f"a{i}"), "a")
    with pytest.raises(LaneFull) as full:
        lane.submit(form("a3"), "a")
    assert full.value.retry_after == 10, "four of 2.5 seconds: three that wait and the one that is being compiled"
    lane.submit(form("b0"), "b")
    with pytest.raises(LaneFull):
        lane.submit(form("c0"), "c")
    asked.go_on.set()
    lane.close()


def test_the_wait_is_measured() -> None:
    asked = Asked()
    asked.go_on.set()
    lane = asked.lane(seconds=100.0)
    before = lane.retry_after()
    for i in range(30):
        lane.submit(form(f"{i}"), "").result(30)
    assert before == 100 and lane.retry_after() <= 2
    lane.close()


def test_an_error_is_its_questions_alone() -> None:
    def ask(asked: Question) -> Verdict:
        if asked.wanted.regex == "bad":
            raise RuntimeError("lost")
        return Verdict()

    lane = Lane(ask, seconds=1.0, wall_seconds=1.0, niceness=0, most=9, most_each=9)
    bad, good = lane.submit(form("bad"), ""), lane.submit(form("good"), "")
    assert isinstance(bad.exception(30), RuntimeError) and good.result(30) == Verdict()
    lane.close()


def processes(others: Sequence[int] = ()) -> list[int]:
    """Those of grammars that this process has started, without ``others``, which earlier tests may have left to it."""
    return [pid for pid in grammar_pids(os.getpid()) if pid not in others]


def test_what_ends_a_compilation() -> None:
    process = GrammarProcess(lambda: VOCABULARY, lanes=2)
    assert process.ask(0, question(form("a+"))) == Verdict()
    assert "unclosed" in str(process.ask(0, question(form("(["))).message)
    slow = StructuredOutputsParams(json=SLOW)
    assert process.ask(1, question(slow, seconds=0.05)).cut == "time"
    assert process.ask(1, question(slow, seconds=30.0, wall_seconds=0.05)).cut == "late"
    chain = "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(3000)) + '\nr3000: "a"'
    assert process.ask(0, question(StructuredOutputsParams(grammar=chain))).cut == "died"
    assert process.ask(0, question(form("b+"))) == Verdict()
    process.close()
    with pytest.raises(ProcessClosed):
        process.ask(0, question(form("a+")))


def test_a_process_that_is_lost_has_a_successor() -> None:
    others = processes()
    process = GrammarProcess(lambda: VOCABULARY, lanes=2)
    assert process.ask(0, question(form("a+"))) == process.ask(1, question(form("a+"))) == Verdict()
    before = processes(others)
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert process.ask(1, question(form("b+"))) == process.ask(0, question(form("b+"))) == Verdict()
    after = processes(others)
    assert len(after) == 2 and not set(before) & set(after)
    process.close()
    wait_until_gone(after)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() and _state(pid) != "Z" for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_closing_ends_what_is_being_compiled() -> None:
    others = processes()
    process = GrammarProcess(lambda: VOCABULARY, lanes=2)
    process.ask(0, question(form("a+")))
    slow = question(StructuredOutputsParams(json=SLOW), seconds=60.0)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            process.ask(1, slow)
        except ProcessClosed as error:
            errors.append(error)

    lanes = processes(others)  # before one of them has begun to compile
    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + 30
    while not (compiling := [pid for pid in children(lanes) if pid not in lanes]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.close()
    thread.join(30)
    assert len(errors) == 1
    wait_until_gone([*lanes, *compiling])


def test_closing_while_the_process_starts_is_no_error_of_it() -> None:
    def vocabulary() -> Vocabulary:
        process.close()
        return VOCABULARY

    process = GrammarProcess(vocabulary, lanes=2)
    with pytest.raises(ProcessClosed):
        process.ask(0, question(form("a+")))


def test_a_closed_lane_takes_no_question() -> None:
    asked = Asked()
    lane = asked.lane()
    lane.close()
    with pytest.raises(ProcessClosed):
        lane.submit(form("late"), "")
    assert lane._count == 0 and not lane._waiting


@pytest.mark.usefixtures("many_files")
def test_the_numbers_of_the_sockets_do_not_matter() -> None:
    process = GrammarProcess(lambda: VOCABULARY, lanes=2)
    assert process.ask(0, question(form("a+"))) == process.ask(1, question(form("a+"))) == Verdict()
    assert process.ask(1, question(StructuredOutputsParams(json=SLOW), seconds=30.0, wall_seconds=0.05)).cut == "late"
    process.close()


@pytest.mark.parametrize("niceness", [0, 10, 19])
def test_a_compilation_gives_way(niceness: int) -> None:
    """Its thread counts, and that is made after the priority is lowered."""
    process = GrammarProcess(lambda: VOCABULARY, lanes=2)
    process.ask(0, question(form("a+")))
    slow = question(StructuredOutputsParams(json=SLOW), seconds=60.0, niceness=niceness)

    def ask() -> None:
        with contextlib.suppress(ProcessClosed):
            process.ask(1, slow)

    lanes = processes()  # before one of them has begun to compile
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    deadline, found = time.monotonic() + 30, list[int]()
    while len(found) < 2 and time.monotonic() < deadline:
        found = [nice for pid in children(lanes) if pid not in lanes for nice in priorities(pid)]
        time.sleep(0.01)
    process.close()
    thread.join(30)
    assert found == [max(niceness, os.getpriority(os.PRIO_PROCESS, 0))] * 2


def test_the_longer_it_may_take_the_more_it_gives_way() -> None:
    checker = GrammarChecker(lambda: VOCABULARY)
    assert API_NICENESS < checker._first._niceness < checker._long._niceness == 19
    checker.close()


def priorities(pid: int) -> list[int]:
    """Of each thread."""
    with contextlib.suppress(OSError):
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(stat.rpartition(")")[2].split()[16]) for stat in stats]
    return []


def children(pids: list[int]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) in pids:
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


class Counted(GrammarChecker):
    """Counts what each lane is asked."""

    def __init__(self, verdicts: list[Verdict]) -> None:
        super().__init__(lambda: VOCABULARY)
        self.asked: list[float] = []
        for lane in (self._first, self._long):
            lane._ask = self._answer
        self._scripted = verdicts

    def _answer(self, asked: Question) -> Verdict:
        self.asked.append(asked.seconds)
        return self._scripted.pop(0)


def test_the_short_time_comes_first_and_only_once() -> None:
    async def scenario() -> list[float]:
        checker = Counted([Verdict(cut="time"), Verdict(cut="late"), Verdict()])
        wanted = Wanted(form("a"), "guided_regex")
        with pytest.raises(ApiError) as caught:
            await checker.check(wanted)
        assert caught.value.status == 503
        await checker.check(wanted)
        await checker.check(wanted)
        return checker.asked

    assert asyncio.run(scenario()) == [FIRST_SECONDS, 2.0, 2.0]


def test_one_grammar_asked_about_by_many_is_one_question() -> None:
    async def scenario() -> list[Any]:
        checker = Counted([Verdict(cut="time"), Verdict(cut="time")])
        checks = (checker.check(Wanted(form("a"), f"field{i}")) for i in range(50))
        return [checker.asked, *await asyncio.gather(*checks, return_exceptions=True)]

    asked, *errors = asyncio.run(scenario())
    assert len(asked) == 2
    assert all(isinstance(error, ApiError) and error.status == 400 for error in errors)
    assert [error.param for error in errors] == [f"field{i}" for i in range(50)]
