"""best_of and beam search over HTTP: what is chosen, what is streamed, what is counted; and that it is what ``LLM`` gives."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.outputs import BeamState, TokenDelta
from octavo.server.engine_client import Mailbox
from octavo.step import TokenLogprobs
from tests.server.fakes import Bench, Exchange
from tests.server.test_process import raw_post
from tests.server.tiny import RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"prompt": "hi", "max_tokens": 20}


def chunks(body: bytes) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def streamed(bench: Bench, path: str, **fields: Any) -> list[dict[str, Any]]:
    status, _, body = bench.call("POST", path, {**fields, "stream": True})
    assert status == 200, body
    return chunks(body)


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice.get("delta", choice.get("message", {})).get("content", ""))


def texts(found: list[dict[str, Any]], n: int) -> list[str]:
    joined = [""] * n
    for chunk in found:
        for choice in chunk["choices"]:
            joined[choice["index"]] += text_of(choice)
    return joined


def best_first(bench: Bench, best_of: int) -> list[str]:
    """What the fake engine draws, by cumulative log-probability: one token more than the text has words for the end."""
    scores = {b: bench.engine.scores[b] * (len(bench.engine.token_ids) + 1 - b) for b in range(best_of)}
    tokens = bench.engine.token_ids
    return [bench.tokenizer.decode(tokens[b:]) for b in sorted(scores, key=lambda b: -scores[b])]


@pytest.mark.parametrize(("path", "fields"), [(COMPLETIONS, PROMPT), (CHAT, HELLO)])
def test_the_best_are_returned_best_first(bench: Bench, path: str, fields: dict[str, Any]) -> None:
    status, answer = bench.post(path, **fields, n=2, best_of=4, temperature=1)
    assert status == 200
    expected = best_first(bench, 4)[:2]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [text_of(choice).strip() for choice in answer["choices"]] == [text.strip() for text in expected]
    assert all(choice["logprobs"] is None and choice["finish_reason"] == "stop" for choice in answer["choices"])
    length = len(bench.engine.token_ids) + 1
    assert answer["usage"]["completion_tokens"] == sum(length - b for b in range(4)), "all that were drawn are counted"
    params = bench.engine.requests[0].params
    assert (params.n, params.best_of, params.num_branches) == (2, 4, 4)
    (line,) = bench.lines()
    assert line["output_tokens"] == answer["usage"]["completion_tokens"] and line["finish_reason"] == "stop"


@pytest.mark.parametrize(("path", "fields"), [(COMPLETIONS, PROMPT), (CHAT, HELLO)])
def test_the_best_are_streamed_when_they_are_known(bench: Bench, path: str, fields: dict[str, Any]) -> None:
    found = streamed(bench, path, **fields, n=2, best_of=3, temperature=1, stream_options={"include_usage": True})
    assert texts(found, 2) == [text_of(c) for c in bench.post(path, **fields, n=2, best_of=3, temperature=1)[1]["choices"]]
    indices = [choice["index"] for chunk in found for choice in chunk["choices"]]
    assert indices == sorted(indices)
    length = len(bench.engine.token_ids) + 1
    assert found[-1]["usage"]["completion_tokens"] == 3 * length - 3


def test_log_probabilities_are_there_when_asked_for(bench: Bench) -> None:
    _, answer = bench.post(COMPLETIONS, **PROMPT, n=1, best_of=3, temperature=1, logprobs=2, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == [*bench.engine.token_ids[2:], 2]
    assert choice["logprobs"]["token_logprobs"] == [bench.engine.scores[2]] * len(choice["token_ids"])
    _, echoed = bench.post(COMPLETIONS, **PROMPT, best_of=3, echo=True, logprobs=0)
    assert echoed["choices"][0]["logprobs"]["token_logprobs"][0] is None


def test_best_of_n_is_n(bench: Bench) -> None:
    status, _ = bench.post(COMPLETIONS, **PROMPT, n=2, best_of=2)
    assert status == 200 and bench.engine.requests[0].params.best_of is None
    assert not bench.engine.requests[0].params.selects


def test_a_branch_that_a_stop_string_ends_is_compared_as_it_was_cut(bench: Bench) -> None:
    bench.engine.scores = (-0.5, -3.0, -3.0, -3.0)
    word = bench.tokenizer.decode(bench.engine.token_ids).split()[-1]
    _, answer = bench.post(COMPLETIONS, **PROMPT, best_of=2, stop=[word], temperature=1)
    assert answer["choices"][0]["stop_reason"] == word and word not in answer["choices"][0]["text"]
    assert {branch for _, branch in bench.engine.aborted} == {0, 1}


def test_a_prompt_alone_is_neither_searched_nor_chosen(bench: Bench) -> None:
    fields = {"prompt": "hi", "max_tokens": 0, "echo": True, "logprobs": 0}
    for extra in ({"best_of": 3}, {"use_beam_search": True, "best_of": 3}):
        status, answer = bench.post(COMPLETIONS, **fields, **extra)
        assert status == 200 and answer["usage"]["completion_tokens"] == 0
    assert all(request.params.beam is None and not request.params.selects for request in bench.engine.requests)


@pytest.mark.parametrize(("path", "fields"), [(COMPLETIONS, PROMPT), (CHAT, HELLO)])
def test_beams_are_returned_in_the_engines_order(bench: Bench, path: str, fields: dict[str, Any]) -> None:
    status, answer = bench.post(path, **fields, use_beam_search=True, n=2, best_of=3)
    assert status == 200
    tokens, decode = bench.engine.token_ids, bench.tokenizer.decode
    assert [text_of(choice).strip() for choice in answer["choices"]] == [decode(tokens).strip(), decode(tokens[1:]).strip()]
    assert answer["usage"]["completion_tokens"] == 2 * len(tokens) + 1, "the beams that are returned are counted"
    params = bench.engine.requests[0].params
    assert params.beam is not None and (params.n, params.beam.width, params.beam.report) == (2, 3, False)
    found = streamed(bench, path, **fields, use_beam_search=True, n=2, best_of=3)
    assert texts(found, 2) == [text_of(choice) for choice in answer["choices"]]
    assert not any("beams" in chunk for chunk in found)


def test_what_a_search_is_asked(bench: Bench) -> None:
    drawn = {"temperature": 0.7, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 5}
    search = {"use_beam_search": True, "length_penalty": 0.5, "early_stopping": "never"}
    shaped = {
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {"7": -1.0},
        "min_tokens": 2,
        "stop_token_ids": [9],
    }
    status, answer = bench.post(COMPLETIONS, **PROMPT, **drawn, **search, **shaped, best_of=1)
    assert status == 200 and "warnings" not in answer
    wanted = BeamSearchParams(
        beam_width=1, max_tokens=20, length_penalty=0.5, early_stopping="never", frequency_penalty=0.5, repetition_penalty=1.2,
        logit_bias={7: -1.0}, min_tokens=2, stop_token_ids=[9],
    ).sampling_params()  # fmt: skip
    got = bench.engine.requests[0].params
    assert got == SamplingParams(**{**{f: getattr(wanted, f) for f in wanted.__struct_fields__}, "best_of": 1}), (
        "what only says how to draw is left out, and so is what the model recommends for it"
    )


def test_defaults_of_a_search(bench: Bench) -> None:
    assert bench.post(COMPLETIONS, **PROMPT, use_beam_search=True)[0] == 200
    params = bench.engine.requests[0].params
    assert params.beam is not None and (params.beam.width, params.beam.length_penalty, params.beam.early_stopping) == (
        1,
        1,
        False,
    )
    assert bench.post(COMPLETIONS, **PROMPT, use_beam_search=True, n=16)[0] == 200
    assert bench.engine.requests[1].params.num_branches == 16


def test_fields_of_a_search_without_one_are_warned_of(bench: Bench) -> None:
    _, answer = bench.post(COMPLETIONS, **PROMPT, length_penalty=0.8, early_stopping=True)
    assert answer["warnings"] == [
        f"`{name}` has no effect without use_beam_search" for name in ("length_penalty", "early_stopping")
    ]
    _, answer = bench.post(COMPLETIONS, **PROMPT, length_penalty=1.0, early_stopping=False, use_beam_search=False)
    assert "warnings" not in answer


@pytest.mark.parametrize(("path", "fields"), [(COMPLETIONS, PROMPT), (CHAT, HELLO)])
def test_beams_are_told_as_they_change(bench: Bench, path: str, fields: dict[str, Any]) -> None:
    options = {"include_beams": True, "include_usage": True}
    search = {"use_beam_search": True, "n": 1, "best_of": 2}
    found = streamed(bench, path, **fields, **search, stream_options=options, return_token_ids=True)
    told = [chunk for chunk in found if "beams" in chunk]
    assert told and all(chunk["choices"] == [] for chunk in told)
    assert found.index(told[-1]) < next(i for i, chunk in enumerate(found) if any(text_of(c) for c in chunk["choices"]))
    tokens = bench.engine.token_ids
    last = told[-1]["beams"]
    assert [beam["token_ids"] for beam in last] == [tokens, tokens[1:]]
    assert [beam["text"].strip() for beam in last] == [bench.tokenizer.decode(ids).strip() for ids in (tokens, tokens[1:])]
    assert [beam["cumulative_logprob"] for beam in last] == pytest.approx([-0.1 * len(tokens), -1 - 0.1 * len(tokens)])
    assert "prompt_index" not in last[0] and texts(found, 1)[0].strip() == bench.tokenizer.decode(tokens).strip()
    plain = streamed(bench, path, **fields, **search, stream_options={"include_beams": True})
    assert all("token_ids" not in beam for chunk in plain if "beams" in chunk for beam in chunk["beams"])


def test_beams_of_several_prompts_say_whose_they_are(bench: Bench) -> None:
    found = streamed(
        bench, COMPLETIONS, prompt=["a", "b"], max_tokens=20, use_beam_search=True, n=2, stream_options={"include_beams": True}
    )
    assert {chunk["prompt_index"] for chunk in found if "beams" in chunk} == {0, 1}
    assert {choice["index"] for chunk in found for choice in chunk["choices"]} == {0, 1, 2, 3}


def test_only_the_latest_beams_wait_for_a_slow_client() -> None:
    async def scene() -> None:
        mailbox, said = Mailbox(), [TokenLogprobs(1, -1.0, 1, [], [])]
        first = TokenDelta(request_id="a", branch=0, token_ids=[], beams=[BeamState([1], -1.0)], prompt_logprobs=said)
        beams = [TokenDelta(request_id="a", branch=0, token_ids=[], beams=[BeamState([1] * i, -1.0)]) for i in range(2, 6)]
        other = TokenDelta(request_id="b", branch=0, token_ids=[], beams=[])
        for delta in (first, beams[0], other, *beams[1:]):
            mailbox.put(delta)
        assert await mailbox.get() == [first, other, beams[-1]]

    asyncio.run(scene())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("extra", [{"best_of": 3}, {"use_beam_search": True, "best_of": 3}], ids=["best_of", "beams"])
def test_a_client_that_leaves_ends_everything(bench: Bench, stream: bool, extra: dict[str, Any]) -> None:
    bench.engine.silent = True

    async def scene() -> None:
        exchange = Exchange(bench.app, "POST", COMPLETIONS, {**PROMPT, "stream": stream, **extra})
        task = asyncio.create_task(exchange.run())
        while not bench.engine.requests:
            await asyncio.sleep(0.01)
        exchange.hang_up()
        await asyncio.wait_for(task, 10)

    asyncio.run(scene())
    assert bench.engine.aborted == [(bench.engine.requests[0].id, None)]


# ------------------------------------------------------------------------------------------------------------ the real thing


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    llm = LLM(model=str(tiny_model), swap_space=0.01)
    yield llm
    llm.shutdown()


def post(server: RunningServer, path: str, **fields: Any) -> Any:
    answer = httpx.post(server.url + path, json={"model": "tiny", **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "search",
    [
        {},
        {"length_penalty": 2.0, "early_stopping": "never", "frequency_penalty": 0.5},
        {
            "early_stopping": True,
            "min_tokens": 4,
            "logit_bias": {"40": 3.0},
            "repetition_penalty": 1.3,
            "stop_token_ids": [50, 60],
        },
    ],
)
def test_http_gives_what_llm_gives(server: RunningServer, llm: LLM, search: dict[str, Any]) -> None:
    prompt = "Once upon a time"
    bias = {int(key): value for key, value in search.get("logit_bias", {}).items()} or None
    params = BeamSearchParams(beam_width=4, n=3, max_tokens=12, **{**search, "logit_bias": bias})
    (expected,) = llm.beam_search(prompt, params)
    fields = {"prompt": prompt, "max_tokens": 12, "use_beam_search": True, "n": 3, "best_of": 4, "return_token_ids": True}
    answer = post(server, COMPLETIONS, **fields, **search)
    start = len(expected.prompt_token_ids)
    assert [c["token_ids"] for c in answer["choices"]] == [beam.tokens[start:] for beam in expected.sequences]
    assert [c["finish_reason"] for c in answer["choices"]] == [beam.finish_reason for beam in expected.sequences]
    with httpx.stream(
        "POST",
        server.url + COMPLETIONS,
        json={**fields, **search, "stream": True, "stream_options": {"include_beams": True}},
        timeout=60,
    ) as response:
        found = chunks(response.read())
    assert texts(found, 3) == [choice["text"] for choice in answer["choices"]]
    told = [chunk["beams"] for chunk in found if "beams" in chunk]
    assert told and all(1 <= len(beams) <= 4 for beams in told)
    assert all(a["cumulative_logprob"] >= b["cumulative_logprob"] for beams in told for a, b in itertools.pairwise(beams))
    assert server.metric("octavo_kv_blocks", state="used") == 0


def test_best_of_over_http_is_that_of_llm(server: RunningServer, llm: LLM) -> None:
    drawn: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_tokens": 10, "best_of": 6, "n": 2}
    (expected,) = llm.generate("Once upon a time", SamplingParams(**drawn, logprobs=0), use_tqdm=False)
    assert expected.outputs[0].cumulative_logprob is not None and expected.outputs[1].cumulative_logprob is not None
    assert expected.outputs[0].cumulative_logprob >= expected.outputs[1].cumulative_logprob
    answer = post(server, COMPLETIONS, prompt="Once upon a time", **drawn, return_token_ids=True)
    assert [c["token_ids"] for c in answer["choices"]] == [o.token_ids for o in expected.outputs]
    assert answer["usage"]["completion_tokens"] > sum(len(o.token_ids) for o in expected.outputs)


def test_more_beams_than_can_run_name_their_field(server: RunningServer, tiny_model: Path) -> None:
    answer = httpx.post(server.url + COMPLETIONS, json={"prompt": "a", "use_beam_search": True, "n": 17})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "n"
    running = RunningServer(tiny_model, "--max-num-seqs", "4", "--num-gpu-blocks-override", "33").wait_ready()
    try:
        many = httpx.post(running.url + COMPLETIONS, json={"prompt": "a", "use_beam_search": True, "best_of": 5})
        assert many.status_code == 400 and many.json()["error"]["param"] == "best_of" and "max_num_seqs is 4" in many.text
        long = httpx.post(
            running.url + COMPLETIONS, json={"prompt": "a", "use_beam_search": True, "best_of": 4, "max_tokens": 400}
        )
        assert long.status_code == 400 and long.json()["error"]["param"] == "best_of" and "KV blocks" in long.text
    finally:
        running.kill()


@pytest.mark.parametrize("extra", [{"best_of": 8}, {"use_beam_search": True, "best_of": 8}], ids=["best_of", "beams"])
def test_a_client_that_leaves_frees_every_block(server: RunningServer, extra: dict[str, Any]) -> None:
    gone = server.metric("octavo_clients_gone_total")
    sock = raw_post(server, COMPLETIONS, {"prompt": ["Once"] * 64, "max_tokens": 500, "ignore_eos": True, **extra})
    server.wait_until_busy()
    sock.close()
    server.wait_metric("octavo_clients_gone_total", gone + 1)
    server.wait_metric("octavo_kv_blocks", 0, state="used")


def test_sharing_is_counted_for_each_request(server: RunningServer, llm: LLM) -> None:
    names = ("blocks_allocated", "blocks_shared", "copy_on_writes")
    before = {name: server.metric(f"octavo_request_{name}_total") for name in names}
    prompt = list(range(200, 240))
    (expected,) = llm.generate([prompt], SamplingParams(n=4, temperature=1.0, max_tokens=8, ignore_eos=True), use_tqdm=False)
    post(server, COMPLETIONS, prompt=prompt, n=4, temperature=1.0, max_tokens=8, ignore_eos=True)
    assert expected.metrics is not None and expected.metrics.copy_on_writes == 3
    for name in names:
        assert server.metric(f"octavo_request_{name}_total") - before[name] == getattr(expected.metrics, name)
