"""The log's way out: in order, at once, and nobody waits for a reader that does not read."""

import fcntl
import io
import json
import os
import threading
from typing import Any

import pytest

from octavo.server import log_writer
from octavo.server.request_log import Log


class Pipe:
    """A pipe as small as they come, and a log that ends in it."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        self.stream = open(writing, "w", encoding="utf-8")  # noqa: SIM115  # the log goes on writing to it
        self.log = Log.to(self.stream, "json")

    def read(self, until: str) -> list[dict[str, Any]]:
        """The lines up to one with that event."""
        lines: list[dict[str, Any]] = []
        with open(self.reading, "rb") as file:
            for line in file:
                lines.append(json.loads(line))
                if lines[-1]["event"] == until:
                    break
        return lines


def test_lines_are_out_in_order_when_they_have_been_waited_for() -> None:
    pipe = Pipe()
    for number in range(20):
        pipe.log.info("e", number=number)
    pipe.log.wait(60)
    assert [json.loads(line)["number"] for line in os.read(pipe.reading, 1 << 16).splitlines()] == list(range(20))


def test_nobody_waits_for_a_reader_and_lost_lines_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "_MOST", 10_000)
    pipe = Pipe()
    for number in range(3000):
        pipe.log.info("e", number=number)
    pipe.log.wait(0.0)
    found: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: found.extend(pipe.read(until="last")))
    reader.start()
    pipe.log.wait(60)
    pipe.log.error("last")
    reader.join(60)
    assert found.pop()["event"] == "last"
    told = [line for line in found if line["event"] == "log"]
    assert told and all(line["level"] == "warning" for line in told)
    number = 0
    for line in found:
        if line["event"] == "log":
            count, _, words = line["message"].partition(" ")
            assert words == "lines are lost here: nobody read the log"
            number += int(count)
        else:
            assert line["number"] == number, "a gap is told of where it is"
            number += 1
    assert number == 3000


def test_a_log_that_nobody_can_read_any_more_is_no_error() -> None:
    pipe = Pipe()
    os.close(pipe.reading)
    for _ in range(3):
        pipe.log.info("e")
    pipe.log.wait(60)
    assert pipe.log._stream.wait(0.0)  # type: ignore[union-attr]  # which is a LogWriter


@pytest.mark.parametrize("as_json", [True, False])
def test_what_a_terminal_would_act_on_is_escaped(as_json: bool) -> None:
    stream = io.StringIO()
    Log(stream, as_json=as_json).info("request", path="/\x9b31m\x1b[31m\u2028\x7f", model="größer")
    line = stream.getvalue()
    assert line.rstrip("\n").isprintable() and "größer" in line
    assert r"/\u009b31m\u001b[31m\u2028\u007f" in line
