"""What ``vllm bench serve`` sends: recorded from the real command, so that it can be sent again where vLLM is not installed.

    python -m tests.clients.vllm_bench /path/to/vllm

runs the command in each of its ways against a real server on the tiny checkpoint, through a proxy that notes the requests. It
demands that every one succeeded by the command's own count, and writes ``vllm_bench.jsonl``. The tests send these lines again.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.server.tiny import RunningServer, write_tiny_llama

RECORDED = Path(__file__).with_suffix(".jsonl")
KEPT_HEADERS = ("content-type", "authorization", "accept", "x-request-id")
PROMPTS = 4
RANDOM = ("--dataset-name", "random", "--random-input-len", "24", "--random-output-len", "6", "--random-range-ratio", "0.2")
WAYS: dict[str, tuple[str, ...]] = {
    "completions": ("--backend", "openai", *RANDOM, "--ignore-eos", "--ready-check-timeout-sec", "20", "--num-warmups", "1"),
    "log probabilities": ("--backend", "openai", *RANDOM, "--logprobs", "3", "--goodput", "ttft:60000", "e2el:60000"),
    "sampling": ("--backend", "vllm", *RANDOM, "--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.05",
                 "--frequency-penalty", "0.1", "--presence-penalty", "0.1", "--repetition-penalty", "1.1",
                 "--request-id-prefix", "bench-", "--burstiness", "0.5", "--request-rate", "50"),
    "sharegpt": ("--backend", "openai", "--dataset-name", "sharegpt", "--dataset-path", "{sharegpt}",
                 "--sharegpt-output-len", "8", "--max-concurrency", "2"),
    "prefixes": ("--backend", "openai", "--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "2",
                 "--prefix-repetition-prefix-len", "32", "--prefix-repetition-suffix-len", "8",
                 "--prefix-repetition-output-len", "4"),
    "chat": ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", *RANDOM, "--ignore-eos"),
    "chat with a body": ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", *RANDOM,
                         "--extra-body", '{"min_tokens": 2, "logprobs": true, "top_logprobs": 2}',
                         "--header", "x-tenant=a"),
    "responses": ("--backend", "openai-responses", "--endpoint", "/v1/responses", *RANDOM, "--ignore-eos"),
}  # fmt: skip


def recorded() -> Iterator[dict[str, Any]]:
    """The requests: ``way``, ``method``, ``path``, ``headers``, ``body`` (JSON or None)."""
    for line in RECORDED.read_text().splitlines():
        yield json.loads(line)


class Proxy:
    """Hands connections on to a server on this machine and notes every request in ``seen``. It runs in a thread of its own."""

    def __init__(self, port: int) -> None:
        self.seen: list[dict[str, Any]] = []
        self._target = port
        self._started = threading.Event()
        self.port = 0
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._started.wait(10)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        answers = asyncio.create_task(self._answers(upstream_reader, writer))
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                kept = {name: headers[name] for name in KEPT_HEADERS if name in headers}
                kept |= {name: value for name, value in headers.items() if name == "x-tenant"}
                content = json.loads(body) if body else None
                self.seen.append({"method": method, "path": path, "headers": kept, "body": content})
                upstream_writer.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is done with this connection
        finally:
            answers.cancel()
            upstream_writer.close()
            writer.close()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)


def write_conversations(path: Path) -> Path:
    """ShareGPT's format, with texts short enough for the tiny model's context and long enough for the reader's filter."""
    said = ["Tell me about rivers and the towns beside them.", "Rivers carry water from hills to the sea, slowly."]
    turns = [{"from": who, "value": text} for who, text in zip(("human", "gpt"), said, strict=True)]
    path.write_text(json.dumps([{"id": str(i), "conversations": turns} for i in range(8)]))
    return path


def record(executable: str) -> None:
    """Runs the command in every way and writes the recording. Raises when it does not count every request as successful."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_llama(Path(folder) / "tiny")
        conversations = write_conversations(Path(folder) / "sharegpt.json")
        running = RunningServer(model, "--served-model-name", "tiny").wait_ready()
        try:
            for way, flags in WAYS.items():
                proxy = Proxy(int(running.url.rpartition(":")[2]))
                given = [flag.format(sharegpt=conversations) if flag == "{sharegpt}" else flag for flag in flags]
                command = [executable, "bench", "serve", "--base-url", f"http://127.0.0.1:{proxy.port}", "--model", "tiny",
                           "--tokenizer", str(model), "--num-prompts", str(PROMPTS), "--seed", "1", *given]  # fmt: skip
                print(f"{way}: vllm {' '.join(command[1:])}", flush=True)
                said = subprocess.run(command, capture_output=True, text=True, check=False)
                counts = dict(line.split(":", 1) for line in said.stdout.splitlines() if line.count(":") == 1)
                if said.returncode or int(counts.get("Successful requests", "0")) != PROMPTS:
                    raise SystemExit(f"{way} failed:\n{said.stdout[-3000:]}\n{said.stderr[-3000:]}")
                print(f"  {len(proxy.seen)} requests, all answered", flush=True)
                lines += [json.dumps({"way": way, **request}) for request in proxy.seen]
        finally:
            running.kill()
    RECORDED.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    record(sys.argv[1])
