"""What servers stream, ours or others', as ``octavo chat`` and ``octavo complete`` read it."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from octavo import cli
from tests.serving import serving

WHOLE = b'data: {"choices": [{"text": "one", "delta": {"content": "one"}}]}\n\ndata: [DONE]\n\n'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of a server that sends these bytes and closes."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.wfile.write(answer)

    with serving(Handler) as address:
        yield f"{address}/v1"


def asked(command: str, stream: bytes, *, head: bytes = b"HTTP/1.0 200 OK\r\n\r\n") -> int:
    model = ["m"] if command == "chat" else ["--model-name", "m"]
    with answering(head + stream) as url:
        return cli.main([command, *model, "--url", url, "--quick", "hello"])


@pytest.mark.parametrize("command", ["chat", "complete"])
@pytest.mark.parametrize(
    "stream",
    [
        WHOLE,
        WHOLE.replace(b"data: ", b"data:"),
        WHOLE.replace(b"\n", b"\r\n"),
        b": a comment\n\ndata:\n\nevent: x\n" + WHOLE,
        b'data: {"error": null, "choices": null}\n\n' + WHOLE,
        b'data: {"choices": [{"delta": null, "text": null}]}\n\n' + WHOLE,
        b'data: {"choices": [{"delta": {"content": null}}]}\n\n' + WHOLE,
        b'data: {"usage": {}}\n\n' + WHOLE,
    ],
)
def test_streams_of_every_kind(command: str, stream: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(command, stream) == 0
    assert capsys.readouterr().out == "one\n"


@pytest.mark.parametrize("command", ["chat", "complete"])
@pytest.mark.parametrize(
    "end, message",
    [
        (b"", "broke before the end of the answer"),
        (b'data: {"error": "no more"}\n\n', "the server stopped: no more"),
        (b'data: {"error": {"message": "no more"}}\n\n', "the server stopped: no more"),
        (b'data: {"choices": [[]]}\n\n', "broke: Expected `object`, got `array`"),
        (b"data: {\n\n", "broke: "),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(
    command: str, end: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(command, WHOLE.replace(b"data: [DONE]\n\n", end)) == 64
    out, err = capsys.readouterr()
    assert out == "one\n", "what had come"
    assert err.startswith("octavo: error: ") and message in err


def test_a_body_that_breaks_off_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    event = WHOLE.partition(b"data: [DONE]")[0]
    assert asked("complete", b"%x\r\n%b\r\n" % (len(event), event), head=CHUNKED) == 64
    assert "broke before the end of the answer" in capsys.readouterr().err
