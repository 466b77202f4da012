"""``octavo run-batch``: every line answered, in order, each failure its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from octavo import cli
from octavo.server import batch, errors, grammar_checker
from tests.server.tiny import ROOT, RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def line(name: str, url: str, **body: Any) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def run(model: Path, directory: Path, lines: list[str], *flags: str) -> tuple[int, list[dict[str, Any]]]:
    source, target = directory / "in.jsonl", directory / "out.jsonl"
    source.write_text("\n".join(lines))
    names = ["--served-model-name", "tiny", "--swap-space", "0.01"]
    status = cli.main(["run-batch", "-i", str(source), "-o", str(target), "--model", str(model), *names, *flags])
    assert not (directory / "out.jsonl.part").exists()
    return status, [json.loads(answer) for answer in target.read_text().strip().split("\n") if answer]


def test_answers_are_those_of_the_server_in_the_order_of_the_lines(
    tiny_model: Path, tmp_path: Path, server: RunningServer
) -> None:
    """More lines than are on their way at once, long and short ones mixed."""
    bodies: list[tuple[str, dict[str, Any]]] = []
    for i in range(40):
        drawn = {"max_tokens": (i * 7) % 40 + 1, "seed": i, "temperature": 1.0, "model": "tiny", "ignore_eos": True}
        say = {"messages": [{"role": "user", "content": f"word {i}"}], "logprobs": True, "n": 2}
        bodies.append((CHAT, {**say, **drawn}) if i % 2 else (COMPLETIONS, {"prompt": f"word {i}", "logprobs": 1, **drawn}))
    lines = [line(f"line-{i}", url, **body) for i, (url, body) in enumerate(bodies)]
    status, answers = run(tiny_model, tmp_path, lines, "--max-num-seqs", "2")
    assert status == 0 and [answer["custom_id"] for answer in answers] == [f"line-{i}" for i in range(40)]
    for answer, (url, body) in zip(answers, bodies, strict=True):
        response = answer["response"]
        assert response["status_code"] == 200 and answer["error"] is None
        assert response["body"]["id"].endswith(response["request_id"])
        assert response["body"]["choices"] == httpx.post(f"{server.url}{url}", json=body, timeout=60).json()["choices"]
    assert len({answer["id"] for answer in answers}) == 40


def test_a_lines_failure_is_its_own(tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [
        line("good", COMPLETIONS, prompt="x", max_tokens=2),
        line("hot", COMPLETIONS, prompt="x", temperature=9),
        "",
        line("other", CHAT, messages=[{"role": "user", "content": "x"}], model="other"),
        line("stream", COMPLETIONS, prompt="x", stream=True),
        line("url", "/metrics"),
        json.dumps({"custom_id": "get", "method": "GET", "url": COMPLETIONS, "body": {}}),
        json.dumps({"custom_id": "list", "url": COMPLETIONS, "body": [1]}),
        "{nonsense",
        json.dumps({"url": COMPLETIONS, "body": {}}),
        line("last", COMPLETIONS, prompt="x", max_tokens=2),
        line("streams", COMPLETIONS, prompt="x", stream=1),
    ]
    status, answers = run(tiny_model, tmp_path, lines)
    assert status == 1
    codes = [(answer["custom_id"], answer["response"] and answer["response"]["status_code"]) for answer in answers]
    assert codes == [
        ("good", 200), ("hot", 400), ("other", 404), ("stream", 400), ("url", 400), ("get", 400), ("list", 400),
        (None, None), (None, None), ("last", 200), ("streams", 400),
    ]  # fmt: skip
    for answer in answers:
        failed = answer["response"] is None or answer["response"]["status_code"] != 200
        assert (answer["error"] is not None) is failed
    assert answers[1]["error"] == answers[1]["response"]["body"]["error"] and answers[1]["error"]["param"] == "temperature"
    assert "line 9: " in answers[7]["error"]["message"] and "custom_id" in answers[8]["error"]["message"]
    told = capfd.readouterr().err
    assert "request" not in told, "lines are not logged"
    failed = sum(answer["error"] is not None for answer in answers)
    assert failed and f"octavo: {failed} of {len(answers)} lines failed" in told


def test_more_new_grammars_than_may_wait_are_all_answered(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_checker, "_MOST_FIRST_EACH", 8)
    forms = [{"structured_outputs": {"json": {"type": "array", "minItems": i, "maxItems": i}}} for i in range(24)]
    lines = [line(str(i), COMPLETIONS, prompt="x", max_tokens=2, **form) for i, form in enumerate(forms)]
    status, answers = run(tiny_model, tmp_path, lines)
    assert status == 0 and [answer["response"]["status_code"] for answer in answers] == [200] * 24


def test_a_line_waits_for_room_but_not_for_ever_another_engine(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = {"busy": [errors.busy(0)] * 9, "lost": [errors.engine_restarted()] * 9}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        left = refusals[json.loads((await receive())["body"])["prompt"]]
        status, body = (503, left.pop().body()) if left else (200, b"{}")
        await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", b"0")]})
        await send({"type": "http.response.body", "body": body})

    monkeypatch.setattr(batch, "build_app", lambda service: app)
    _, answers = run(tiny_model, tmp_path, [line(name, COMPLETIONS, prompt=name) for name in refusals])
    assert [answer["response"]["status_code"] for answer in answers] == [200, 503]
    assert answers[1]["error"]["type"] == "engine_restarted" and len(refusals["lost"]) == 6


def test_an_empty_file_is_answered(tiny_model: Path, tmp_path: Path) -> None:
    assert run(tiny_model, tmp_path, []) == (0, [])


def test_what_cannot_begin_is_one_line(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.jsonl"
    assert cli.main(["run-batch", "-i", str(file), "-o", "x", "--model", str(tiny_model)]) == 64
    assert "--input-file" in capsys.readouterr().err
    file.write_text("")
    assert cli.main(["run-batch", "-i", str(file), "-o", str(tmp_path / "no" / "x"), "--model", str(tiny_model)]) == 64
    assert "--output-file" in capsys.readouterr().err
    assert cli.main(["run-batch", "-i", str(file), "-o", str(tmp_path / "x"), "--model", str(tmp_path)]) == 64
    assert "octavo: error: " in capsys.readouterr().err
    assert cli.main(["run-batch", "--model", str(tiny_model)]) == 64
    assert not (tmp_path / "x").exists()


def engine_of(parent: int) -> int | None:
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
            if fields and int(fields[1]) == parent and b"octavo.server.engine_process" in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    return None


def test_an_engine_that_dies_loses_no_line(tiny_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        "\n".join(line(str(i), COMPLETIONS, prompt=f"word {i}", max_tokens=400, ignore_eos=True, n=2) for i in range(100))
    )
    command = [sys.executable, "-m", "octavo.cli", "run-batch", "-i", str(source), "-o", str(target), str(tiny_model)]
    process = subprocess.Popen(
        [*command, "--swap-space", "0.01", "--max-num-seqs", "4"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        part, deadline = tmp_path / "out.jsonl.part", time.monotonic() + 60
        while not (part.exists() and part.stat().st_size):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        engine = engine_of(process.pid)
        assert engine is not None
        os.kill(engine, signal.SIGKILL)
        assert process.wait(120) == 0
    finally:
        process.kill()
    answers = [json.loads(answer) for answer in target.read_text().strip().split("\n") if answer]
    assert [answer["custom_id"] for answer in answers] == [str(i) for i in range(100)]
    assert {answer["response"]["status_code"] for answer in answers} == {200}
