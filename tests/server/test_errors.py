"""Every way in which a request can be wrong: its status, its field, and always the one shape."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from octavo.sampling_params import ParameterError
from octavo.server import errors
from octavo.server.body import decode, nests_deeper
from octavo.server.options import ServerOptions
from octavo.server.protocol import CompletionRequest
from tests.server.fakes import Bench, error_of

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]

BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": "abc"}, "max_tokens", "expected `int | null`, got `str`"),
    ({"max_tokens": 9999}, "max_tokens", "max_tokens=9999 cannot be greater than max_model_len=64."),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0."),
    ({"max_tokens": -3}, "max_tokens", "max_tokens must be at least 1, got -3."),
    ({"temperature": -1.0}, "temperature", "temperature must be in [0, 2], got -1.0."),
    ({"temperature": 3.0}, "temperature", "(parameter=temperature, value=3.0)"),
    ({"top_p": 0}, "top_p", "top_p must be in (0, 1]"),
    ({"top_p": 1.5}, "top_p", "top_p must be in (0, 1]"),
    ({"top_k": -2}, "top_k", "top_k must be 0"),
    ({"min_p": 2}, "min_p", "min_p must be in [0, 1]"),
    ({"presence_penalty": 3}, "presence_penalty", "presence_penalty must be in [-2, 2]"),
    ({"frequency_penalty": -3}, "frequency_penalty", "frequency_penalty must be in [-2, 2]"),
    ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be greater than zero"),
    ({"repetition_penalty": 1e-38}, "repetition_penalty", "at least 1e-06, got 1e-38."),
    ({"n": 0}, "n", "n must be between 1 and 128, got 0."),
    ({"n": 129}, "n", "n must be between 1 and 128, got 129."),
    ({"n": 2**31 - 1}, "n", "n must be between 1 and 128, got 2147483647."),
    ({"n": 2**40}, "n", "n: expected `int` <="),
    ({"seed": 2**64}, "seed", "seed must fit in 64 bits"),
    ({"min_tokens": 20}, "min_tokens", "min_tokens must be less than or equal to max_tokens=16"),
    ({"stop": ""}, "stop", "stop cannot contain an empty string"),
    ({"stop": ["a"] * 17}, "stop", "stop must have at most 16 strings"),
    ({"stop": ["a" * 257]}, "stop", "a stop string has at most 256 characters"),
    ({"stop": [1]}, "stop[0]", "expected `str`"),
    ({"stop_token_ids": [99999]}, "stop_token_ids", "out-of-vocab"),
    ({"stop_token_ids": list(range(1025))}, "stop_token_ids", "stop_token_ids must have at most 1024 token ids, got 1025."),
    ({"allowed_token_ids": [99999]}, "allowed_token_ids", "out-of-vocab"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids", "must not be negative"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "must not be empty"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", "contain out-of-vocab token ids. Vocabulary size: "),
    ({"logit_bias": {"a": 1}}, "logit_bias", "cannot be converted to integer token IDs: ['a']"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "cannot be converted to integer token IDs: ['-1']"),
    ({"bad_words": ["a"] * 129}, "bad_words", "bad_words must have at most 128 entries"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "Requested prompt logprobs of 21, which is greater than max allowed: 20"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "prompt_logprobs must be at least 0"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not available when `stream=True`"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "Stream options can only be defined when `stream=True`."),
    ({"stream": True, "stream_options": {"include_usage": "a"}}, "stream_options.include_usage", "expected `bool"),
    ({"max_tokens": 4.5}, "max_tokens", "expected `int | null`, got `float`"),
    ({"max_tokens": True}, "max_tokens", "expected `int | null`, got `bool`"),
    ({"temperature": "nan"}, "temperature", "expected `float`"),
    ({"logit_bias": {"5": "inf"}}, "logit_bias[...]", "expected `float`"),
    ({"cache_salt": 1}, "cache_salt", "expected `str | null`, got `int`"),
    ({"cache_salt": "a/b"}, "cache_salt", "cache_salt"),
    ({"cache_salt": "a" * 129}, "cache_salt", "length <= 128"),
    ({"truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "must be -1 or in [1, 64], got 65."),
    ({"truncation_side": "up"}, "truncation_side", "left or right"),
    ({"best_of": 1, "n": 2}, "best_of", "between n=2 and 128, got 1"),
    ({"best_of": 129}, "best_of", "between n=1 and 128"),
    ({"use_beam_search": True, "n": 17}, "n", "n is the beam width and must be at most 16, got 17"),
    ({"use_beam_search": True, "n": 2, "best_of": 17}, "best_of", "best_of is the beam width"),
    ({"use_beam_search": True, "n": 3, "best_of": 2}, "best_of", "between n=3 and 128"),
    ({"use_beam_search": True, "stop": ["x"]}, "stop", "use stop_token_ids"),
    ({"use_beam_search": True, "length_penalty": 11}, "length_penalty", "[-10, 10]"),
    ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping", 'true, false or "never"'),
    ({"use_beam_search": "yes"}, "use_beam_search", "bool"),
    ({"stream": True, "stream_options": {"include_beams": True}}, "stream_options", "needs `use_beam_search`"),
    ({"request_id": "a b"}, "request_id", "printable ASCII"),
    ({"request_id": "a" * 257}, "request_id", "length <= 256"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD_FIELDS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_bad_fields_are_named(bench: Bench, path: str, fields: dict[str, Any], param: str, words: str) -> None:
    if path == CHAT and param == "min_tokens":
        fields = {**fields, "max_tokens": 16}
    subject = {"prompt": "hi"} if path == COMPLETIONS else {"messages": HELLO}
    error = bench.error(path, **subject, **fields)
    assert (error["code"], error["param"]) == (400, param)
    assert words in error["message"] and error["type"] in ("BadRequestError", "Bad Request")
    assert not bench.engine.requests


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "prompt", "must be provided"),
        ({"prompt": ""}, "prompt", "must be provided"),
        ({"prompt": []}, "prompt", "must be provided"),
        ({"prompt": [""]}, "prompt", "cannot be empty"),
        ({"prompt": [[]]}, "prompt", "cannot be empty"),
        ({"prompt": 5}, "prompt", "expected a string"),
        ({"prompt": {"a": 1}}, "prompt", "expected a string"),
        ({"prompt": ["a", 1]}, "prompt[0]", "strings only"),
        ({"prompt": [[1], "a"]}, "prompt[1]", "strings only"),
        ({"prompt": [1, -1]}, "prompt[0]", "from 0"),
        ({"prompt": [True]}, "prompt[0]", "strings only"),
        ({"prompt": [1, 2.5]}, "prompt[0]", "from 0"),
        ({"prompt": [[1.0], [True]]}, "prompt[1]", "strings only"),
        ({"prompt": [1e300]}, "prompt[0]", "from 0"),
        ({"prompt": ["a"] * 65}, "prompt", "at most 64 entries"),
        ({"prompt": [999999]}, "prompt", "Token id 999999 is out of vocabulary"),
        ({"prompt": "\ud800"}, "body", "JSON decode error"),
        (
            {"prompt": [5] * 65},
            "input_tokens",
            "This model's maximum context length is 64 tokens. However, your prompt contains 65",
        ),
        ({"prompt": [5] * 64}, "input_tokens", "The decoder prompt (length 64) plus the number of requested output tokens"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "Requested sample logprobs of 21, which is greater than max allowed: 20"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_completions(bench: Bench, fields: dict[str, Any], param: str, words: str) -> None:
    body = json.dumps({"temperature": 0, **fields}).encode()
    status, _, answer = bench.call("POST", COMPLETIONS, body)
    error = error_of(status, answer)
    assert (status, error["param"]) == (400, param) and words in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"prompt": [5] * 65}, "input_tokens"),
        ({"prompt": [999999]}, "prompt"),
        ({"temperature": 9}, "temperature"),
        ({"stop": [""]}, "stop"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_echo_passes_the_same_checks(bench: Bench, fields: dict[str, Any], param: str, stream: bool) -> None:
    error = bench.error(COMPLETIONS, **{"prompt": "hi", "echo": True, "max_tokens": 0, "stream": stream, **fields})
    assert (error["code"], error["param"]) == (400, param)


def test_n_is_refused_before_anything_grows_with_it(bench: Bench) -> None:
    tracemalloc.start()
    bench.error(COMPLETIONS, prompt=["x"] * 64, n=2**31 - 1)
    bench.error(CHAT, messages=HELLO, n=2**31 - 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "messages", "field required"),
        ({"messages": []}, "messages", "must not be empty"),
        ({"messages": "hi"}, "messages", "expected `array`"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "field required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "expected `str | array | null`"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages", "only text is"),
        ({"messages": HELLO * 2049}, "messages", "at most 2048 entries"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", "`logprobs` must be set to true"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "sample logprobs of 21"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": -1}, "top_logprobs", "top_logprobs must be at least 0"),
        ({"messages": HELLO, "tool_choice": "auto"}, "tool_choice", "`tools` must be set"),
        ({"messages": HELLO, "chat_template": "{{ x }}"}, "chat_template", "not trusted"),
        ({"messages": HELLO, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "cannot set 'messages'"),
        ({"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "both"),
        ({"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens must be at least 1"),
        ({"messages": HELLO, "max_completion_tokens": 2, "min_tokens": 3}, "min_tokens", "equal to max_completion_tokens=2"),
        ({"messages": HELLO, "max_completion_tokens": 100}, "max_completion_tokens", "max_completion_tokens=100 cannot"),
        ({"messages": [{"role": "user", "content": "word " * 200}]}, "input_tokens", "maximum context length"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_chats(bench: Bench, fields: dict[str, Any], param: str, words: str) -> None:
    error = bench.error(CHAT, **fields)
    assert (error["code"], error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"  ", "body"),
        (b'{"prompt": ', "body"),
        (b'{"prompt": "a",}', "body"),
        (b'{"prompt": "a", "temperature": NaN}', "body"),
        (b'{"prompt": "a", "temperature": Infinity}', "body"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature"),
        (b"\xff\xfe", "body"),
        (b'"a"', None),
        (b"[]", None),
        (b'{"user": ' + b"[" * 64 + b"]" * 64 + b"}", "body"),
        (b"[" * 100_000, "body"),
        (b'{"a":' * 100_000, "body"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies_that_are_no_request(bench: Bench, body: bytes, param: str | None) -> None:
    status, _, answer = bench.call("POST", COMPLETIONS, body)
    error = error_of(status, answer)
    assert (status, error["param"], error["type"]) == (400, param, "Bad Request")


def test_nesting_is_counted_outside_strings() -> None:
    assert not nests_deeper(b"[" * 64 + b"]" * 64, 64)
    assert nests_deeper(b"[" * 65 + b"]" * 65, 64)
    assert nests_deeper(b'{"a":[' * 33 + b"]}" * 33, 64)
    assert not nests_deeper(b"[[]," * 40 + b"[]" + b"]" * 40, 64)
    assert not nests_deeper(b'["' + b"[" * 500 + b'\\"[[[["]', 64)
    assert nests_deeper(b'["\\\\",' * 70 + b"]" * 70, 64)


def test_other_media_types(bench: Bench) -> None:
    for kind in ("text/plain", "", "multipart/form-data; boundary=x"):
        status, _, body = bench.call("POST", COMPLETIONS, b"{}", headers={"content-type": kind})
        assert status == 415 and "Only 'application/json' is allowed" in error_of(status, body)["message"]
    status, _, _ = bench.call("POST", COMPLETIONS, {"prompt": "a"}, headers={"content-type": "application/json; charset=utf-8"})
    assert status == 200


def test_bodies_that_are_too_large(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ServerOptions(max_body_bytes=2000))
    status, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "a" * 3000})
    assert status == 413 and headers["connection"] == "close" and "2000 bytes" in error_of(status, body)["message"]
    status, _, _ = bench.call("POST", COMPLETIONS, {"prompt": "a" * 30}, headers={"content-length": "99999"})
    assert status == 413


def test_unknown_model_route_and_method(bench: Bench) -> None:
    error = bench.error(COMPLETIONS, prompt="a", model="gpt-4")
    assert error["code"] == 404 and error["type"] == "NotFoundError" and error["param"] == "model"
    assert error["message"] == "The model `gpt-4` does not exist. Valid aliases: tiny, alias."
    for path, subject in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HELLO}), ("/tokenize", {"prompt": "a"})):
        status, _, body = bench.call("POST", path, {**subject, "model": "/secret/tiny"})
        assert status == 200 and b"secret" not in body, "a path is understood and never told"
    assert b"secret" not in bench.call("GET", "/v1/models")[2]
    status, _, body = bench.call("GET", "/v1/nothing")
    assert error_of(status, body)["message"] == "Not Found" and status == 404
    status, headers, body = bench.call("GET", COMPLETIONS)
    assert error_of(status, body)["message"] == "Method Not Allowed" and status == 405 and headers["allow"] == "POST"
    for path in ("/v1/models//", "/v1/completions//", "/nothing/", "//"):
        assert bench.call("GET", path)[0] == 404


def test_the_queue_is_full(bench: Bench) -> None:
    bench.engine.reject = errors.busy(7)
    status, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "a", "stream": True})
    error = error_of(status, body)
    assert status == 503 and headers["retry-after"] == "7" and error["type"] == "Service Unavailable"
    assert error["message"].startswith("The engine is currently busy and cannot accept new requests.")


def test_not_loaded_and_draining(bench: Bench) -> None:
    bench.status.loading("load weights", 0.42)
    status, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "a"})
    assert status == 503 and "load weights" in error_of(status, body)["message"] and "retry-after" in headers
    assert bench.call("GET", "/health")[0] == 503
    bench.status.up()
    bench.status.draining = True
    status, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "a"})
    assert status == 503 and headers["connection"] == "close" and headers["retry-after"]
    assert json.loads(bench.call("GET", "/healthz/ready")[2]) == {"status": "draining"}
    assert bench.call("GET", "/healthz/live")[0] == 200


def test_ready_means_that_a_request_would_be_taken(bench: Bench) -> None:
    """The engine may be up before the tokenizer is read."""
    served, bench.service.served, bench.status.text_up = bench.service.served, None, False
    bench.status.up()
    for path in ("/health", "/healthz/ready", "/v1/models"):
        status, _, body = bench.call("GET", path)
        assert status == 503 and b"read tokenizer" in body, body
    assert bench.call("POST", COMPLETIONS, {"prompt": "a"})[0] == 503
    bench.service.served = served
    bench.status.text_ready()
    assert json.loads(bench.call("GET", "/healthz/live")[2])["phase"] == "ready"
    assert bench.call("GET", "/healthz/ready")[0] == bench.call("POST", COMPLETIONS, {"prompt": "a"})[0] == 200


def test_strict_refuses_unknown_fields(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ServerOptions(strict=True))
    error = bench.error(COMPLETIONS, prompt="a", temprature=1)
    assert (error["code"], error["param"]) == (400, "temprature")
    for fields in ({"max_tokens": 4.0}, {"seed": "7"}, {"stream": 1}, {"priority": 3}):
        (name,) = fields
        assert bench.error(COMPLETIONS, prompt="a", **fields)["param"] == name
    assert bench.error(COMPLETIONS, prompt=[5.0])["param"] == "prompt[0]"
    error = bench.error(CHAT, messages=HELLO, chat_template_kwargs={"thinking": 1})
    assert (error["code"], error["param"]) == (400, "chat_template_kwargs") and "does not use 'thinking'" in error["message"]


def test_of_many_unknown_fields_a_few_are_named() -> None:
    _, unknown = decode(json.dumps({f"k{i}": i for i in range(1000)}).encode(), CompletionRequest, max_depth=64, strict=False)
    assert unknown == [f"k{i}" for i in range(16)]


def test_request_ids(bench: Bench) -> None:
    for given in ({}, *({"x-request-id": bad} for bad in ("", "a b", "ä", "a" * 257))):
        status, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "a", "request_id": ""}, headers=given)
        assert status == 200 and json.loads(body)["id"] == f"cmpl-{headers['x-request-id']}"
        assert len(headers["x-request-id"]) == 32
    _, headers, body = bench.call("POST", COMPLETIONS, {"prompt": "a", "request_id": "own"}, headers={"x-request-id": "abc"})
    assert json.loads(body)["id"] == "cmpl-own" and headers["x-request-id"] == "abc"


def test_tokenize_errors(bench: Bench) -> None:
    assert bench.error("/tokenize")["param"] == "prompt"
    assert bench.error("/tokenize", prompt=5)["param"] == "prompt"
    assert bench.error("/detokenize")["param"] == "tokens"
    assert bench.error("/detokenize", tokens=[-1])["message"].startswith("Token id -1 is out of vocabulary")
    assert bench.error("/detokenize", tokens=[10**6])["param"] == "tokens"
    assert bench.error("/tokenize", prompt="a", model="x")["code"] == 404


def test_messages_repeat_no_long_values() -> None:
    error = errors.from_parameter_error(ParameterError("no", param="stop", value="x" * 10_000))
    assert len(error.message) < 300
