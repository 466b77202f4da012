"""The commands at work: doctor, generate, bench and chat, in process and against a server."""

import errno
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import cli
from octavo.bench import throughput
from octavo.commands import chat
from octavo.config import ConfigError
from octavo.sampling_params import ParameterError
from tests.server.tiny import ROOT, RunningServer, write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def url(model: str) -> Iterator[str]:
    server = RunningServer(model, "--served-model-name", "tiny", "--api-key", "key").wait_ready()
    yield f"{server.url}/v1"
    server.kill()


def test_doctor_says_what_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for words in ("compute threads", "GiB of memory available", "generic", "chosen: ", "cache: ", "smollm2: ", "numpy "):
        assert words in out
    for line in out.splitlines():
        assert "not usable" not in line or line.partition("not usable: ")[2], "a set that is not usable says why"


def test_doctor_says_what_it_cannot_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def packed() -> str:
        assert cli.main(["doctor"]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if "packed by" in line)

    assert ": 0.0 GiB in " in packed()
    directory = tmp_path / "octavo" / "packed"
    directory.mkdir(parents=True)
    with (directory / ".m.safetensors.1.part").open("wb") as file:
        file.truncate(3 << 29)
    assert ": 1.5 GiB in " in packed(), "what is left of a file counts"
    (directory / "m.safetensors").symlink_to("nowhere")
    assert ": unknown (No such file or directory) in " in packed()

    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "smollm2: unknown: Permission denied" in out and ": unknown (Permission denied) in " in out


@pytest.mark.parametrize("arguments", [["doctor"], ["--help"], ["generate"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str], model: str) -> None:
    if arguments == ["generate"]:
        arguments = ["generate", model, "-p", "one", "--max-tokens", "2", "--swap-space", "0"]
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "octavo.cli", *arguments]
        ended = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert ended.returncode == 64
    assert ended.stderr == "octavo: error: output: No space left on device\n"


def test_generate_prints_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", model, "-p", "one", "-p", "two", "--temperature", "0", "--max-tokens", "8", "--swap-space", "0"]
    assert cli.main([*arguments, "--json", "--n", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == ["one", "two"]
    assert all(len(set(line["texts"])) == 1 and len(line["texts"]) == 2 for line in lines)
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == "".join(f"{line['texts'][0]}\n" for line in lines)


def test_generate_reads_standard_input(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one"))
    assert cli.main(["generate", model, "--max-tokens", "4", "--swap-space", "0"]) == 0
    assert capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(["generate", model]) == 64


def test_bench_prints_its_numbers(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    flags = ["--num-prompts", "2", "--input-len", "8", "--output-len", "4", "--repeat", "2", "--swap-space", "0"]
    assert cli.main(["bench", "throughput", "--model", model, *flags, "--json", "--output-json", str(file)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads(file.read_text()) == result
    assert {"output_tokens_per_s", "seconds", "kv_blocks_peak", "token_slots_used_fraction"} <= set(result)
    first, second = result["seconds_all"]
    assert first <= result["seconds"] <= second and result["seconds"] == pytest.approx((first + second) / 2, abs=2e-4)
    assert result["spread"] >= 0
    assert cli.main(["bench", "throughput", "--model", model, *flags]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Throughput: ") and "Median of 2 runs: " in out and ", spread " in out


def test_bench_says_what_is_owed_to_guesses(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-prompts", "1", "--input-len", "8", "--output-len", "8", "--repeat", "1", "--swap-space", "0"]
    assert cli.main(["bench", "throughput", "--model", model, *flags, "--spec-method", "none", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["draft_tokens"] == result["accepted_draft_tokens"] == 0
    without = throughput.text(throughput.ThroughputResult(**result))
    guessed = throughput.text(throughput.ThroughputResult(**{**result, "draft_tokens": 9, "accepted_draft_tokens": 7}))
    assert guessed == without + "\nTokens guessed in all runs: 7 of 9 were right (--spec-method none: no guesses)"


def test_chat_in_this_process(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chat", model, "--quick", "hello", "--max-tokens", "5", "--temperature", "0", "--swap-space", "0"]) == 0
    assert len(capsys.readouterr().out) > 1


def test_chat_with_a_server_is_the_same_chat(model: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    say = ["-q", "hello", "--max-tokens", "12", "--temperature", "0"]
    assert cli.main(["chat", model, *say, "--swap-space", "0"]) == 0
    here = capsys.readouterr().out
    for place in (url, url.removesuffix("/v1"), f"{url.removesuffix('/v1')}/"):
        assert cli.main(["chat", "--url", place, "--api-key", "key", *say]) == 0
        assert capsys.readouterr().out == here


def test_a_server_completes_as_this_process_does(
    model: str, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = ["--max-tokens", "12", "--temperature", "0"]
    assert cli.main(["generate", model, "-p", "hello", *sampling, "--swap-space", "0"]) == 0
    here = capsys.readouterr().out
    assert cli.main(["complete", "--url", url, "--api-key", "key", "-q", "hello", *sampling]) == 0
    assert capsys.readouterr().out == here
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\nhello\n"))
    assert cli.main(["complete", "--url", url, "--api-key", "key", *sampling]) == 0
    assert capsys.readouterr().out == here * 2
    assert cli.main(["complete", "--url", url, "--api-key", "key", "-q", "hello", "--model-name", "other"]) == 64
    assert "does not exist" in capsys.readouterr().err


def test_a_servers_refusal_is_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = url.removeprefix("http://").removesuffix("/v1")
    assert cli.main(["chat", "--url", url, "--quick", "hello"]) == 64
    err = capsys.readouterr().err
    assert err.startswith(f"octavo: error: {place} answered 401: ") and err.endswith(" (--api-key)\n")
    assert cli.main(["chat", "other", "--url", url, "--api-key", "key", "--quick", "hello"]) == 64
    assert capsys.readouterr().err.startswith(f"octavo: error: {place} answered 404: The model `other` does not exist")


@pytest.mark.parametrize("arguments", [["chat"], ["chat", "m"], ["complete"]])
def test_a_server_that_is_not_there_is_said_not_to_be_reached(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*arguments, "--url", "http://127.0.0.1:1/v1", "--quick", "hello"]) == 64
    err = capsys.readouterr().err
    assert err.startswith("octavo: error: cannot reach 127.0.0.1:1: ")
    assert err.endswith("; start a server with octavo serve MODEL, or give another --url\n")


class Echo:
    """Answers with how many messages it has heard; the third time it is interrupted."""

    def __init__(self) -> None:
        self.heard: list[list[dict[str, str]]] = []
        self.closed = 0

    def answer(self, messages: list[dict[str, str]]) -> Iterator[str]:
        self.heard.append([dict(message) for message in messages])
        try:
            yield f"{len(messages)} "
            if len(self.heard) == 3:
                raise KeyboardInterrupt
            yield "messages"
        finally:
            self.closed += 1


def test_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["one", "", "two", "three", "/reset", "four", "/quit", "never"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    partner = Echo()
    opening = [{"role": "system", "content": "be brief"}]
    assert chat._converse(partner, opening) == 0
    assert capsys.readouterr().out.splitlines() == ["2 messages", "4 messages", "6  [stopped]", "2 messages"]
    assert [message["content"] for message in partner.heard[2]] == [
        "be brief",
        "one",
        "2 messages",
        "two",
        "4 messages",
        "three",
    ]
    assert partner.heard[3] == [*opening, {"role": "user", "content": "four"}]
    assert partner.closed == 4


def test_what_looks_like_a_command_is_not_said_to_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["/help", "/exit", "/etc/hosts", "/tmp is full", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    partner = Echo()
    assert chat._converse(partner, []) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [chat.HELP, "1 messages", "3 messages"]
    assert err.splitlines() == [f"no command /exit: {chat.HELP}"]


class Forgetful:
    """Has room for two messages; says a part of the third answer that it cannot give."""

    def __init__(self) -> None:
        self.heard: list[list[str]] = []

    def answer(self, messages: list[dict[str, str]]) -> Iterator[str]:
        self.heard.append([message["content"] for message in messages])
        if len(self.heard) == 3:
            yield "a part"
        if len(messages) > 2:
            raise (ConfigError if len(self.heard) == 3 else ParameterError)("no room")
        yield "yes"


def test_a_full_context_ends_no_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["one", "two", "three", "/reset", "four", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    monkeypatch.setattr("sys.stdin", Terminal())
    partner = Forgetful()
    assert chat._converse(partner, []) == 0
    assert partner.heard == [["one"], ["one", "yes", "two"], ["one", "yes", "three"], ["four"]]
    out, err = capsys.readouterr()
    assert out.splitlines() == [chat.HELP, "yes", "a part", "yes"]
    assert err.splitlines() == ["octavo: error: no room", "/reset begins a new conversation"] * 2


_INTERRUPTED = """
import readline, signal, sys, threading, time
from octavo.commands.chat import ask

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where tests run in the background, with it ignored
def interrupt():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # not the thread that waits

threading.Thread(target=interrupt).start()
try:
    ask("> ")
except KeyboardInterrupt:
    sys.exit(3)
"""


def test_an_interrupt_that_does_not_interrupt_the_wait_is_noticed() -> None:
    inner, outer = pty.openpty()
    with os.fdopen(inner, "rb"), os.fdopen(outer, "r+b", buffering=0) as terminal:
        ended = subprocess.run(
            [sys.executable, "-c", _INTERRUPTED], stdin=terminal, stdout=terminal, timeout=20, cwd=ROOT, check=False
        )
    assert ended.returncode == 3


def test_an_error_ends_a_conversation_that_is_no_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["one", "two", "three"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    with pytest.raises(ParameterError, match="no room"):
        chat._converse(Forgetful(), [])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_end_of_input_ends_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(prompt: str = "") -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", no_more)
    assert chat._converse(Echo(), []) == 0


def test_an_instruction_set_that_is_not_here(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that this machine has not and, for a machine that has them all, one that nobody has."""
    from octavo import _native

    for isa in [name for name, (usable, _) in _native.cpu_features().items() if not usable]:
        assert cli.main(["generate", model, "-p", "x", "--isa", isa, "--swap-space", "0"]) == 64
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("octavo: error: ") and isa in line
    assert cli.main(["generate", model, "-p", "x", "--isa", "mmx"]) == 64
    assert "--isa: 'mmx' is not one of auto, generic" in capsys.readouterr().err


def test_generate_with_a_broken_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_tiny_llama(tmp_path / "m", architectures=["FooForCausalLM"], model_type="foo")
    assert cli.main(["generate", str(directory), "-p", "x"]) == 64
    assert "FooForCausalLM" in capsys.readouterr().err
