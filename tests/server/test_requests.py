"""What the engine is asked: defaults, clamps, prompts, scopes; and the routes that are not about generating."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.config import ConfigError
from octavo.sampling_params import SamplingParams
from octavo.server.options import ServerOptions
from octavo.server.protocol import CompletionRequest
from octavo.server.responses import ChatResponse, CompletionResponse
from tests.server.fakes import Bench, error_of

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


def asked(bench: Bench, path: str = COMPLETIONS, **fields: Any) -> SamplingParams:
    subject: dict[str, Any] = {"prompt": "hi"} if path == COMPLETIONS else {"messages": HELLO}
    status, answer = bench.post(path, **{**subject, **fields})
    assert status == 200, answer
    return bench.engine.requests[-1].params


def test_the_order_of_defaults(bench: Bench) -> None:
    assert asked(bench) == SamplingParams(temperature=0.6, top_k=20, max_tokens=16)
    assert asked(bench, temperature=0, top_k=0) == SamplingParams(temperature=0.0, top_k=0, max_tokens=16)
    assert asked(bench, temperature=None, max_tokens=None, n=None, stop=None, seed=None).temperature == 0.6


def test_max_tokens_are_clamped_to_the_context(bench: Bench) -> None:
    assert asked(bench, prompt=[5] * 60).max_tokens == 4
    chat = asked(bench, CHAT)
    assert chat.max_tokens == 64 - len(bench.engine.requests[-1].prompt_token_ids)
    assert asked(bench, CHAT, max_tokens=5).max_tokens == 5
    assert asked(bench, CHAT, max_tokens=5, max_completion_tokens=6).max_tokens == 6


def test_every_sampling_field_arrives(bench: Bench) -> None:
    fields: dict[str, Any] = {
        "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "presence_penalty": 0.1, "frequency_penalty": 0.2,
        "repetition_penalty": 1.1, "seed": 42, "max_tokens": 9, "min_tokens": 2, "stop": ["x"], "stop_token_ids": [5],
        "include_stop_str_in_output": True, "ignore_eos": True, "allowed_token_ids": [5, 6], "bad_words": ["bad"],
        "skip_special_tokens": False, "spaces_between_special_tokens": False,
    }  # fmt: skip
    for path in (COMPLETIONS, CHAT):
        assert asked(bench, path, **fields) == SamplingParams(**fields)
        assert bench.engine.requests[-1].seed == 42
        assert bench.engine.requests[-1].bad_words_token_ids == bench.tokenizer.bad_words_ids(["bad"])


def test_logit_bias_is_clamped_and_top_k_too(bench: Bench) -> None:
    assert asked(bench, logit_bias={"5": 500, "6": -500, "7": 1.5}).logit_bias == {5: 100.0, 6: -100.0, 7: 1.5}
    assert asked(bench, top_k=2**31 - 1).top_k == bench.served.limits.vocab_size


def test_greedy_n_is_accepted(bench: Bench) -> None:
    assert asked(bench, n=3, temperature=0).n == 3


def test_requests_without_a_seed_get_different_ones(bench: Bench) -> None:
    asked(bench)
    asked(bench, seed=-1)
    first, second = (request.seed for request in bench.engine.requests)
    assert first != second and min(first, second) >= 0 and max(first, second) < 2**63


def test_logprobs_in_both_shapes(bench: Bench) -> None:
    assert asked(bench, logprobs=0).logprobs == 0
    assert asked(bench).logprobs is None
    assert asked(bench, CHAT, logprobs=True).logprobs == 0
    assert asked(bench, CHAT, logprobs=True, top_logprobs=3).logprobs == 3
    assert asked(bench, CHAT, logprobs=False).logprobs is None


def test_scope_and_priority(tmp_path: Path) -> None:
    bench = Bench(tmp_path, scheduling_policy="priority")
    asked(bench, cache_salt="tenant", priority=-5)
    assert (bench.engine.requests[0].cache_scope, bench.engine.requests[0].priority) == ("tenant", -5)


@pytest.mark.parametrize(
    ("prompt", "count"), [("hi", 1), (["hi", "you"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2), (["one"] * 64, 64)]
)
def test_the_four_forms_of_prompts(bench: Bench, prompt: Any, count: int) -> None:
    asked(bench, prompt=prompt, max_tokens=1)
    assert len(bench.engine.requests) == count
    encoded = [request.prompt_token_ids for request in bench.engine.requests]
    assert len({request.id for request in bench.engine.requests}) == count
    if prompt == ["hi", "you"]:
        assert encoded == [bench.tokenizer.encode("hi"), bench.tokenizer.encode("you")]
    if prompt == [[5, 6], [7]]:
        assert encoded == [[5, 6], [7]]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"max_tokens": 4.0}, {"max_tokens": 4}),
        ({"max_tokens": "4", "n": "2"}, {"max_tokens": 4, "n": 2}),
        ({"seed": "7", "top_k": 40.0}, {"seed": 7, "top_k": 40}),
        ({"temperature": "0", "ignore_eos": 1}, {"temperature": 0, "ignore_eos": True}),
        ({"stop_token_ids": [5.0, "6"]}, {"stop_token_ids": [5, 6]}),
        ({"logit_bias": {"5": "1.5"}}, {"logit_bias": {"5": 1.5}}),
        ({"top_k": 2**31}, {"top_k": 2**30}),
        ({"model": ""}, {"model": "tiny"}),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_values_as_clients_of_other_servers_write_them(
    bench: Bench, path: str, given: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert asked(bench, path, **given) == asked(bench, path, **meant)


def test_strings_that_look_like_something_else_stay_strings(bench: Bench) -> None:
    for text in ("null", "1", "true"):
        params = asked(bench, COMPLETIONS, prompt=text, stop=text)
        assert list(params.stop or ()) == [text]
        assert bench.tokenizer.decode(bench.engine.requests[-1].prompt_token_ids) == text
        asked(bench, CHAT, messages=[{"role": "user", "content": text}])
        assert f"user\n{text}" in bench.tokenizer.decode(bench.engine.requests[-1].prompt_token_ids)


def test_token_ids_may_have_a_point(bench: Bench) -> None:
    for prompt, ids in (([5.0, 6], [5, 6]), ([[5.0, 6.0]], [5, 6])):
        _, answer = bench.post(COMPLETIONS, prompt=prompt, return_token_ids=True)
        assert bench.engine.requests[-1].prompt_token_ids == answer["choices"][0]["prompt_token_ids"] == ids
        assert all(type(token) is int for token in bench.engine.requests[-1].prompt_token_ids)
    assert bench.post("/detokenize", tokens=[5.0, 6.0])[1] == bench.post("/detokenize", tokens=[5, 6])[1]


def test_streams_may_be_asked_for_by_a_number(bench: Bench) -> None:
    for given in (1, "true", True):
        assert bench.call("POST", COMPLETIONS, {"prompt": "hi", "stream": given})[2].startswith(b"data: ")


@pytest.mark.parametrize("path", [COMPLETIONS, "/invocations"])
def test_a_mark_before_the_body_is_left_out(bench: Bench, path: str) -> None:
    assert bench.call("POST", path, b"\xef\xbb\xbf" + b'{"prompt": "hi"}')[0] == 200


def test_truncation(bench: Bench) -> None:
    ids = list(range(10, 90))
    asked(bench, prompt=ids, truncate_prompt_tokens=5)
    asked(bench, prompt=ids, truncate_prompt_tokens=5, truncation_side="right")
    assert [r.prompt_token_ids for r in bench.engine.requests] == [ids[-5:], ids[:5]]


def test_chat_prompts_follow_the_template(bench: Bench) -> None:
    def prompt(**fields: Any) -> str:
        asked(bench, CHAT, max_tokens=1, **fields)
        return bench.tokenizer.decode(bench.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)

    assert prompt() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt(add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prompt(messages=[{"role": "critic", "content": parts}], add_generation_prompt=False) == (
        "<|im_start|>critic\none\ntwo<|im_end|>\n"
    )
    begun = [*HELLO, {"role": "assistant", "content": "Well, "}]
    assert prompt(messages=begun, continue_final_message=True).endswith("<|im_start|>assistant\nWell, ")


def test_echo_of_the_message_that_is_continued(bench: Bench) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Well, "}]
    _, answer = bench.post(CHAT, messages=begun, continue_final_message=True, echo=True)
    assert answer["choices"][0]["message"]["content"] == "Well, one two three"
    _, _, body = bench.call("POST", CHAT, {"messages": begun, "continue_final_message": True, "echo": True, "stream": True})
    chunks = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Well, one two three"


def test_ids_and_text_of_the_prompt_on_request(bench: Bench) -> None:
    _, answer = bench.post(CHAT, messages=HELLO, return_token_ids=True, return_prompt_text=True, max_tokens=2)
    assert answer["prompt_token_ids"] == bench.engine.requests[0].prompt_token_ids
    assert answer["prompt_text"].startswith("<|im_start|>user")
    assert answer["choices"][0]["token_ids"] == bench.engine.token_ids[:2]
    _, answer = bench.post(COMPLETIONS, prompt=[5, 6], return_token_ids=True, max_tokens=2)
    assert (
        answer["choices"][0]["prompt_token_ids"] == [5, 6] and answer["choices"][0]["token_ids"] == bench.engine.token_ids[:2]
    )


def test_tokenize_and_detokenize(bench: Bench) -> None:
    status, answer = bench.post("/tokenize", prompt="hello there")
    assert status == 200 and list(answer) == ["count", "max_model_len", "tokens", "token_strs"] and answer["token_strs"] is None
    assert answer["tokens"] == bench.tokenizer.encode("hello there")
    _, answer = bench.post("/tokenize", messages=HELLO, return_token_strs=True)
    assert answer["token_strs"][0] == "<|im_start|>" and answer["count"] == len(answer["tokens"])
    assert "Ċ" in answer["token_strs"], "as the vocabulary writes them"
    assert bench.post("/detokenize", tokens=answer["tokens"])[1]["prompt"].startswith("<|im_start|>user\nhi")


def test_models_list_every_name(bench: Bench) -> None:
    status, _, body = bench.call("GET", "/v1/models")
    cards = json.loads(body)["data"]
    assert status == 200 and [card["id"] for card in cards] == ["tiny", "alias"]
    assert cards[0]["max_model_len"] == 64 and cards[0]["parent"] is None and cards[0]["permission"][0]["group"] is None


def test_one_model_by_its_name(bench: Bench) -> None:
    cards = json.loads(bench.call("GET", "/v1/models")[2])["data"]
    for card in cards:
        status, _, body = bench.call("GET", f"/v1/models/{card['id']}")
        assert status == 200 and json.loads(body) == card
    for name in ("other", "org/other", "org%2Fother"):
        status, _, body = bench.call("GET", f"/v1/models/{name}")
        assert error_of(status, body)["code"] == 404


def test_usage_for_those_who_did_not_ask(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "tokenizer", ServerOptions(enable_force_include_usage=True))
    for path, subject in ((COMPLETIONS, {"prompt": "hi"}), (CHAT, {"messages": HELLO})):
        for more in ({}, {"stream_options": {"include_usage": False}}):
            _, _, body = bench.call("POST", path, {**subject, "max_tokens": 3, "stream": True, **more})
            *events, done = body.decode().strip().split("\n\n")
            chunks = [json.loads(event.removeprefix("data: ")) for event in events]
            assert done == "data: [DONE]" and all(chunk["usage"] for chunk in chunks) and chunks[-1]["choices"] == []
        assert bench.post(path, **subject, max_tokens=3)[0] == 200


def test_web_pages_may_call_where_they_are_let(tmp_path: Path) -> None:
    page = "https://page.example"
    ask = {"origin": page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    options = ServerOptions(allowed_origins=(page,), api_key=("secret",))
    bench = Bench(tmp_path / "tokenizer", options)
    status, headers, _ = bench.call("OPTIONS", COMPLETIONS, headers=ask)
    assert (status, headers["access-control-allow-origin"]) == (200, page)
    assert "POST" in headers["access-control-allow-methods"]
    assert bench.call("OPTIONS", COMPLETIONS, headers={**ask, "origin": "https://other.example"})[0] == 400
    sent = {"origin": page, "authorization": "Bearer secret"}
    status, headers, _ = bench.call("POST", COMPLETIONS, {"prompt": "hi"}, headers=sent)
    assert (status, headers["access-control-allow-origin"]) == (200, page) and "x-request-id" in headers
    status, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "hi"}, headers={"origin": page})
    assert error_of(status, body)["code"] == 401 and headers["access-control-allow-origin"] == page
    closed = Bench(tmp_path / "closed")
    status, headers, _ = closed.call("OPTIONS", COMPLETIONS, headers=ask)
    assert status == 405 and "access-control-allow-origin" not in headers
    with pytest.raises(ConfigError, match="--allowed-origins"):
        ServerOptions(allowed_origins=('["*]',)).check()


@pytest.mark.parametrize(
    "given", [('["http://a.example","http://b.example"]',), ('["http://a.example"', '"http://b.example"]')]
)
def test_web_pages_may_be_a_json_list(given: tuple[str, ...]) -> None:
    """The second as a variable of the environment is cut."""
    options = ServerOptions(allowed_origins=given)
    options.check()
    assert options.allowed_origins == ("http://a.example", "http://b.example")
    assert ServerOptions(allowed_origins=('["*"]',)).allowed_origins == ("*",)


@pytest.mark.parametrize(
    ("origin", "may"),
    [
        ("http://site.example:8000", False),  # the server's own page, to a browser that was told so by the site's name server
        ("https://site.example", False),
        ("http://localhost.site.example", False),
        ("http://[::1", False),
        ("http://localhost:3000", True),
        ("http://ui.localhost.", True),
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("http://192.168.1.7", True),
        ("chrome-extension://abcdef", True),
        ("app://notes", True),
        ("null", True),
        ("https://page.example", True),
    ],
)
def test_pages_of_other_names_do_not_post_to_a_server_without_keys(tmp_path: Path, origin: str, may: bool) -> None:
    options = ServerOptions(allowed_origins=("https://page.example",))
    ask = partial(Bench.call, method="POST", path=COMPLETIONS, body={"prompt": "hi"}, headers={"origin": origin})
    status, _, body = ask(Bench(tmp_path / "tokenizer", options))
    if may:
        assert status == 200
    else:
        error = error_of(status, body)
        assert (error["code"], error["param"]) == (403, "origin") and "--allowed-origins" in error["message"]
        for open_to_it in (ServerOptions(allowed_origins=("*",)), ServerOptions(insecure_no_auth=True)):
            assert ask(Bench(tmp_path / "other", open_to_it))[0] == 200


def test_fields_of_other_servers_at_their_defaults_change_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "tokenizer", ServerOptions(strict=True))
    defaults: dict[str, Any] = {
        "watermarking": None, "stream_interval": None, "vllm_xargs": None, "return_token_offsets": False,
        "mm_payload": "tensors",
        "routed_experts_prompt_start": 0, "session_id": None, "logprob_token_ids": None, "repetition_detection": None,
    }  # fmt: skip
    assert asked(bench, **defaults) == asked(bench)
    assert asked(bench, CHAT, **defaults, media_io_kwargs=None, mm_processor_kwargs=None) == asked(bench, CHAT)
    for name, value in {
        "vllm_xargs": {"a": 1},
        "watermarking": {"k": 1},
    }.items():
        assert bench.error(COMPLETIONS, prompt="hi", **{name: value})["param"] == name


def test_small_routes(bench: Bench) -> None:
    assert bench.call("GET", "/health")[::2] == (200, b"")
    assert bench.call("POST", "/ping")[0] == 200
    assert json.loads(bench.call("GET", "/version")[2]) == {"version": "0.1.0"}
    assert json.loads(bench.call("GET", "/healthz/startup")[2]) == {"status": "started"}
    bench.status.queue_full = True
    assert bench.call("GET", "/healthz/ready")[0] == 503 and bench.call("GET", "/healthz/live")[0] == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/version", "/metrics"])
def test_a_slash_at_the_end_of_a_path_means_nothing(bench: Bench, path: str) -> None:
    if path == "/metrics":
        assert bench.call("GET", path + "/")[0] == 200
    else:
        assert bench.call("GET", path + "/")[::2] == bench.call("GET", path)[::2]
    assert {line["path"] for line in bench.lines()} <= {path} - {"/health", "/metrics"}, "probes and scrapes are not logged"


def test_an_assistants_refusal_goes_back_as_what_it_said(bench: Bench) -> None:
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "one"}, {"type": "text", "text": "two"}]}
    status, answer = bench.post(CHAT, messages=[{"role": "user", "content": "x"}, said, {"role": "user", "content": "y"}])
    assert status == 200, answer
    assert "assistant\none\ntwo" in bench.tokenizer.decode(bench.engine.requests[0].prompt_token_ids, skip_special_tokens=False)


def test_metrics_count_requests(bench: Bench) -> None:
    bench.post(COMPLETIONS, prompt=[5, 6], max_tokens=2, n=2)
    bench.post(COMPLETIONS, prompt="x", n=0)
    status, headers, body = bench.call("GET", "/metrics")
    text = body.decode()
    labels = 'engine="0",model_name="tiny"'
    assert status == 200 and headers["content-type"].startswith("text/plain")
    assert f"octavo_request_generation_tokens_sum{{{labels}}} 4.0" in text
    assert f'vllm:request_success_total{{{labels},finished_reason="length"}} 2.0' in text.replace(
        'engine="0",finished_reason="length",model_name="tiny"', f'{labels},finished_reason="length"'
    )
    assert 'octavo_http_responses_total{code="400"} 1.0' in text
    assert f"octavo_saturation{{{labels}}} 0.25" in text
    assert "vllm:time_to_first_token_seconds_bucket" in text
    assert f"vllm:request_max_num_generation_tokens_sum{{{labels}}} 2.0" in text
    for part in ("prefill", "decode"):
        assert f"vllm:request_{part}_time_seconds_count{{{labels}}} 1.0" in text
    assert "process_resident_memory_bytes" in text
    cache = 'block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_gpu_blocks="8"'
    assert f"vllm:cache_config_info{{{cache}}} 1.0" in text


def test_series_are_few(tmp_path: Path) -> None:
    text = Bench(tmp_path / "tokenizer", context=131072).call("GET", "/metrics")[2].decode()
    assert sum(not line.startswith("#") for line in text.splitlines()) <= 300


def test_the_official_client_finds_every_field_of_the_answers() -> None:
    """Its own types name the fields; ours have them all, except those of features this server does not have."""
    from openai.types import Completion, CompletionChoice
    from openai.types.chat import ChatCompletion

    ours = set(CompletionResponse.__struct_fields__)
    assert set(Completion.model_fields) <= ours
    assert {"finish_reason", "index", "logprobs", "text"} <= set(CompletionChoice.model_fields)
    assert {name for name, field in ChatCompletion.model_fields.items() if field.is_required()} <= set(
        ChatResponse.__struct_fields__
    )


def test_the_official_client_sends_no_completion_field_that_is_unknown() -> None:
    """Every parameter of the client's method is honoured, taken without effect, or refused with a reason."""
    import inspect

    from openai.resources.completions import Completions

    transport = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    assert set(inspect.signature(Completions.create).parameters) - transport <= set(CompletionRequest.__struct_fields__)


def test_offsets_of_the_prompts_tokens(bench: Bench) -> None:
    text = "one Köln  two"
    for cut in ({}, {"truncate_prompt_tokens": 3}, {"truncate_prompt_tokens": 3, "truncation_side": "right"}):
        fields = {**cut, "return_token_offsets": True, "return_token_ids": True, "max_tokens": 2}
        for stream in (False, True):
            _, _, body = bench.call("POST", COMPLETIONS, {"prompt": [text, "two"], **fields, "stream": stream})
            chunks = [json.loads(line.removeprefix("data: ")) for line in body.decode().splitlines() if "{" in line]
            told = [c for chunk in chunks for c in chunk["choices"] if c.get("prompt_token_offsets") is not None]
            assert [choice["index"] for choice in told] == [0, 1]
            for choice, source in zip(told, (text, "two"), strict=True):
                ids, offsets = choice["prompt_token_ids"], choice["prompt_token_offsets"]
                assert len(ids) == len(offsets)
                for token, (begin, end) in zip(ids, offsets, strict=True):
                    found = bench.tokenizer.decode([token])
                    assert "\ufffd" in found or found.strip() == source[begin:end].strip()
    _, answer = bench.post(COMPLETIONS, prompt=[5, 6], return_token_offsets=True)
    assert answer["choices"][0]["prompt_token_offsets"] is None
    assert "prompt_token_offsets" not in bench.post(COMPLETIONS, prompt="one")[1]["choices"][0]


def test_offsets_in_a_chat(bench: Bench) -> None:
    fields = {"messages": HELLO, "return_token_offsets": True, "return_prompt_text": True, "return_token_ids": True}
    for stream in (False, True):
        _, _, body = bench.call("POST", CHAT, {**fields, "stream": stream})
        first = json.loads(body.decode().splitlines()[0].removeprefix("data: "))
        offsets, text = first["prompt_token_offsets"], first["prompt_text"]
        assert len(offsets) == len(first["prompt_token_ids"]) and offsets[-1][1] == len(text)
        assert all(0 <= begin <= end <= len(text) for begin, end in offsets)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_header_that_sets_a_priority(tmp_path: Path, path: str) -> None:
    bench = Bench(tmp_path / "a", scheduling_policy="priority")
    body = {"messages": HELLO} if path == CHAT else {"prompt": "hi"}
    for header, own, priority in (("-10", {}, -10), (" 7 ", {"priority": 3}, 7), ("0", {"priority": 3}, 0)):
        status, _, _ = bench.call("POST", path, {**body, **own}, headers={"X-Vllm-Priority": header})
        assert status == 200 and bench.engine.requests[-1].priority == priority
    for bad in ("", "1.5", "high", "--1", "99999999999", "2147483648", "\u00b2"):
        error = error_of(*bench.call("POST", path, body, headers={"X-Vllm-Priority": bad})[::2])
        assert error["param"] == "x-vllm-priority" and "X-Vllm-Priority" in error["message"]
    plain = Bench(tmp_path / "b")
    for header, warnings in (("1", ["`priority` has no effect without --scheduling-policy priority"]), ("0", [])):
        status, _, answer = plain.call("POST", path, body, headers={"X-Vllm-Priority": header})
        assert status == 200 and json.loads(answer).get("warnings", []) == warnings
    strict = Bench(tmp_path / "c", ServerOptions(strict=True))
    error = error_of(*strict.call("POST", path, body, headers={"X-Vllm-Priority": "1"})[::2])
    assert error["param"] == "priority" and "not enabled" in error["message"]


def test_the_page_under_its_other_name_and_none_at_all(bench: Bench, tmp_path: Path) -> None:
    assert bench.call("GET", "/redoc")[::2] == bench.call("GET", "/docs")[::2]
    closed = Bench(tmp_path / "closed", ServerOptions(disable_fastapi_docs=True))
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert closed.call("GET", path)[0] == 404
    assert closed.call("GET", "/version")[0] == 200
