"""A load on a server: what is sent and when, what a client sees, and what is said of it."""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import cli
from octavo.bench.serve import driver, statistics, table
from octavo.bench.serve.client import LoadClient, Outcome
from octavo.bench.serve.data import MAX_PROMPT, MAX_TOTAL, Prompt, arrivals, make_prompts, make_work
from octavo.bench.serve.driver import Driver, Run
from octavo.bench.serve.options import ServeOptions, SweepOptions
from octavo.bench.serve.tokens import ServerApi, ServerTokens
from octavo.config import ConfigError
from octavo.tokenizer import Tokenizer
from tests.server.tiny import RunningServer, write_tiny_llama
from tests.serving import serving
from tests.tokenizer.small import byte_level_directory

RESULT_KEYS = [
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
]
DETAILS = ["input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts", "errors"]


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chunked(*pieces: bytes, status: str = "200 OK", more: str = "") -> list[bytes]:
    head = f"HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n{more}\r\n".encode()
    return [head, *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]


@asynccontextmanager
async def scripted(answer: Callable[[int], Sequence[bytes]]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that answers its n-th request with these bytes, with a pause between them; an empty piece closes."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            asked.append(head + await reader.readexactly(length))
            for piece in answer(len(asked)):
                if not piece:
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.005)

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()


def send(answer: Callable[[int], Sequence[bytes]], times: int = 1) -> list[Outcome]:
    async def run() -> list[Outcome]:
        async with scripted(answer) as (port, _):
            client = LoadClient(f"http://127.0.0.1:{port}", "/v1/completions", headers={})
            outcomes = [await client.send(b"{}") for _ in range(times)]
            client.close()
            return outcomes

    return asyncio.run(asyncio.wait_for(run(), 20))


def test_events_are_read_however_they_are_cut() -> None:
    stream = event(choices=[{"text": "a"}]) + event(choices=[{"text": "bé"}]).replace(b"\n", b"\r\n") + b": keep-alive\n\n"
    stream += event(choices=[], usage={"completion_tokens": 2, "prompt_tokens": 7}) + b"data: [DONE]\n\n"
    for size in (1, 3, 17, len(stream)):
        (outcome,) = send(lambda _, size=size: chunked(*(stream[i : i + size] for i in range(0, len(stream), size))))  # type: ignore[misc]
        assert not outcome.error
        assert (outcome.text, outcome.output_tokens, outcome.prompt_tokens) == ("abé", 2, 7)
        assert outcome.ttft > 0 and len(outcome.itl) == 1 and outcome.latency == pytest.approx(outcome.ttft + sum(outcome.itl))


def test_chat_deltas_and_reasoning_are_text() -> None:
    pieces = [{"role": "assistant", "content": ""}, {"reasoning": "hm "}, {"content": "yes"}]
    (outcome,) = send(lambda _: chunked(*(event(choices=[{"index": 0, "delta": delta}]) for delta in pieces)))
    assert outcome.text == "hm yes" and outcome.output_tokens is None


@pytest.mark.parametrize(
    "answer, message",
    [
        (chunked(b'{"error": {"message": "too long", "code": 400}}', status="400 Bad Request"), "400: too long"),
        (chunked(b'{"error": "Unauthorized"}', status="401 Unauthorized"), "401: Unauthorized"),
        (chunked(b"<html>", status="502 Bad Gateway"), "502: <html>"),
        (chunked(event(choices=[{"text": "a"}]), event(error={"message": "engine died"})), "engine died"),
        (chunked(b"data: [DONE]\n\n"), "the answer had no tokens"),
        ([*chunked(event(choices=[{"text": "a"}]))[:2], b""], "the server closed the connection"),
        ([b"HTTP/1.1 nonsense\r\n\r\n"], "the answer cannot be read"),
        (chunked(b"data: {nonsense}\n\n"), "the answer cannot be read"),
    ],
)
def test_failures_are_the_requests_own(answer: list[bytes], message: str) -> None:
    (outcome,) = send(lambda _: answer)
    assert outcome.error.startswith(message)


def test_an_answer_may_end_with_its_connection() -> None:
    """Of a server that gives no length; without its last event nobody knows whether that was all."""
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    whole, cut = send(lambda n: [head, event(choices=[{"text": "a"}]), b"data: [DONE]\n\n" if n == 1 else b"", b""], times=2)
    assert (whole.text, whole.error) == ("a", "")
    assert cut.error == "the server closed the connection"


def test_a_connection_is_used_again_and_its_loss_is_no_failure() -> None:
    good = chunked(event(choices=[{"text": "a"}]))

    def answer(number: int) -> list[bytes]:
        return [*good, b""] if number == 2 else good  # closed just after an answer that left it open

    assert [outcome.error for outcome in send(answer, times=4)] == [""] * 4


def test_a_server_that_is_not_there_is_a_failure() -> None:
    async def run() -> Outcome:
        async with scripted(lambda _: []) as (port, _):
            pass
        return await LoadClient(f"http://127.0.0.1:{port}", "/x", headers={}).send(b"{}")

    assert asyncio.run(run()).error


def test_arrivals_have_their_rate_and_their_burstiness() -> None:
    assert arrivals(5, math.inf, burstiness=1.0, seed=0) == [0.0] * 5
    spreads = []
    for burstiness in (0.2, 1.0, 20.0):
        due = np.asarray(arrivals(4000, 8.0, burstiness=burstiness, seed=3))
        gaps = np.diff(due)
        assert due[-1] == pytest.approx(500.0) and (gaps >= 0).all()
        spreads.append(gaps.std() / gaps.mean())
    assert spreads == pytest.approx([0.2**-0.5, 1.0, 20**-0.5], rel=0.12)
    assert arrivals(50, 2.0, burstiness=1.0, seed=1) == arrivals(50, 2.0, burstiness=1.0, seed=1)
    assert arrivals(50, 2.0, burstiness=1.0, seed=1) != arrivals(50, 2.0, burstiness=1.0, seed=2)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(byte_level_directory(tmp_path_factory.mktemp("tokenizer")))


def lengths(prompts: Sequence[Prompt], tokens: Tokenizer) -> list[int]:
    return [len(tokens.encode(prompt.text, add_special_tokens=False)) for prompt in prompts]


def test_random_prompts_have_the_lengths_asked_for(tokens: Tokenizer) -> None:
    options = ServeOptions(
        num_prompts=30, random_input_len=40, random_output_len=10, random_range_ratio=0.5, random_prefix_len=20
    )
    prompts = make_prompts(options, tokens, seed=1)
    assert [prompt.input_len for prompt in prompts] == lengths(prompts, tokens)
    assert all(40 <= prompt.input_len <= 80 and 5 <= prompt.output_len <= 15 for prompt in prompts)
    assert len({prompt.input_len for prompt in prompts}) > 5
    assert len({prompt.text for prompt in prompts}) == 30 and len({prompt.text[:20] for prompt in prompts}) == 1
    assert prompts == make_prompts(options, tokens, seed=1) != make_prompts(options, tokens, seed=2)


def test_prefixes_are_repeated(tokens: Tokenizer) -> None:
    options = ServeOptions(
        dataset_name="prefix_repetition", num_prompts=20, prefix_repetition_num_prefixes=4, prefix_repetition_prefix_len=30
    )
    prompts = make_prompts(options, tokens, seed=0)
    assert len({prompt.text[:30] for prompt in prompts}) == 4 and len({prompt.text for prompt in prompts}) == 20
    assert all(abs(prompt.input_len - 286) <= 2 for prompt in prompts)


def test_sharegpt_prompts_fit_and_a_small_file_is_used_again(
    tokens: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def conversation(question: str, answer: str, speaker: str = "human") -> dict[str, Any]:
        return {"id": "x", "conversations": [{"from": speaker, "value": question}, {"from": "gpt", "value": answer}]}

    file = tmp_path / "sharegpt.json"
    good = [conversation(f"question number {i} of them all", "an answer with words " * (i + 1)) for i in range(3)]
    bad = [
        conversation("hi", "ok"),
        conversation("word " * 6000, "answer " * 9),
        conversation("one two three", "x" * 50, "gpt"),
    ]
    file.write_text(json.dumps([*good, *bad]))
    options = ServeOptions(dataset_name="sharegpt", dataset_path=str(file), num_prompts=7)
    prompts = make_prompts(options, tokens, seed=0)
    assert {prompt.text for prompt in prompts} == {each["conversations"][0]["value"] for each in good} and len(prompts) == 7
    assert "has 3 conversations that fit, for 7 requests" in capsys.readouterr().err
    one = ServeOptions(dataset_name="sharegpt", dataset_path=str(file), num_prompts=1, num_warmups=1)
    first, second = make_work(one, tokens, runs=2)
    assert [*first.prompts, *first.warmups, *second.prompts, *second.warmups] == prompts[:4]
    make_prompts(one, tokens, seed=0)
    assert capsys.readouterr().err.count("warning") == 1, "of a file that has enough there is none"
    assert all(prompt.input_len <= MAX_PROMPT and prompt.input_len + prompt.output_len <= MAX_TOTAL for prompt in prompts)
    assert len({prompt.output_len for prompt in prompts}) == 3
    fixed = ServeOptions(dataset_name="sharegpt", dataset_path=str(file), num_prompts=2, sharegpt_output_len=9)
    assert [prompt.output_len for prompt in make_prompts(fixed, tokens, seed=0)] == [9, 9]
    file.write_text(json.dumps(bad[:1]))
    with pytest.raises(ConfigError, match="no conversation fits"):
        make_prompts(options, tokens, seed=0)


@pytest.mark.parametrize("dataset_name", ["random", "prefix_repetition"])
def test_warmups_and_runs_have_nothing_in_common(dataset_name: Any, tokens: Tokenizer) -> None:
    options = ServeOptions(dataset_name=dataset_name, num_prompts=12, num_warmups=5, random_input_len=99, random_prefix_len=40)
    first, second = make_work(options, tokens, runs=2)
    (other,) = make_work(msgspec.structs.replace(options, seed=1), tokens)
    several = [first.prompts, first.warmups, second.prompts, second.warmups, other.prompts, other.warmups]
    assert [len(prompts) for prompts in several] == [12, 5] * 3
    assert {prompt.input_len for prompt in first.warmups} <= {prompt.input_len for prompt in first.prompts}
    beginnings = [{prompt.text[:20] for prompt in prompts} for prompts in several]
    assert len(set().union(*beginnings)) == sum(map(len, beginnings))
    assert first == make_work(options, tokens)[0] and len({first.seed, second.seed, other.seed}) == 3


def test_warmups_are_sent_before_and_are_no_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    class Client:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def send(self, body: bytes, on_start: Callable[[], None] = lambda: None) -> Outcome:
            on_start()
            sent.append(json.loads(body)["prompt"])
            return Outcome(text=sent[-1])

        def close(self) -> None: ...

    monkeypatch.setattr(driver, "LoadClient", Client)
    prompts, warmups = ([Prompt(f"{kind} {i}", 2, 1) for i in range(3)] for kind in ("measured", "warm-up"))
    options = ServeOptions(num_warmups=3, disable_tqdm=True)
    run = Driver(options, model="m").run(prompts, [0.0] * 3, rate=math.inf, warmups=warmups)
    assert sent == [prompt.text for prompt in [*warmups, *prompts]]
    assert [outcome.text for outcome in run.outcomes] == [prompt.text for prompt in prompts]


def test_a_body_says_what_was_asked_for() -> None:
    prompt = Prompt("text", 3, 9)
    options = ServeOptions(dataset_name="sharegpt", temperature=0.0, extra_body='{"top_p": 0.5}')
    assert Driver(options, model="m").body(prompt) == {
        "model": "m", "prompt": "text", "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True},
        "temperature": 0.0, "top_p": 0.5,
    }  # fmt: skip
    chat = Driver(ServeOptions(backend="openai-chat"), model="m").body(prompt)
    assert chat["messages"] == [{"role": "user", "content": "text"}] and chat["ignore_eos"] is True and "prompt" not in chat
    assert "ignore_eos" not in Driver(ServeOptions(ignore_eos=False), model="m").body(prompt)


@pytest.mark.parametrize(
    "options, flag",
    [
        (ServeOptions(base_url="localhost:8000"), "--base-url"),
        (SweepOptions(base_url="http://localhost:x"), "--base-url"),
        (ServeOptions(endpoint="embeddings"), "--endpoint"),
        (ServeOptions(percentile_metrics="ttft,foo"), "--percentile-metrics"),
        (ServeOptions(metric_percentiles="50,x"), "--metric-percentiles"),
        (ServeOptions(metric_percentiles="101"), "--metric-percentiles"),
        (ServeOptions(goodput=("itl:5",)), "--goodput"),
        (ServeOptions(goodput=("ttft:",)), "--goodput"),
        (ServeOptions(header=("a b=c",)), "--header"),
        (ServeOptions(header=("a=b\r\nc: d",)), "--header"),
        (ServeOptions(api_key="clé"), "--api-key"),
        (ServeOptions(api_key="a\nb"), "--api-key"),
        (ServeOptions(extra_body="[1]"), "--extra-body"),
        (ServeOptions(metadata=("x",)), "--metadata"),
        (ServeOptions(dataset_name="prefix_repetition", num_prompts=3), "--num-prompts"),
        (SweepOptions(request_rates=("1", "0")), "--request-rates"),
        (SweepOptions(request_rates=("nan",)), "--request-rates"),
    ],
)
def test_what_cannot_be_measured_is_said_before(options: ServeOptions | SweepOptions, flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        options.check()


seconds = st.floats(0.001, 5.0)
outcomes = st.builds(
    lambda started, ttft, itl, error: Outcome(
        started=started, ttft=ttft, itl=itl, latency=ttft + sum(itl), output_tokens=len(itl) + 1, error=error
    ),
    seconds, seconds, st.lists(seconds, max_size=6), st.sampled_from(["", "", "broken"]),
)  # fmt: skip


@given(st.lists(outcomes, min_size=1, max_size=12), st.floats(0.1, 9.0))
def test_figures_agree_with_what_was_seen(seen: list[Outcome], limit: float) -> None:
    run = Run(prompts=[Prompt("x", 5, 9)] * len(seen), outcomes=seen, duration=10.0, request_rate=math.inf)
    found = statistics.figures(run, percentiles=[0, 99, 100], limits={"e2el": limit * 1e3})
    answered = [outcome for outcome in seen if not outcome.error]
    assert (found.completed, found.failed) == (len(answered), len(seen) - len(answered))
    assert found.total_input == 5 * len(answered)
    assert found.output_throughput == pytest.approx(sum(len(o.itl) + 1 for o in answered) / 10)
    assert found.good == pytest.approx(sum(o.latency * 1e3 <= limit * 1e3 for o in answered) / 10)
    assert found.peak_concurrent <= len(answered) and found.peak_output <= found.total_output
    if answered:
        times = found.times["ttft"]
        assert times.percentiles["0"] == pytest.approx(min(o.ttft for o in answered) * 1e3)
        assert times.percentiles["100"] == pytest.approx(max(o.ttft for o in answered) * 1e3)
        several = [(o.latency - o.ttft) / len(o.itl) for o in answered if o.itl]
        assert found.times["tpot"].mean == pytest.approx(np.mean(several or [0.0]) * 1e3)


def test_peaks_are_of_tokens_and_of_a_moment() -> None:
    """Two clients, ten requests each in a row, within a second; an event brings three tokens."""
    seen = [
        Outcome(started=8 + 0.125 * i, ttft=0.0625, itl=[0.0625], latency=0.125, output_tokens=6)
        for i in range(10) for _ in range(2)
    ]  # fmt: skip
    run = Run(prompts=[Prompt("x", 5, 9)] * 20, outcomes=seen, duration=1.0, request_rate=math.inf)
    found = statistics.figures(run, percentiles=[99], limits={})
    assert found.peak_concurrent == 2
    assert found.peak_output == 15 * 6, "those of the first second: all of seven requests and half of the eighth, twice"


def test_the_lines_are_those_that_scripts_know() -> None:
    run = Run(
        prompts=[Prompt("x", 5, 3)],
        outcomes=[Outcome(started=1.0, ttft=0.1, itl=[0.02, 0.03], latency=0.15, output_tokens=3)],
        duration=2.0,
        request_rate=4.0,
    )
    found = statistics.figures(run, percentiles=[99.9], limits={"ttft": 200.0})
    lines = table.text(found, metrics=["ttft", "e2el"], rate=4.0, max_concurrency=7).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============" and lines[-1] == "=" * 50
    assert [line[:40].rstrip() for line in lines[1:-1] if ":" in line] == [
        "Successful requests:", "Failed requests:", "Maximum request concurrency:", "Request rate configured (RPS):",
        "Benchmark duration (s):", "Total input tokens:", "Total generated tokens:", "Request throughput (req/s):",
        "Request goodput (req/s):", "Output token throughput (tok/s):", "Peak output token throughput (tok/s):",
        "Peak concurrent requests:", "Total token throughput (tok/s):", "Mean TTFT (ms):", "Median TTFT (ms):",
        "P99.9 TTFT (ms):", "Mean E2EL (ms):", "Median E2EL (ms):", "P99.9 E2EL (ms):",
    ]  # fmt: skip
    assert "---------------Time to First Token----------------" in lines
    assert "----------------End-to-end Latency----------------" in lines
    assert "Mean TTFT (ms):                          100.00    " in lines
    assert "Request goodput (req/s):                 0.50      " in lines


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    running = RunningServer(
        write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny"), "--served-model-name", "tiny", "--api-key", "key"
    ).wait_ready()
    yield running
    running.kill()


def bench(server: RunningServer, *flags: str) -> list[str]:
    lengths = ["--random-input-len", "24", "--random-output-len", "8", "--num-prompts", "12"]
    return ["bench", *flags, "--base-url", f"{server.url}/v1", "--api-key", "key", *lengths]


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_server_is_measured(server: RunningServer, endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "latency.svg"
    flags = [
        "--request-rate",
        "200",
        "--max-concurrency",
        "3",
        "--save-result",
        "--save-detailed",
        "--result-dir",
        str(tmp_path),
    ]
    more = ["--goodput", "e2el:60000", "--metric-percentiles", "50,99.5", "--plot", str(picture), "--metadata", "run=a"]
    assert cli.main([*bench(server, "serve", "--endpoint", endpoint), *flags, *more, "--num-warmups", "2"]) == 0
    assert "Successful requests:                     12        " in capsys.readouterr().out
    (file,) = tmp_path.glob("*.json")
    assert file.name.startswith(f"openai{'-chat' if endpoint == 'chat' else ''}-200.0qps-concurrency3-tiny-")
    result = json.loads(file.read_text())
    times = [f"{kind}_{name}_ms" for name in ("ttft", "tpot", "itl") for kind in ("mean", "median", "std", "p50", "p99.5")]
    assert set(result) == {*RESULT_KEYS, *DETAILS, *times, "run"}
    assert result["completed"] == 12 and result["output_lens"] == [8] * 12 and result["total_output_tokens"] == 96
    assert result["total_input_tokens"] == 12 * 24 and result["max_concurrent_requests"] <= 12
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert picture.read_text().startswith("<?xml")


def test_a_sweep_has_a_line_for_each_rate(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "sweep.json", tmp_path / "sweep.png"
    flags = ["--request-rates", "300", "inf", "--repeat", "2", "--output-json", str(file), "--plot", str(picture)]
    assert cli.main([*bench(server, "sweep"), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["offered", "300", "inf"]
    assert [result["request_rate"] for result in json.loads(file.read_text())] == [300.0, "inf"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_label_is_no_path(server: RunningServer, tmp_path: Path) -> None:
    assert cli.main([*bench(server, "serve"), "--label", "a/b", "--save-result", "--result-dir", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("a-b-infqps-tiny-") and json.loads(file.read_text())["label"] == "a/b"


@pytest.mark.parametrize("name", ["duration", "p99_ttft_ms", "model_id", "itls"])
def test_metadata_takes_no_name_of_the_result(server: RunningServer, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*bench(server, "serve"), "--metadata", f"{name}=1"]) == 64
    out, err = capsys.readouterr()
    assert not out and f"--metadata {name}=1: the result has a {name} of its own" in err


@pytest.mark.parametrize(
    "flags",
    [
        ["--save-result", "--result-filename", "no/x.json"],
        ["--save-result", "--result-filename", "."],
        ["--save-result", "--result-dir", "no"],
        ["--output-json", "."],
        ["--plot", "."],
    ],
)
def test_a_result_that_cannot_be_written_is_said_before(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *flags]) == 64
    assert capsys.readouterr().err.startswith(f"octavo: error: {flags[-2]} ")


@contextmanager
def mortal(answers: int, *, says_usage: bool = True) -> Iterator[str]:
    """The URL of a server that counts words as tokens, and says nothing more after so many answers."""
    left = answers

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # a response is one packet

        def log_message(self, *_: object) -> None: ...

        def say(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.say(b'{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not left:
                self.close_connection = True
            elif self.path == "/tokenize":
                self.say(json.dumps({"tokens": [1] * len(asked["prompt"].split())}).encode())
            elif self.path == "/detokenize":
                self.say(json.dumps({"prompt": " ".join("x" * len(asked["tokens"]))}).encode())
            else:
                self.answer()

        def answer(self) -> None:
            nonlocal left
            left -= 1
            usage = {"usage": {"completion_tokens": 2, "prompt_tokens": 3}} if says_usage else {}
            self.say(event(choices=[{"text": "a b"}], **usage) + b"data: [DONE]\n\n")

    with serving(Handler) as url:
        yield url


def sweep_of(url: str) -> list[str]:
    lengths = ["--random-input-len", "5", "--random-output-len", "2", "--num-prompts", "3", "--max-concurrency", "1"]
    return ["bench", "sweep", "--base-url", url, *lengths, "--request-rates", "1000", "2000", "3000"]


def test_a_server_that_dies_leaves_the_rates_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.json"
    with mortal(3) as url:
        assert cli.main([*sweep_of(url), "--output-json", str(file)]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["offered", "1000", "2000"]
    assert [(rate["completed"], rate["failed"]) for rate in json.loads(file.read_text())] == [(3, 0), (0, 3)]
    assert "no answer at 2000 requests/s" in err and "--tokenizer" not in err


def test_answers_that_nobody_can_count_any_more_have_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with mortal(3, says_usage=False) as url:
        assert cli.main([*sweep_of(url), "--json"]) == 1
    out, err = capsys.readouterr()
    assert [rate["failed"] for rate in json.loads(out)] == [3]
    assert "its tokens are not counted: cannot reach 127.0.0.1" in err and "--tokenizer" not in err


def test_only_a_server_that_answers_is_said_not_to_count() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(ConfigError) as caught:
        ServerTokens(ServerApi(url, headers={}), "m").decode([1])
    assert str(caught.value).startswith("cannot reach 127.0.0.1:")


def test_refusals_are_told_and_no_answer_at_all_is_a_failure(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*bench(server, "serve"), "--extra-body", '{"temperature": 3}', "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["failed"] == 12 and "12 requests failed: 400: temperature" in err
    assert cli.main(["bench", "serve", "--base-url", server.url, "--num-prompts", "1"]) == 64
    err = capsys.readouterr().err
    assert "answered 401" in err and err.endswith(" (--api-key)\n") and "{" not in err
    assert cli.main(["bench", "serve", "--base-url", server.url, "--num-prompts", "1", "--model", "m"]) == 64
    assert capsys.readouterr().err.endswith(" (--api-key)\n"), "and no talk of tokenizers"
    assert cli.main(["bench", "serve", "--base-url", "http://127.0.0.1:9", "--num-prompts", "1"]) == 64
    err = capsys.readouterr().err
    assert "cannot reach 127.0.0.1:9" in err and "octavo serve MODEL" in err and "--ready-check-timeout-sec" in err


def test_a_model_that_the_server_has_not(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*bench(server, "serve"), "--model", "nope"]) == 64
    err = capsys.readouterr().err
    assert "the server has no model 'nope', but " in err and "--model" in err and "--tokenizer" not in err


def test_a_server_that_is_not_ready_yet() -> None:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.wfile.write(b'HTTP/1.0 503 Busy\r\n\r\n{"error": {"message": "the model is being loaded"}}')

    with serving(Handler) as url, pytest.raises(ConfigError) as caught:
        ServerApi(url, headers={}).first_model()
    assert "answered 503 to /v1/models: the model is being loaded (--ready-check-timeout-sec " in str(caught.value)
