"""Keys: who needs one; the file, roles, limits, tenants of the prefix cache, the books, and reading files again."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from octavo.cli import main
from octavo.config import ConfigError
from octavo.outputs import TokenDelta
from octavo.request import Request
from octavo.server import errors
from octavo.server.app import build_app
from octavo.server.auth import Client, Keyring
from octavo.server.errors import ApiError, busy
from octavo.server.gate import PROBES
from octavo.server.keys import Key, KeysFile, add_key, digest_of, read_keys
from octavo.server.options import ServerOptions
from octavo.server.rate_limits import KeyLimits
from octavo.server.usage_log import UsageLog
from tests.server.fakes import Bench, Exchange, FakeEngine, error_of
from tests.server.tiny import RunningServer

COMPLETIONS = "/v1/completions"


def key(name: str, **fields: Any) -> Key:
    return Key(name=name, sha256=digest_of(f"secret-{name}".encode()).hex(), **fields)


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer secret-{name}"}


def write(path: Path, *keys: Key) -> str:
    path.write_bytes(msgspec.json.encode(KeysFile(list(keys))))
    return str(path)


def guarded(tmp_path: Path, *keys: Key, **options: Any) -> Bench:
    file = write(tmp_path / "keys.json", *keys)
    return Bench(tmp_path / "tokenizer", ServerOptions(api_keys_file=file, **options), scheduling_policy="priority")


def ask(bench: Bench, name: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    return bench.call("POST", COMPLETIONS, {"prompt": "one", "max_tokens": 3, **fields}, headers=bearer(name))


class Clock:
    """Seconds as the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


# ------------------------------------------------------------------------------------------------------------------ the file


def test_new_keys_are_shown_once_and_only_their_digest_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    flags = ["--file", str(file), "--role", "admin", "--max-concurrency", "2", "--tokens-per-minute", "1k"]
    assert main(["keys", "new", "ops", *flags]) == 0
    secret = capsys.readouterr().out.strip()
    assert main(["keys", "new", "other", "--file", str(file)]) == 0
    assert secret not in file.read_text() and len(secret) >= 48
    ops, other = read_keys(str(file))
    assert (ops.name, ops.role, ops.max_concurrency, ops.tokens_per_minute) == ("ops", "admin", 2, 1000)
    assert (other.role, other.max_concurrency) == ("user", None)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    client = Keyring(path=str(file)).identify(f"Bearer {secret}".encode())
    assert client is not None and client.name == "ops"
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]


def test_a_name_is_taken_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys.json")
    add_key(file, key("alice"))
    assert main(["keys", "new", "alice", "--file", file]) == 64
    assert main(["keys", "new", "no spaces", "--file", file]) == 64
    assert "has a key named alice already" in capsys.readouterr().err
    assert len(read_keys(file)) == 1


def test_a_file_keeps_its_owner_and_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that reads it may be another user."""
    file = tmp_path / "keys.json"
    add_key(str(file), key("alice"))
    file.chmod(0o640)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, uid, gid: given.append((uid, gid)))
    umask = os.umask(0o077)
    try:
        add_key(str(file), key("bob"))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert set(given) == {(-1, file.stat().st_gid), (file.stat().st_uid, -1)}


def test_an_owner_that_cannot_be_kept_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)
    for name in ("alice", "bob"):
        add_key(str(tmp_path / "keys.json"), key(name))
    assert len(read_keys(str(tmp_path / "keys.json"))) == 2


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to("real/keys.json")
    for name in ("alice", "bob"):
        add_key(str(link), key(name))
    assert link.is_symlink() and len(read_keys(str(tmp_path / "real" / "keys.json"))) == 2


def test_keys_made_at_once_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "keys.json")
    add_key(file, key("first"))

    def read_slowly(path: str) -> tuple[Key, ...]:
        known = read_keys(path)
        time.sleep(0.02)  # for the others to read the same
        return known

    monkeypatch.setattr("octavo.server.keys.read_keys", read_slowly)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: add_key(file, key(f"u{i}")), range(6)))
    assert {known.name for known in read_keys(file)} == {"first", *(f"u{i}" for i in range(6))}


def test_a_key_that_cannot_be_shown_is_not_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "octavo.cli", "keys", "new", "alice", "--file", str(tmp_path / "keys.json")]
    with open("/dev/full", "wb") as full:
        made = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert made.returncode == 64 and "cannot be shown (no space left on device)" in made.stderr
    assert made.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "truncated"),
        (b"\xff", "byte"),
        (b'{"keys": [{"name": "a"}]}', "sha256"),
        (b'{"keys": [{"name": "a", "sha256": "00"}]}', r"keys\[0\].sha256"),
        (b'{"keys": [{"name": "a/b", "sha256": "%b"}]}' % (b"0" * 64), r"keys\[0\].name"),
        (b'{"keys": [{"name": "a", "sha256": "%b", "rpm": 3}]}' % (b"0" * 64), "rpm"),
        (b'{"keys": [{"name": "a", "sha256": "%b", "role": "root"}]}' % (b"0" * 64), "role"),
        (b'{"keys": [{"name": "a", "sha256": "%b", "tokens_per_minute": 0}]}' % (b"0" * 64), "tokens_per_minute"),
        (msgspec.json.encode(KeysFile([key("a"), key("a")])), "two keys have the name a"),
        (msgspec.json.encode(KeysFile([key("a"), msgspec.structs.replace(key("a"), name="b")])), "two keys have the sha256"),
        (b'{"keys": []}', "has no keys"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        Keyring(path=str(file))
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Keyring(path=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="--usage-log"):
        UsageLog(str(tmp_path / "no" / "such"))


def test_a_file_opens_hosts_to_others(tmp_path: Path) -> None:
    ServerOptions(host="0.0.0.0", api_keys_file=str(tmp_path)).check()


# ------------------------------------------------------------------------------------------------------------- who needs a key


def test_everything_but_the_probes_needs_a_key(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ServerOptions(api_key=("one", "two")))
    status, headers, body = bench.call("GET", "/v1/models")
    assert status == 401 and headers["www-authenticate"] == "Bearer" and error_of(status, body)["type"] == "AuthenticationError"
    for path in ("/metrics", "/tokenize", "/nothing", "/v1/../health", "/metrics/", "/health//", "/health\n"):
        assert bench.call("GET", path)[0] == 401
    assert bench.call("OPTIONS", "/v1/models")[0] == 401
    assert all(bench.call("GET", path)[0] != 401 for path in PROBES)
    assert bench.call("GET", "/v1/models", headers={"authorization": "Bearer two"})[0] == 200


def test_the_keyring() -> None:
    ring = Keyring(("s3cret", "ключ"))
    assert ring.identify(b"Bearer s3cret") and ring.identify(b"bearer s3cret") and ring.identify("Bearer ключ".encode())
    for wrong in (None, b"", b"s3cret", b"Bearer", b"Bearer ", b"Bearer s3cre", b"Basic s3cret", b"Bearer s3cret2"):
        assert not ring.identify(wrong)
    assert Keyring(()).identify(None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_open_hosts_need_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        ServerOptions(host=host).check()
    ServerOptions(host=host, api_key=("k",)).check()
    ServerOptions(host=host, insecure_no_auth=True).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    ServerOptions(host=host).check()


def test_an_empty_key_is_no_key() -> None:
    with pytest.raises(ConfigError):
        ServerOptions(api_key=(" ",)).check()


# --------------------------------------------------------------------------------------------------------------------- roles


def test_roles(tmp_path: Path) -> None:
    bench = guarded(tmp_path, key("u"), key("m", role="metrics"), key("a", role="admin"))
    may = {
        "/v1/models": {"u", "a"},
        "/metrics": {"m", "a"},
        "/version": {"u", "m", "a"},
        COMPLETIONS: {"u", "a"},
        "/nothing": {"u", "a"},
    }
    for path, allowed in may.items():
        for name in "uma":
            status, _, body = bench.call("GET", path, headers=bearer(name))
            assert (status != 403) == (name in allowed), (path, name)
            if status == 403:
                assert error_of(status, body)["type"] == "PermissionDeniedError"
            for spelled in (path + "/", path + "//", path + "\n", path + "/\n"):
                more = bench.call("GET", spelled, headers=bearer(name))[0]
                assert more in {status, 403, 404} and (more != 200 or spelled == path + "/"), (spelled, name)
        assert bench.call("GET", path, headers=bearer("x"))[0] == 401
        assert bench.call("GET", path)[0] == 401
    assert bench.call("GET", "/health")[0] == 200


# -------------------------------------------------------------------------------------------------------------------- limits


def limited(answer: tuple[int, dict[str, str], bytes]) -> tuple[str, int]:
    """The name of the limit and the seconds to wait."""
    status, headers, body = answer
    error = error_of(status, body)
    assert (status, error["type"]) == (429, "rate_limit_exceeded") and error["param"] in error["message"]
    return error["param"], int(headers["retry-after"])


def test_requests_a_minute_are_each_keys_own(tmp_path: Path) -> None:
    bench = guarded(tmp_path, key("u", requests_per_minute=2), key("v", requests_per_minute=2))
    assert [ask(bench, "u")[0] for _ in range(2)] == [200, 200]
    name, wait = limited(ask(bench, "u"))
    assert name == "requests_per_minute" and 28 <= wait <= 30
    assert ask(bench, "v")[0] == 200
    assert bench.call("GET", "/v1/models", headers=bearer("u"))[0] == 200
    assert len(bench.engine.requests) == 3


def test_tokens_a_minute_count_prompts_and_outputs(tmp_path: Path) -> None:
    bench = guarded(tmp_path, key("u", tokens_per_minute=5))
    status, _, body = ask(bench, "u", prompt=[5, 6, 7, 8])
    assert status == 200 and json.loads(body)["usage"]["total_tokens"] == 7
    name, wait = limited(ask(bench, "u"))
    assert name == "tokens_per_minute" and 30 <= wait <= 36  # two below zero, one above is needed


def test_what_is_refused_costs_no_tokens(tmp_path: Path) -> None:
    bench = guarded(tmp_path, key("u", tokens_per_minute=4))
    bench.engine.reject = busy(1)
    assert [ask(bench, "u", prompt=[5, 6, 7])[0] for _ in range(4)] == [503] * 4
    assert ask(bench, "u", prompt=[99999])[0] == 400
    bench.engine.reject = None
    assert ask(bench, "u")[0] == 200


def second_of_two(bench: Bench, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    """The answer to a request that comes while one like it runs, whose client then leaves."""

    async def scenario() -> tuple[int, dict[str, str], bytes]:
        first, second = (Exchange(bench.app, "POST", COMPLETIONS, fields, headers=bearer("u")) for _ in range(2))
        bench.engine.silent = True
        running = asyncio.create_task(first.run())
        while not bench.engine.requests:
            await asyncio.sleep(0)
        bench.engine.silent = False
        await second.run()
        first.hang_up()
        await running
        return second.status or 0, second.headers, bytes(second.body)

    return asyncio.run(scenario())


def test_requests_at_once(tmp_path: Path) -> None:
    """A place is free again when a request has ended, also when its client left."""
    bench = guarded(tmp_path, key("u", max_concurrency=1))
    assert limited(second_of_two(bench, prompt="one", stream=False))[0] == "max_concurrency"
    assert ask(bench, "u")[0] == 200


def test_the_prompt_of_a_running_request_is_used_already(tmp_path: Path) -> None:
    bench = guarded(tmp_path, key("u", tokens_per_minute=10))
    assert limited(second_of_two(bench, prompt=[*range(5, 15)]))[0] == "tokens_per_minute"
    assert len(bench.engine.requests) == 1


def test_buckets_fill_steadily_and_no_further_than_a_minute() -> None:
    clock = Clock()
    limits = KeyLimits(key("u", requests_per_minute=60), clock)
    for _ in range(60):
        limits.enter().leave(0)
    with pytest.raises(ApiError):
        limits.enter()
    clock.now += 2.0
    for _ in range(2):
        limits.enter()
    with pytest.raises(ApiError):
        limits.enter()
    clock.now += 1e6
    for _ in range(60):
        limits.enter()
    with pytest.raises(ApiError):
        limits.enter()


def test_a_prompt_counts_while_it_runs_and_once() -> None:
    clock = Clock()
    limits = KeyLimits(key("u", tokens_per_minute=10), clock)
    first = limits.enter()
    first.reserve(10)
    with pytest.raises(ApiError) as caught:
        limits.enter()
    assert (caught.value.param, caught.value.headers) == ("tokens_per_minute", {"retry-after": "6"}), "one is lacking then"
    first.leave(5)
    first.leave(5)
    second = limits.enter()
    second.reserve(4)
    limits.enter()
    second.reserve(4)
    with pytest.raises(ApiError) as caught:
        limits.enter()
    assert caught.value.headers == {"retry-after": "24"}, "four tokens are lacking"


def test_limits_that_stay_go_on_when_the_file_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.json", key("u", requests_per_minute=1, tokens_per_minute=5), key("gone"))
    ring = Keyring(path=file)

    def client(name: str) -> Client | None:
        return ring.identify(bearer(name)["authorization"].encode())

    before = client("u")
    assert before is not None and client("gone") is not None and client("new") is None
    ticket = before.limits.enter()
    write(tmp_path / "keys.json", key("u", requests_per_minute=1, tokens_per_minute=5, max_concurrency=1), key("new"))
    assert ring.reload() == 2
    after = client("u")
    assert after is not None and client("gone") is None and client("new") is not None
    with pytest.raises(ApiError) as caught:
        after.limits.enter()
    assert caught.value.param == "max_concurrency"
    ticket.leave(9)
    with pytest.raises(ApiError) as caught:
        after.limits.enter()
    assert caught.value.param == "requests_per_minute"
    write(tmp_path / "keys.json", key("u", requests_per_minute=2, tokens_per_minute=5), key("new"))
    assert ring.reload() == 2
    with pytest.raises(ApiError) as caught:
        after.limits.enter()
    assert caught.value.param == "tokens_per_minute"
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(ConfigError):
        ring.reload()
    assert client("new") is not None


# ------------------------------------------------------------------------------------------------- scopes, priority, the books


def test_tenants_share_no_prefix_unless_they_say_so(tmp_path: Path) -> None:
    keys = [
        key("u"),
        key("v"),
        key("team-1", cache_scope="team"),
        key("team-2", cache_scope="team"),
        key("all", cache_scope=""),
    ]
    bench = guarded(tmp_path, *keys)
    names = ["u", "v", "team-1", "team-2", "all"]
    for salt in (None, "x", "u"):
        for name in names:
            assert ask(bench, name, cache_salt=salt)[0] == 200
    scopes = [request.cache_scope for request in bench.engine.requests]
    plain, salted, attack = scopes[:5], scopes[5:10], scopes[10:]
    assert plain[2] == plain[3] and plain[4] == "" and len(set(plain)) == 4
    assert not set(plain) & set(salted) and len(set(salted)) == 4
    assert not set(attack) & set(plain), "no salt leads into another key's scope"
    assert [request.tenant for request in bench.engine.requests[:5]] == names


def test_nobody_asks_for_a_higher_place_than_the_key_has(tmp_path: Path) -> None:
    bench = guarded(tmp_path, key("u", priority=5), key("root", role="admin"))
    for name, asked in (("u", None), ("u", -9), ("u", 9), ("root", None), ("root", -9)):
        ask(bench, name, **({} if asked is None else {"priority": asked}))
    assert [request.priority for request in bench.engine.requests] == [5, 5, 9, 0, -9]


def booked(tmp_path: Path, *keys: Key, **options: Any) -> tuple[Bench, Path]:
    """A server with a usage log, and that."""
    bench, books = guarded(tmp_path, *keys, **options), tmp_path / "usage.jsonl"
    bench.service.usage_log = UsageLog(str(books))
    bench.app = build_app(bench.service)
    return bench, books


def lines_of(books: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in books.read_text().splitlines()]


def used(line: dict[str, Any]) -> tuple[int, int, int]:
    return line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]


def leave(bench: Bench, **fields: Any) -> None:
    """A request whose client leaves as soon as the engine has it."""

    async def scene() -> None:
        exchange = Exchange(bench.app, "POST", COMPLETIONS, fields, headers=bearer("u"))
        task = asyncio.create_task(exchange.run())
        while not bench.engine.requests:
            await asyncio.sleep(0)
        exchange.hang_up()
        await task

    asyncio.run(scene())


def test_usage_is_booked_by_key(tmp_path: Path) -> None:
    bench, books = booked(tmp_path, key("u"))
    ask(bench, "u", prompt=[5, 6], n=2)
    ask(bench, "u", prompt=[])
    ask(bench, "x")
    bench.call("GET", "/v1/models", headers=bearer("u"))
    (line,) = lines_of(books)
    assert line.pop("ts") and line.pop("request_id").startswith("cmpl-")
    assert line == {
        "key": "u", "model": "tiny", "path": COMPLETIONS, "status": 200, "prompt_tokens": 2, "cached_tokens": 3,
        "output_tokens": 6, "finish_reason": "length",
    }  # fmt: skip
    assert [entry["key"] for entry in bench.lines() if entry["event"] == "request" and "key" in entry] == ["u", "u", "u"]
    assert stat.S_IMODE(books.stat().st_mode) == 0o600


def test_what_costs_nothing_is_booked_as_nothing(tmp_path: Path) -> None:
    bench, books = booked(tmp_path, key("u"))
    assert ask(bench, "u", prompt=[5, 6, 7], echo=True, max_tokens=0)[0] == 200
    bench.engine.reject = busy(1)
    assert ask(bench, "u", prompt=[5, 6, 7])[0] == 503
    bench.engine.reject, bench.engine.refuse = None, errors.invalid("no", "prompt")
    assert ask(bench, "u", prompt=[5, 6, 7])[0] == 400
    lines = lines_of(books)
    assert [(line["status"], *used(line)) for line in lines] == [(status, 0, 0, 0) for status in (200, 503, 400)]


@pytest.mark.parametrize("extra", [{"best_of": 3}, {"use_beam_search": True, "n": 3}], ids=["best_of", "beams"])
def test_what_was_generated_for_a_client_that_left_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]
) -> None:
    """Also when the engine tells it late, as after a long step."""
    monkeypatch.setattr("octavo.server.generation.ACCOUNT_WAIT", 0.0)
    bench, books = booked(tmp_path, key("u", tokens_per_minute=40))
    bench.engine.silent, bench.engine.generated, bench.engine.account_delay = True, 40, 0.05
    leave(bench, prompt=[5, 6], max_tokens=20, stream=True, **extra)
    (line,) = lines_of(books)
    assert used(line) == (2, 0, 40)
    assert limited(ask(bench, "u"))[0] == "tokens_per_minute"


def test_of_a_whole_answer_all_beams_are_charged_and_other_outputs_as_they_are_told(tmp_path: Path) -> None:
    bench, books = booked(tmp_path, key("u"))
    bench.engine.generated = 40
    told = []
    for extra in ({}, {"n": 2}, {"best_of": 2}, {"use_beam_search": True, "best_of": 3}):
        told.append(json.loads(ask(bench, "u", prompt=[5, 6], **extra)[2])["usage"]["completion_tokens"])
    assert [line["output_tokens"] for line in lines_of(books)] == [*told[:3], 40] and told[3] < 40


def test_who_has_an_answer_may_ask_again_whenever_its_cost_is_known(tmp_path: Path) -> None:
    bench, books = booked(tmp_path, key("u", max_concurrency=1))
    bench.engine.account_delay = 0.2

    async def scene() -> None:
        body = {"prompt": [5, 6], "max_tokens": 20, "stop": ["two"]}
        first, second = (Exchange(bench.app, "POST", COMPLETIONS, body, headers=bearer("u")) for _ in range(2))
        task = asyncio.create_task(first.run())
        while not first.body:
            await asyncio.sleep(0)
        assert not task.done()
        await second.run()
        await task
        assert (first.status, second.status) == (200, 200)

    asyncio.run(scene())
    assert len(lines_of(books)) == 2 and ask(bench, "u")[0] == 200


def test_cached_tokens_are_those_of_all_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, books = booked(tmp_path, key("u"), enable_prompt_tokens_details=True)

    def all_but_one(request: Request) -> list[TokenDelta]:
        cached = len(request.prompt_token_ids) - 1
        return [msgspec.structs.replace(delta, num_cached_tokens=cached) for delta in FakeEngine.deltas(bench.engine, request)]

    monkeypatch.setattr(bench.engine, "deltas", all_but_one)
    answer = json.loads(ask(bench, "u", prompt=[[5, 6, 7, 8], [5, 6]])[2])
    assert used(lines_of(books)[0])[:2] == (6, 4)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_of_a_client_that_left_every_prompt_is_counted_as_aborted(tmp_path: Path) -> None:
    bench = guarded(tmp_path, key("u"))
    bench.engine.silent = True
    leave(bench, prompt=[[5, 6], [7, 8]])
    assert bench.service.metrics.finished["abort"] == 2


def test_a_prompt_alone_is_charged_alone(tmp_path: Path) -> None:
    bench, books = booked(tmp_path, key("u"))
    answer = json.loads(ask(bench, "u", prompt=[5, 6, 7], echo=True, logprobs=1, max_tokens=0)[2])
    assert answer["usage"]["completion_tokens"] == 0 and used(lines_of(books)[0]) == (3, 3, 0)
    assert bench.service.metrics.generation_tokens.total == 0


def test_a_prompt_alone_is_charged_alone_to_a_client_that_left(tmp_path: Path) -> None:
    bench, books = booked(tmp_path, key("u"))
    bench.engine.silent, bench.engine.generated = True, 1
    leave(bench, prompt=[5, 6], max_tokens=0, echo=True, logprobs=1)
    assert used(lines_of(books)[0]) == (2, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_server_owes_an_answer_for_is_not_charged(tmp_path: Path, stream: bool) -> None:
    """An engine that is lost costs what a client has got by then: of a whole answer nothing."""
    bench, books = booked(tmp_path, key("u", tokens_per_minute=4))
    bench.engine.silent = True

    async def scene() -> None:
        body = {"prompt": [5, 6], "max_tokens": 20, "stream": stream}
        exchange = Exchange(bench.app, "POST", COMPLETIONS, body, headers=bearer("u"))
        task = asyncio.create_task(exchange.run())
        while not bench.engine.requests:
            await asyncio.sleep(0)
        (request,) = bench.engine.requests
        first, second = bench.engine.deltas(request)[:2]
        bench.engine.mailboxes[request.id].put(first)
        bench.engine.mailboxes[request.id].put(second)
        while stream and exchange.body.count(b"data: ") < 2:
            await asyncio.sleep(0)
        bench.engine.mailboxes[request.id].put_account(None)
        bench.engine.mailboxes[request.id].fail(errors.engine_restarted())
        await task

    asyncio.run(scene())
    (line,) = lines_of(books)
    assert used(line) == ((2, 3, 2) if stream else (0, 0, 0)) and line["finish_reason"] == "error"
    bench.engine.silent = False
    status = ask(bench, "u")[0]
    assert status == (429 if stream else 200)


@pytest.mark.parametrize("grows_only", [False, True])
def test_a_full_disk_costs_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows_only: bool) -> None:
    bench, books = booked(tmp_path, key("u"))
    write_all, room = os.write, [10**6, 25, 0, 10**6, 10**6]

    def write_what_fits(file: int, data: bytes) -> int:
        return write_all(file, data[: room.pop(0)])

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "write", write_what_fits)
    if grows_only:
        monkeypatch.setattr(os, "ftruncate", refuse)
    for _ in range(5):
        assert ask(bench, "u")[0] == 200
    lines = books.read_bytes().splitlines(keepends=True)
    assert [len(line) for line in lines if not line.endswith(b"}\n")] == ([26] if grows_only else [])
    assert [json.loads(line)["key"] for line in lines if len(line) > 26] == ["u"] * 3
    assert sum(line["event"] == "usage_log" for line in bench.lines()) == 1


# ----------------------------------------------------------------------------------------------------------- the real process


@pytest.fixture
def served(tiny_model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    write(tmp_path / "keys.json", key("u"), key("root", role="admin"))
    flags = ["--api-keys-file", str(tmp_path / "keys.json"), "--usage-log", str(tmp_path / "usage.jsonl")]
    server = RunningServer(tiny_model, "--served-model-name", "tiny", *flags).wait_ready()
    yield server
    server.kill()


def test_the_official_client_has_its_own_error_for_a_wrong_key(tiny_model: Path) -> None:
    server = RunningServer(tiny_model, "--served-model-name", "tiny", "--api-key", "first", "second", "--host", "0.0.0.0")
    try:
        url = f"{server.wait_ready().url}/v1"
        for key in ("first", "second"):
            assert openai.OpenAI(api_key=key, base_url=url).models.list().data[0].id == "tiny"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(api_key="third", base_url=url).models.list()
    finally:
        server.kill()


def test_sighup_reads_the_keys_again_and_opens_the_books_again(served: RunningServer, tmp_path: Path) -> None:
    def status(name: str) -> int:
        body = {"prompt": "one", "max_tokens": 2}
        return httpx.post(f"{served.url}{COMPLETIONS}", json=body, headers=bearer(name)).status_code

    def hang_up(words: str) -> None:
        served.process.send_signal(signal.SIGHUP)
        served.wait_line(words)

    assert (status("u"), status("v")) == (200, 401)
    await_line(tmp_path / "usage.jsonl")
    os.rename(tmp_path / "usage.jsonl", tmp_path / "usage.1")
    write(tmp_path / "keys.json", key("v"))
    hang_up("1 keys of the keys file hold")
    assert (status("u"), status("v")) == (401, 200)
    os.rename(tmp_path / "usage.jsonl", tmp_path / "usage.2")
    (tmp_path / "keys.json").write_text("nonsense")
    hang_up("the keys stay as they were")
    assert status("v") == 200
    os.rename(tmp_path / "usage.jsonl", tmp_path / "usage.3")
    (tmp_path / "usage.jsonl").mkdir()
    write(tmp_path / "keys.json", key("u"))
    hang_up("usage is booked where it was")
    assert (status("u"), status("v")) == (200, 401)
    assert served.stop() == 0
    books = {name: [json.loads(line)["key"] for line in (tmp_path / name).read_text().splitlines()] for name in
             ("usage.1", "usage.2", "usage.3")}  # fmt: skip
    assert books == {"usage.1": ["u"], "usage.2": ["v"], "usage.3": ["v", "u"]}


def await_line(file: Path) -> None:
    """A request is booked when it has been answered."""
    deadline = time.monotonic() + 20
    while not file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
