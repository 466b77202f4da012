"""A tiny Llama checkpoint with random weights, written without any modelling library, and the command that serves it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
from safetensors.numpy import save_file

import octavo
from tests.tokenizer.small import byte_level_directory, byte_level_json

ROOT = Path(octavo.__file__).resolve().parents[1]
"""Where the package under test was imported from: the processes started here must find the same one."""
CONTEXT = 512
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocab_size() -> int:
    spec = json.loads(byte_level_json())
    return len(set(spec["model"]["vocab"].values()) | {token["id"] for token in spec["added_tokens"]})


def write_tiny_llama(directory: Path, **changes: object) -> Path:
    """A directory in Hugging Face layout: 2 layers, hidden size 32, context 512. ``changes`` go into config.json."""
    byte_level_directory(directory, chat_template=TEMPLATE)
    hidden, inner, heads, kv_heads, size, layers, vocabulary = 32, 64, 4, 2, 8, 2, vocab_size()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size,
        "vocab_size": vocabulary, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config | changes))
    random = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden)}
    for i in range(layers):
        prefix = f"model.layers.{i}"
        shapes |= {
            f"{prefix}.self_attn.q_proj": (heads * size, hidden), f"{prefix}.self_attn.k_proj": (kv_heads * size, hidden),
            f"{prefix}.self_attn.v_proj": (kv_heads * size, hidden), f"{prefix}.self_attn.o_proj": (hidden, heads * size),
            f"{prefix}.mlp.gate_proj": (inner, hidden), f"{prefix}.mlp.up_proj": (inner, hidden),
            f"{prefix}.mlp.down_proj": (hidden, inner),
        }  # fmt: skip
    tensors = {f"{name}.weight": random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = ["model.norm", *(f"model.layers.{i}.{n}_layernorm" for i in range(layers) for n in ("input", "post_attention"))]
    tensors |= {f"{name}.weight": np.ones(hidden, np.float32) for name in norms}
    save_file(tensors, directory / "model.safetensors")
    return directory


def grammar_pids(server: int) -> list[int]:
    """The processes that compile grammars for the process ``server``, in order of their ids: one, and those behind it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z" and b"octavo.server.grammar_process" in (entry / "cmdline").read_bytes():
                parents[int(entry.name)] = int(fields[1])
    found = [pid for pid, parent in parents.items() if parent == server]
    for known in found:  # which grows on the way
        found += [pid for pid, parent in parents.items() if parent == known]
    return sorted(found)


class RunningServer:
    """``octavo serve`` as users start it, on a free port. ``lines`` is what it has written to stderr."""

    def __init__(self, model: Path | str, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "octavo.cli", "serve", str(model), "--port", "0", "--swap-space", "0.01", *flags],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        )
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"ready on (http://[\d.:]+)", line)
            if found:
                self.url = found.group(1)
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> "RunningServer":
        assert self._ready.wait(60) and self.url, "\n".join(self.lines)
        return self

    def find_engine(self) -> int | None:
        """The engine process, if there is one: the only child that runs it and has not ended."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and fields[0] != "Z" and b"octavo.server.engine_process" in command:
                return int(entry.name)
        return None

    def engine_pid(self) -> int:
        """The engine process, waited for."""
        for _ in range(500):
            if (pid := self.find_engine()) is not None:
                return pid
            time.sleep(0.01)
        raise AssertionError("there is no engine process")

    def grammar_pids(self) -> list[int]:
        """The processes that compile grammars."""
        return grammar_pids(self.process.pid)

    def metric(self, name: str, *, headers: dict[str, str] | None = None, **labels: str) -> float:
        """One sample of /metrics."""
        from prometheus_client.parser import text_string_to_metric_families

        text = httpx.get(f"{self.url}/metrics", headers=headers).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        raise AssertionError(f"no sample {name} {labels}")

    def wait_metric(self, name: str, value: float, *, headers: dict[str, str] | None = None, **labels: str) -> None:
        """Waits until a sample has ``value``."""
        deadline = time.monotonic() + 20
        while (seen := self.metric(name, headers=headers, **labels)) != value:
            assert time.monotonic() < deadline, f"{name} is {seen}, not {value}"
            time.sleep(0.02)

    def wait_line(self, words: str) -> None:
        """Waits until a line of the log has ``words``."""
        deadline = time.monotonic() + 20
        while not any(words in line for line in self.lines):
            assert time.monotonic() < deadline, "\n".join([f"no line of the log has {words}:", *self.lines])
            time.sleep(0.01)

    def wait_until_busy(self) -> None:
        """Waits until some request holds blocks."""
        deadline = time.monotonic() + 20
        while self.metric("octavo_kv_blocks", state="used") == 0:
            assert time.monotonic() < deadline, "no request has come as far as the engine"

    def assert_engine_lived(self) -> None:
        """Also one that was replaced in time for everybody has failed."""
        for number, line in enumerate(self.lines):
            assert "the engine stopped" not in line, "\n".join(self.lines[max(0, number - 60) : number + 1])

    def stop(self) -> int:
        """SIGTERM. Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.join()

    def join(self) -> int:
        status = self.process.wait(60)
        self._reader.join(10)
        return status

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
