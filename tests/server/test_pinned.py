"""A server that pins prefixes: computed before it is ready, found by the first request, pinned again by a new engine."""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from octavo import LLM, SamplingParams
from octavo.config import ConfigError
from octavo.server.auth import Keyring
from octavo.server.keys import Key, add_key
from tests.server.test_process import running, serve_and_wait
from tests.server.tiny import RunningServer

SYSTEM = {"role": "system", "content": "You are a patient teacher of mathematics and answer in short sentences."}
STORY = "Once upon a time there was a small house at the edge of a large and very dark forest, and in it lived"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "system.json").write_text(json.dumps([SYSTEM]))
    (tmp_path / "story.txt").write_text(STORY)
    return str(tmp_path / "system.json"), str(tmp_path / "story.txt")


def cached(server: RunningServer, **fields: object) -> tuple[int, int]:
    """The tokens of a prompt, and how many of them were found."""
    kind = "chat/completions" if "messages" in fields else "completions"
    usage = httpx.post(f"{server.url}/v1/{kind}", json={"max_tokens": 1, **fields}, timeout=30).json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def check_pinned(server: RunningServer) -> None:
    length, found = cached(server, messages=[SYSTEM, {"role": "user", "content": "2 + 2?"}])
    assert length - found < 32 and found >= 32 and found % 16 == 0
    length, found = cached(server, prompt=STORY + " an old woman.")
    assert length - found < 32 and found >= 16


def test_pinned_from_the_start_and_by_every_engine(tiny_model: Path, files: tuple[str, str]) -> None:
    flags = ("--enable-prompt-tokens-details", "--pin-prefix", *files, "--num-gpu-blocks-override", "64")
    with running(tiny_model, *flags) as server:
        server.wait_ready()
        pinned = server.metric("octavo_kv_blocks", state="pinned")
        assert pinned >= 4 and server.metric("octavo_kv_blocks", state="used") == pinned
        check_pinned(server)
        for i in range(3):  # more than the pool holds
            cached(server, prompt=list(range(5 + i, 405 + i)))
        check_pinned(server)
        os.kill(server.engine_pid(), signal.SIGKILL)
        server.wait_metric("octavo_engine_restarts_total", 1)
        server.wait_metric("octavo_ready", 1)
        assert server.metric("octavo_kv_blocks", state="pinned") == pinned
        check_pinned(server)
        assert any(f", {pinned:.0f} pinned" in line for line in server.lines) and server.stop() == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num-gpu-blocks-override", "33"], "story.txt: With this prefix"),
        (["--no-enable-prefix-caching"], "needs prefix caching"),
    ],
)
def test_what_cannot_be_pinned_is_one_line_and_64(
    tiny_model: Path, files: tuple[str, str], flags: list[str], words: str
) -> None:
    ended = serve_and_wait(str(tiny_model), "--port", "0", "--swap-space", "0", "--pin-prefix", files[1], *flags)
    assert ended.returncode == 64, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("octavo: error: ")]
    assert words in line


def test_pinned_for_nobody_is_a_warning(tiny_model: Path, files: tuple[str, str], tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    add_key(str(keys), Key(name="a", sha256="a" * 64))
    with running(tiny_model, "--pin-prefix", files[1], "--api-keys-file", str(keys)) as server:
        server.wait_ready()
        (line,) = [line for line in server.lines if '"event":"pin"' in line]
        assert '"level":"warning"' in line and "no key finds what is pinned" in line
        assert server.stop() == 0
    assert not Keyring(path=str(keys)).finds_pinned
    add_key(str(keys), Key(name="b", sha256="b" * 64, cache_scope=""))
    for ring in (Keyring(path=str(keys)), Keyring(("plain",)), Keyring()):
        assert ring.finds_pinned


def test_llm_pins_files_too(tiny_model: Path, files: tuple[str, str]) -> None:
    llm = LLM(model=str(tiny_model), swap_space=0.01, pin_prefix=files[1])
    (output,) = llm.generate(STORY + " a", SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.num_cached_tokens >= 16 and llm._engine.stats().blocks_pinned == output.num_cached_tokens // 16
    llm.shutdown()
    with pytest.raises(ConfigError, match=r"story\.txt: With this prefix"):
        LLM(model=str(tiny_model), swap_space=0.01, pin_prefix=files[1:], num_gpu_blocks_override=33)
    with pytest.raises(ConfigError, match="needs prefix caching"):
        LLM(model=str(tiny_model), swap_space=0.01, pin_prefix=files[1:], enable_prefix_caching=False)


def test_a_missing_file_is_one_line_and_64(tiny_model: Path) -> None:
    ended = serve_and_wait(str(tiny_model), "--port", "0", "--swap-space", "0", "--pin-prefix", "gone.json")
    assert ended.returncode == 64
    assert "octavo: error: --pin-prefix gone.json: No such file" in ended.stderr
