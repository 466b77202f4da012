"""Answers byte for byte, whole and streamed, with a scripted engine behind the routes."""

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest

from octavo.server.errors import busy, engine_restarted, invalid
from octavo.server.logprobs import LogprobFormat
from octavo.server.responses import CompletionChunk, CompletionChunkChoice, CompletionLogprobs
from octavo.server.sse import TextEvents, event
from octavo.step import TokenLogprobs
from octavo.token_bytes import byte_level_alphabet
from tests.server.fakes import Bench, Exchange, stable

CHAT = {"messages": [{"role": "user", "content": "count"}]}
HEADERS = {"x-request-id": "abc"}


def events(bench: Bench, path: str, fields: dict[str, Any]) -> str:
    status, headers, body = bench.call("POST", path, {**fields, "stream": True}, headers=HEADERS)
    assert status == 200 and headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["x-request-id"] == "abc"
    return stable(body)


def test_chat_stream(bench: Bench) -> None:
    bench.engine.token_ids = bench.tokenizer.encode("ab", add_special_tokens=False)
    begin = 'data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":0,"model":"tiny","choices":['
    middle = '"logprobs":null,"finish_reason":null,"token_ids":null}]}'
    pieces = [bench.tokenizer.token_text(token) for token in bench.engine.token_ids]
    assert events(bench, "/v1/chat/completions", CHAT) == "".join([
        begin + '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]',
        ',"prompt_token_ids":null,"prompt_text":null}\n\n',
        *(
            begin + f'{{"index":0,"delta":{{"content":"{piece}"}},{middle}\n\n'
            for piece in pieces
        ),
        begin + '{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop",',
        '"stop_reason":null,"token_ids":null}]',
        ',"system_fingerprint":"octavo-test"}\n\n',
        "data: [DONE]\n\n",
    ])  # fmt: skip


def test_chat_stream_with_usage_and_token_ids(bench: Bench) -> None:
    fields = {**CHAT, "max_tokens": 1, "stream_options": {"include_usage": True}, "return_token_ids": True}
    lines = [
        json.loads(line[6:])
        for line in events(bench, "/v1/chat/completions", fields).splitlines()
        if line.startswith("data: {")
    ]
    role, only, usage = lines
    assert role["prompt_token_ids"] == bench.engine.requests[0].prompt_token_ids
    assert only["choices"][0]["token_ids"] == bench.engine.token_ids[:1]
    assert only["choices"][0]["finish_reason"] == "length" and "system_fingerprint" not in only
    assert usage["choices"] == [] and usage["system_fingerprint"] == "octavo-test"
    length = len(bench.engine.requests[0].prompt_token_ids)
    assert usage["usage"] == {
        "prompt_tokens": length,
        "total_tokens": length + 1,
        "completion_tokens": 1,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def test_completion_stream(bench: Bench) -> None:
    begin = 'data: {"id":"cmpl-abc","object":"text_completion","created":0,"model":"alias","choices":[{"index":'
    end = '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
    last = end.replace("}\n\n", ',"system_fingerprint":"octavo-test"}\n\n')
    first, second = (bench.tokenizer.token_text(token) for token in bench.engine.token_ids[:2])
    fields = {"model": "alias", "prompt": "count", "max_tokens": 2, "n": 2}
    assert events(bench, "/v1/completions", fields) == "".join([
        begin + f'0,"text":"{first}","logprobs":null,"finish_reason":null,' + end,
        begin + f'1,"text":"{first}","logprobs":null,"finish_reason":null,' + end,
        begin + f'0,"text":"{second}","logprobs":null,"finish_reason":"length",' + last,
        begin + f'1,"text":"{second}","logprobs":null,"finish_reason":"length",' + last,
        "data: [DONE]\n\n",
    ])  # fmt: skip
    usage = events(bench, "/v1/completions", {**fields, "stream_options": {"include_usage": True}}).split("\n\n")
    assert [piece.count("system_fingerprint") for piece in usage] == [0, 0, 0, 0, 1, 0, 0]


def test_continuous_usage(bench: Bench) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = events(bench, "/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": 2, "stream_options": options})
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    seen = [(c["choices"][0]["index"], c["usage"]["prompt_tokens"], c["usage"]["completion_tokens"]) for c in chunks[:-1]]
    assert sorted(seen) == [(0, 2, 1), (0, 2, 2), (1, 1, 1), (1, 1, 2)]
    assert (
        chunks[-1]["choices"] == []
        and chunks[-1]["usage"]["prompt_tokens"] == 3
        and chunks[-1]["usage"]["completion_tokens"] == 4
    )


def test_whole_chat(bench: Bench) -> None:
    status, _, body = bench.call("POST", "/v1/chat/completions", CHAT, headers=HEADERS)
    length = len(bench.engine.requests[0].prompt_token_ids)
    count = len(bench.engine.token_ids) + 1
    assert status == 200
    assert stable(body) == (
        '{"id":"chatcmpl-abc","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,"message":{"role":'
        '"assistant","content":"one two three","refusal":null,"annotations":null,"audio":null,"function_call":null,'
        '"reasoning":null},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null,"routed_experts":null}],'
        '"service_tier":null,"system_fingerprint":"octavo-test",'
        f'"usage":{{"prompt_tokens":{length},"total_tokens":{length + count},"completion_tokens":{count},'
        '"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,'
        '"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    )


def test_whole_completion(bench: Bench) -> None:
    status, _, body = bench.call("POST", "/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 1}, headers=HEADERS)
    text = json.dumps(bench.tokenizer.token_text(bench.engine.token_ids[0]))
    assert status == 200
    assert stable(body) == (
        '{"id":"cmpl-abc","object":"text_completion","created":0,"model":"tiny","choices":[{"index":0,'
        f'"text":{text},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,'
        '"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"octavo-test","usage":'
        '{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":null,'
        '"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    )


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt=["a", "b"], n=2, max_tokens=1, echo=True)
    assert [(choice["index"], choice["text"][:1]) for choice in answer["choices"]] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]


def test_logprobs_of_completions(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt=[40, 41], max_tokens=2, logprobs=2, echo=True)
    (choice,) = answer["choices"]
    logprobs, tokens = choice["logprobs"], [40, 41, *bench.engine.token_ids[:2]]
    assert logprobs["tokens"] == [bench.tokenizer.token_text(token) for token in tokens]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert logprobs["text_offset"] == [sum(map(len, logprobs["tokens"][:i])) for i in range(4)]
    assert logprobs["top_logprobs"][0] is None and [len(top) for top in logprobs["top_logprobs"][1:]] == [2, 2, 2]
    assert choice["text"] == "".join(logprobs["tokens"])
    assert bench.engine.requests[0].params.prompt_logprobs == 2


def pieces_of(bench: Bench, text: str) -> list[int]:
    """Token ids of ``text``, whose characters are cut into bytes."""
    alphabet = {byte: character for character, byte in byte_level_alphabet().items()}
    ids = [bench.tokenizer._tokenizer.token_to_id(alphabet[byte]) for byte in text.encode()]
    assert None not in ids
    return ids


@pytest.mark.parametrize("extra", [{}, {"return_tokens_as_token_ids": True}, {"stream": True}])
@pytest.mark.parametrize("echo", [False, True])
def test_offsets_of_tokens_are_places_in_the_text(bench: Bench, echo: bool, extra: dict[str, Any]) -> None:
    prompt, bench.engine.token_ids = "日本a", pieces_of(bench, "é 語!")
    fields = {"prompt": [*pieces_of(bench, prompt), 1], "max_tokens": 20, "logprobs": 0, "echo": echo, **extra}
    if extra.get("stream"):
        chunks = [json.loads(line[6:]) for line in events(bench, "/v1/completions", fields).splitlines() if line[6:7] == "{"]
        choices = [chunk["choices"][0] for chunk in chunks]
    else:
        choices = bench.post("/v1/completions", **fields)[1]["choices"]
    text = "".join(choice["text"] for choice in choices)
    found = [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]
    shown = prompt if echo else ""
    assert text == f"{shown}é 語!"
    # A character's bytes have one place, and a special token that is not shown takes no room.
    generated = [len(shown) + offset for offset in (0, 0, 1, 2, 2, 2, 3, 4)]
    assert found == ([0, 0, 0, 1, 1, 1, 2, 3] if echo else []) + generated


def test_parts_of_characters_are_told_apart(bench: Bench) -> None:
    bench.engine.token_ids = first, *_ = pieces_of(bench, "é")
    likely = pieces_of(bench, "日")[0]
    entry = TokenLogprobs(first, -0.5, 1, [first, likely, 5], [-0.5, -1.0, -2.0])
    shape = LogprobFormat(bench.tokenizer, top=3, as_token_ids=False)
    found = CompletionLogprobs([], [], [], [])
    shape.completion([entry], shape.places([], at=0, skip_special_tokens=True), after=found)
    assert found.tokens == [r"bytes:\xc3"]
    assert list(json.loads(msgspec.json.encode(found.top_logprobs[0]))) == [
        r"bytes:\xc3",
        r"bytes:\xe6",
        bench.tokenizer.token_text(5),
    ]


def test_special_tokens_that_were_written_have_their_place(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt="<|im_start|>one", max_tokens=1, logprobs=0, echo=True)
    (choice,) = answer["choices"]
    assert choice["text"].startswith("<|im_start|>one") and choice["logprobs"]["text_offset"][:2] == [0, len("<|im_start|>")]
    assert choice["logprobs"]["text_offset"][-1] == len("<|im_start|>one")
    assert "prompt_token_offsets" not in choice


@pytest.mark.parametrize(
    "spans, begins",
    [
        ([(0, 0), (0, 3), (3, 5), (5, 5)], [0, 0, 3, 5]),  # put around the text
        ([(0, 3), (4, 7), (7, 8)], [0, 3, 7]),  # a word without its space
        ([(0, 1), (0, 1), (0, 1), (1, 2)], [0, 0, 0, 1]),  # a character's bytes
        ([(0, 11), (11, 13), (0, 0), (13, 24)], [0, 11, 13, 13]),
    ],
)
def test_where_tokens_of_a_prompt_begin(bench: Bench, spans: list[tuple[int, int]], begins: list[int]) -> None:
    ids = list(range(5, 5 + len(spans)))
    entries = [TokenLogprobs(token, -0.5, 1, [], []) for token in ids[1:]]
    shape = LogprobFormat(bench.tokenizer, top=0, as_token_ids=False).echoed(ids, entries, spans)
    assert shape.text_offset == begins and shape.token_logprobs == [None, *[-0.5] * len(entries)]


@pytest.mark.parametrize("extra", [{"best_of": 3}, {"use_beam_search": True, "n": 2}], ids=["best_of", "beams"])
def test_times_of_outputs_that_come_at_the_end_are_the_engines(bench: Bench, extra: dict[str, Any]) -> None:
    bench.engine.first_token_time = -7.0  # before anything that can be seen here
    bench.call("POST", "/v1/completions", {"prompt": "x", "max_tokens": 20, **extra})
    (line,) = [line for line in bench.lines() if line["event"] == "request"]
    assert line["ttft_ms"] == -7000.0 and line["itl_ms"] > 500


def test_streamed_logprobs_are_the_whole_ones_in_pieces(bench: Bench) -> None:
    fields = {"prompt": [40, 41], "max_tokens": 3, "logprobs": 1, "echo": True}
    _, whole = bench.post("/v1/completions", **fields)
    pieces: dict[str, list[Any]] = {}
    for line in events(bench, "/v1/completions", fields).splitlines():
        if line.startswith("data: {"):
            for name, values in json.loads(line[6:])["choices"][0]["logprobs"].items():
                pieces.setdefault(name, []).extend(values)
    assert pieces == whole["choices"][0]["logprobs"]


def test_logprobs_of_chat(bench: Bench) -> None:
    _, answer = bench.post("/v1/chat/completions", **CHAT, logprobs=True, top_logprobs=2, max_tokens=1)
    token = bench.engine.token_ids[0]
    text = bench.tokenizer.token_text(token)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["token"] == text and entry["logprob"] == -0.5 and bytes(entry["bytes"]).decode() == text
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.5, -1.0]
    _, answer = bench.post("/v1/chat/completions", **CHAT, logprobs=True, max_tokens=1, return_tokens_as_token_ids=True)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["token"] == f"token_id:{token}" and entry["top_logprobs"] == []


def test_prompt_logprobs(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt=[40, 41, 42], max_tokens=1, prompt_logprobs=1)
    first, second, third = answer["choices"][0]["prompt_logprobs"]
    assert first is None and list(second) == ["41"] and third["42"]["rank"] == 1
    _, answer = bench.post("/v1/chat/completions", **CHAT, max_tokens=1, prompt_logprobs=0)
    assert len(answer["prompt_logprobs"]) == len(bench.engine.requests[1].prompt_token_ids)


def test_echo_of_nothing_more_needs_no_engine(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt="just this", max_tokens=0, echo=True)
    assert answer["choices"][0]["text"] == "just this" and answer["usage"]["completion_tokens"] == 0
    assert not bench.engine.requests
    assert '"text":"just this"' in events(bench, "/v1/completions", {"prompt": "just this", "max_tokens": 0, "echo": True})


def test_echo_of_nothing_more_with_logprobs_drops_the_token(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt=[40, 41], max_tokens=0, echo=True, logprobs=0)
    (choice,) = answer["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5] and choice["finish_reason"] == "length"
    assert choice["text"] == "".join(choice["logprobs"]["tokens"]) and answer["usage"]["completion_tokens"] == 0


def test_echo_of_nothing_more_with_prompt_logprobs_is_computed(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt=[40, 41], max_tokens=0, echo=True, prompt_logprobs=1)
    first, second = answer["choices"][0]["prompt_logprobs"]
    assert first is None and next(iter(second)) == "41" and answer["usage"]["completion_tokens"] == 0


def test_a_stop_string_ends_the_choice_and_tells_the_engine(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt="x", stop=["two"], n=2, max_tokens=20)
    for choice in answer["choices"]:
        assert choice["text"] == "one " and choice["finish_reason"] == "stop" and choice["stop_reason"] == "two"
    (request,) = bench.engine.requests
    assert {(request.id, 0), (request.id, 1)} <= set(bench.engine.aborted)
    assert answer["usage"]["completion_tokens"] < 2 * len(bench.engine.token_ids)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_ends_on_a_stop_string_is_accounted_for(bench: Bench, stream: bool) -> None:
    bench.call("POST", "/v1/completions", {"prompt": "x", "stop": ["two"], "n": 2, "max_tokens": 20, "stream": stream})
    (line,) = [line for line in bench.lines() if line["event"] == "request"]
    assert (line["queue_ms"], line["preemptions"], line["finish_reason"]) == (250.0, 1, "stop")
    assert bench.service.metrics.queue_time.count == bench.service.metrics.e2e_latency.count == 1


def test_what_was_refused_is_in_no_statistics_of_requests(bench: Bench) -> None:
    metrics = bench.service.metrics
    bench.engine.reject = busy(7)
    assert bench.call("POST", "/v1/completions", {"prompt": "x"})[0] == 503
    bench.engine.reject, bench.engine.refuse = None, invalid("it can never fit", "max_tokens")
    assert bench.call("POST", "/v1/completions", {"prompt": "x"})[0] == 400
    assert metrics.e2e_latency.count == metrics.prompt_tokens.count == 0 and not any(metrics.finished.values())
    assert metrics.responses == {503: 1, 400: 1}


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_an_engine_took_with_it_is_an_error(bench: Bench, stream: bool) -> None:
    bench.engine.refuse = engine_restarted()
    bench.call("POST", "/v1/completions", {"prompt": "x", "n": 2, "stream": stream})
    assert bench.service.metrics.finished == {"stop": 0, "length": 0, "abort": 0, "error": 2, "repetition": 0}


def test_no_part_of_a_stop_string_is_streamed(bench: Bench) -> None:
    text = events(bench, "/v1/completions", {"prompt": "x", "stop": ["two three!", "three"], "max_tokens": 20})
    chunks = [json.loads(line[6:])["choices"][0] for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["text"] for chunk in chunks) == "one two "
    assert chunks[-1]["finish_reason"] == "stop" and chunks[-1]["stop_reason"] == "three"


def test_warnings_are_said_once(bench: Bench) -> None:
    _, answer = bench.post("/v1/completions", prompt="x", max_tokens=1, temprature=0)
    assert answer["warnings"] == ["unknown field `temprature` was ignored"]
    text = events(bench, "/v1/chat/completions", {**CHAT, "temprature": 0})
    assert text.count("temprature") == 1


def test_an_error_after_the_stream_began_is_its_last_event(bench: Bench) -> None:
    bench.engine.silent = True

    async def scenario() -> bytes:
        fields = {"prompt": "x", "max_tokens": 20, "stream": True}
        exchange = Exchange(bench.app, "POST", "/v1/completions", fields)
        task = asyncio.create_task(exchange.run())
        while not bench.engine.mailboxes:
            await asyncio.sleep(0)
        ((request_id, mailbox),) = bench.engine.mailboxes.items()
        mailbox.put(bench.engine.deltas(bench.engine.requests[0])[0])
        while not exchange.body:
            await asyncio.sleep(0)
        mailbox.fail(engine_restarted())
        await task
        assert (request_id, None) in bench.engine.aborted
        return bytes(exchange.body)

    *_, error, done = asyncio.run(scenario()).decode().strip().split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["type"] == "engine_restarted"
    assert done == "data: [DONE]"


def test_a_refusal_before_the_first_token_is_a_status_even_when_streaming(bench: Bench) -> None:
    bench.engine.refuse = engine_restarted()
    status, headers, _ = bench.call("POST", "/v1/completions", {"prompt": "x", "stream": True})
    assert status == 503 and headers["retry-after"] == "2"


def test_a_fault_of_ours_shows_an_id_and_nothing_else(bench: Bench) -> None:
    bench.engine.refuse = KeyError("/secret/path")
    status, _, body = bench.call("POST", "/v1/completions", {"prompt": "x"})
    assert status == 500 and b"secret" not in body
    (line,) = [line for line in bench.lines() if line["event"] == "internal_error"]
    assert line["error_id"].encode() in body and "/secret/path" in line["message"]


def leave(bench: Bench, fields: dict[str, Any]) -> Exchange:
    async def scenario() -> Exchange:
        exchange = Exchange(bench.app, "POST", "/v1/chat/completions", {**CHAT, **fields})
        task = asyncio.create_task(exchange.run())
        while not bench.engine.requests:
            await asyncio.sleep(0)
        if fields.get("stream"):
            bench.engine.mailboxes[bench.engine.requests[0].id].put(bench.engine.deltas(bench.engine.requests[0])[0])
            while not exchange.body:
                await asyncio.sleep(0)
        exchange.hang_up()
        await asyncio.wait_for(task, 5)
        return exchange

    bench.engine.silent = True
    return asyncio.run(scenario())


def test_a_client_that_leaves_aborts_its_request(bench: Bench) -> None:
    exchange = leave(bench, {})
    assert exchange.status is None
    assert bench.engine.aborted == [(bench.engine.requests[0].id, None)]
    (line,) = [line for line in bench.lines() if line["event"] == "request"]
    assert line["status"] == 499 and line["client_gone"] is True


def test_a_client_that_leaves_a_stream_aborts_its_request(bench: Bench) -> None:
    leave(bench, {"stream": True})
    assert (bench.engine.requests[0].id, None) in bench.engine.aborted
    (line,) = [line for line in bench.lines() if line["event"] == "request"]
    assert line["status"] == 200 and line["client_gone"] is True and line["output_tokens"] == 1
    assert bench.service.metrics.clients_gone == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_can_be_written_at_once_goes_straight_to_the_connection(bench: Bench, path: str) -> None:
    """And nothing else: not while the client is slow, and not the end, which more has to know of."""
    said = {"prompt": "x"} if path == "/v1/completions" else CHAT
    fields = {**said, "stream": True, "n": 3, "max_tokens": 3}
    ready = random.Random(3)

    def run(*, direct: bool) -> tuple[str, list[bytes], list[bytes]]:
        body = bytearray()
        sent: list[bytes] = []
        written: list[bytes] = []

        def take(kept: list[bytes], part: bytes) -> bool:
            kept.append(part)
            body.extend(part)
            return True

        exchange = Exchange(bench.app, "POST", path, fields, headers=HEADERS, on_body=lambda part: take(sent, part))
        if direct:
            exchange.scope["state"]["write_part"] = lambda part: ready.random() < 0.5 and take(written, part)
        asyncio.run(exchange.run())
        return stable(bytes(body)), sent, written

    whole, _, none = run(direct=False)
    assert not none
    for _ in range(5):
        text, sent, written = run(direct=True)
        assert text == whole and b"" in sent and b"" not in written
    assert written


@pytest.mark.parametrize("text", ["", "a", '"}],\n\\', "\0", "é\u2028 🎉", "\x7f\x1f"])
def test_an_event_with_another_text_is_the_event_of_that_text(text: str) -> None:
    def chunk(said: str) -> CompletionChunk:
        choice = CompletionChunkChoice(index=1, text=said)
        return CompletionChunk(id='"\\u0000"', created=1, model="\0 m", choices=[choice])

    assert TextEvents(chunk(TextEvents.MARK)).event(text) == event(chunk(text))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_chunks_say_the_same_whether_or_not_they_are_made_from_a_pattern(bench: Bench, path: str) -> None:
    """With token ids, every chunk is made on its own."""
    said = {"prompt": "x"} if path == "/v1/completions" else CHAT
    fields = {**said, "n": 2, "max_tokens": 3, "unknown": 1, "stream_options": {"include_usage": True}}
    plain = [json.loads(line[6:]) for line in events(bench, path, fields).splitlines() if line.startswith("data: {")]
    full = events(bench, path, {**fields, "return_token_ids": True})
    whole = [json.loads(line[6:]) for line in full.splitlines() if line.startswith("data: {")]
    for chunk in whole:
        if "prompt_token_ids" in chunk:
            chunk["prompt_token_ids"] = None
        for choice in chunk["choices"]:
            choice |= {name: None for name in ("token_ids", "prompt_token_ids") if name in choice}
    assert plain == whole


def test_the_log_line_has_the_request_and_never_the_prompt(bench: Bench) -> None:
    bench.call("POST", "/v1/completions", {"prompt": "my secret words", "max_tokens": 2}, headers=HEADERS)
    bench.call("GET", "/healthz/ready")
    (line,) = bench.lines()
    assert line["request_id"] == "abc" and line["status"] == 200 and line["path"] == "/v1/completions"
    assert line["output_tokens"] == 2 and line["cached_tokens"] == 3 and line["finish_reason"] == "length"
    assert line["queue_ms"] == 250.0 and line["preemptions"] == 1 and line["ttft_ms"] is not None
    assert "secret" not in bench.log.getvalue()
