"""Long prompts: refused before they are tokenized, or tokenized beside the event loop."""

import asyncio
import os
import random
import threading
from pathlib import Path

import pytest

from octavo.server.errors import ApiError
from octavo.server.names import ModelNames
from octavo.server.prompt_text import TextEncoder
from octavo.tokenizer import Tokenizer
from tests.server.fakes import Bench
from tests.tokenizer.small import byte_level_directory


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_directory(byte_level_directory(tmp_path / "tokenizer"))


def words(count: int) -> str:
    draw = random.Random(3)
    return " ".join("".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(count))


def test_a_text_that_cannot_fit_is_not_tokenized(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda *_, **__: pytest.fail("tokenized"))
    for path, fields in (
        ("/v1/completions", {"prompt": ["short", "a" * 100_000]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 100_000}]}),
    ):
        error = bench.error(path, **fields)
        assert (error["code"], error["param"]) == (400, "input_text")
        assert "This model's maximum context length is 64 tokens. However, your prompt contains 100" in error["message"]


def test_a_long_text_that_is_to_be_cut_is_not_refused(bench: Bench) -> None:
    status, answer = bench.post("/v1/completions", prompt="a" * 100_000, truncate_prompt_tokens=5, max_tokens=1)
    assert status == 200 and answer["usage"]["prompt_tokens"] == 5
    status, answer = bench.post("/tokenize", prompt="a" * 100_000)
    assert status == 200 and answer["count"] > 64


def test_the_bound_refuses_nothing_that_fits(tokenizer: Tokenizer) -> None:
    """The longest text of so many tokens: the longest token, over and over."""
    longest = max(range(tokenizer.vocab_size), key=lambda i: len(tokenizer.token_bytes(i)))
    text = tokenizer.token_text(longest) * 1500
    limit = len(tokenizer.encode(text, add_special_tokens=False))
    encoder = TextEncoder(tokenizer)
    (ids,) = asyncio.run(encoder.encode([text], add_special_tokens=False, limit=limit))
    assert len(text) > 8192 and ids == tokenizer.encode(text, add_special_tokens=False)
    with pytest.raises(ApiError):
        asyncio.run(encoder.encode([text * 3], add_special_tokens=False, limit=limit))


def test_long_and_short_texts_have_the_same_tokens(tokenizer: Tokenizer) -> None:
    texts = [words(10), words(4000), ""]
    ids = asyncio.run(TextEncoder(tokenizer).encode(texts, add_special_tokens=True))
    assert ids == [tokenizer.encode(text) for text in texts]


def test_the_event_loop_goes_on_while_a_long_text_is_tokenized(tokenizer: Tokenizer) -> None:
    """Counted, not timed: under the interpreter's lock the loop would get no turn between begin and end."""
    text = words(200_000)

    async def turns() -> int:
        task = asyncio.ensure_future(TextEncoder(tokenizer).encode([text], add_special_tokens=False))
        count = 0
        while not task.done():
            await asyncio.sleep(0.001)
            count += 1
        return count

    assert asyncio.run(turns()) > 20


def test_many_long_texts_hold_up_neither_threads_nor_shorter_texts(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = [], threading.Event()
    encode_batch = Tokenizer.encode_batch

    def encode_when_told(self: Tokenizer, texts: list[str], **options: bool) -> list[list[int]]:
        if len(texts[0]) > 1 << 14:
            begun.append(len(texts[0]))
            go_on.wait(60)
        return encode_batch(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", encode_when_told)

    async def scene() -> int:
        encoder = TextEncoder(tokenizer)

        async def encode(characters: int) -> None:
            await encoder.encode(["a" * characters], add_special_tokens=False)

        long = [asyncio.create_task(encode(length)) for length in [300_000, 100_000] * 20]
        try:
            await asyncio.wait_for(encode(3000), 20)
            await asyncio.wait_for(asyncio.to_thread(int), 20)
            found = sorted(begun)
        finally:
            go_on.set()
        await asyncio.gather(*long)
        assert found == [100_000, 300_000]
        return len(begun)

    assert asyncio.run(scene()) == 40


@pytest.mark.parametrize(
    ("model", "served", "names"),
    [
        ("smollm2", (), ModelNames(("smollm2",))),
        ("org/model", (), ModelNames(("org/model",))),
        ("/data/models/tiny-llama/", (), ModelNames(("tiny-llama",), frozenset({"/data/models/tiny-llama/"}))),
        ("files/model.Q4_0.gguf", (), ModelNames(("model.Q4_0.gguf",), frozenset({"files/model.Q4_0.gguf"}))),
        ("/data/models/tiny-llama", ("a", "b"), ModelNames(("a", "b"))),
        (".", (), ModelNames((Path.cwd().name,), frozenset({"."}))),
        (os.path.relpath(__file__), (), ModelNames((Path(__file__).name,), frozenset({os.path.relpath(__file__)}))),
    ],
)
def test_names(model: str, served: tuple[str, ...], names: ModelNames) -> None:
    assert ModelNames.of(model, served) == names
