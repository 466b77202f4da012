"""``octavo bench roofline``: on a tiny model through the command line, and its parts on numbers known beforehand."""

import json
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from matplotlib.text import Text

from octavo import cli
from octavo.backends.reference.backend import ReferenceBackend
from octavo.bench import drawing
from octavo.bench.options import RooflineOptions
from octavo.bench.roofline import plot, steps, table
from octavo.bench.roofline.analysis import OUTSIDE, Samples, analyse, fastest
from octavo.bench.roofline.limits import Ceilings
from octavo.bench.roofline.main import settle
from octavo.bench.roofline.result import OpResult, Peak, RooflineResult, StepResult
from octavo.bench.roofline.steps import EngineStep, Shape, Steps
from octavo.bench.roofline.timed import TimedBackend
from octavo.bench.roofline.work import Work
from octavo.build import load_parts
from octavo.config import EngineConfig

FLAGS = ["--batch-size", "1", "3", "--context-len", "40", "--prefill", "20", "--num-iters", "4", "--num-threads", "1"]
KINDS = {"embedding", "norms", "qkv", "rotary", "attention", "o", "gate_up", "down", "lm_head"}


@pytest.fixture(scope="module", autouse=True)
def small_footprints() -> Iterator[None]:
    """Half a gigabyte is much for a test."""
    patch = pytest.MonkeyPatch()
    patch.setattr("octavo.bench.roofline.limits.FOOTPRINTS", (1 << 20, 2 << 20))
    patch.setattr("octavo.bench.roofline.plot.FOOTPRINTS", (1 << 20, 2 << 20))
    patch.setattr("octavo.bench.roofline.limits.SECONDS", 0.0)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def result(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> RooflineResult:
    file = tmp_path_factory.mktemp("roofline") / "result.json"
    assert cli.main(["bench", "roofline", tiny, *FLAGS, "--output-json", str(file)]) == 0
    return msgspec.json.decode(file.read_bytes(), type=RooflineResult)


def test_steps_are_those_asked_for(result: RooflineResult) -> None:
    assert [(step.kind, step.batch_size, step.context_len) for step in result.steps] == [
        ("decode", 1, 40),
        ("decode", 3, 40),
        ("prefill", 1, 20),
    ]


def test_numbers_are_sound_and_add_up(result: RooflineResult) -> None:
    assert set(result.peaks) == {"fp32", "bf16", "int8"} and all(peak.flops_per_s > 0 for peak in result.peaks.values())
    for step in result.steps:
        assert {op.kind for op in step.ops} >= KINDS
        for op in step.ops:
            assert 0 < op.share < float("inf") and op.seconds > 0
            assert op.share == pytest.approx(op.limit_seconds / op.seconds)
            assert op.bound in ("memory", "cache", *result.peaks)
        assert step.ops_seconds == pytest.approx(sum(op.seconds for op in step.ops))
        assert step.limit_seconds == pytest.approx(sum(op.limit_seconds for op in step.ops))
        assert step.streamed_bytes == sum(op.streamed_bytes for op in step.ops)
        assert step.share == pytest.approx(step.limit_seconds / step.step_seconds)
        assert step.largest_gain.kind in KINDS | {OUTSIDE}


def test_work_is_that_of_the_model(result: RooflineResult) -> None:
    """2 layers, hidden size 32, inner 64, 4 heads and 2 kv heads of 8, float32."""
    for step, rows in zip(result.steps, (1, 3, 20), strict=True):
        ops = {op.kind: op for op in step.ops}
        assert ops["qkv"].calls == ops["attention"].calls == 2 and ops["norms"].calls == 5
        assert ops["qkv"].flops == 2 * 2 * rows * 32 * 64
        wanted = rows if step.kind == "decode" else 1  # which is all that the last layer computes
        assert ops["gate_up"].flops == (rows + wanted) * (2 * 32 * 128 + 5 * 64)
        assert ops["down"].flops == (rows + wanted) * 2 * 64 * 32
        seen = 2 * rows * 40 if step.kind == "decode" else 20 * 21 // 2 + 20
        assert ops["attention"].flops == 4 * seen * 32
        read = rows * 40 if step.kind == "decode" else 20
        assert ops["attention"].streamed_bytes == 2 * read * 2 * 2 * 8 * 4


def test_the_table(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.svg"
    assert cli.main(["bench", "roofline", tiny, *FLAGS, "--quantization", "int8", "--plot", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    blocks = captured.out.strip().split("\n\n")
    assert len(blocks) == 4 and "GFLOP/s: fp32 " in blocks[0] and "weights int8" in blocks[0]
    for block in blocks[1:]:
        title, head, *rows, gain = block.splitlines()
        assert title.startswith(("decode, batch ", "prefill, 20 tokens")) and gain.startswith("largest gain: ")
        assert all(len(row) <= 110 for row in rows) and rows[-1].startswith("step as it runs")
        # Every column of numbers ends where its title does.
        for name in ("time ms", "limit/time"):
            assert len({row[head.index(name) + len(name) :][:1] for row in rows} - {" ", ""}) == 0
    assert file.read_text().count("<svg") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--context-len", "600"], "--context-len 600 with --num-iters 40 or --prefill None makes sequences of"),
        (["--prefill", "513"], "more than the model was made for"),
        (["--context-len", "8", "--quantization", "stored"], "--quantization stored"),
    ],
)
def test_what_cannot_be_measured(tiny: str, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "roofline", tiny, *flags]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_batch_that_memory_does_not_hold(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("octavo.backends.cpu.backend.CpuBackend.available_memory", lambda self: 1_000_000)
    assert cli.main(["bench", "roofline", tiny, "--batch-size", "64", "--context-len", "100"]) == 64
    told = capsys.readouterr().err
    assert "lower --batch-size 64 or --context-len 100" in told and "GiB of KV cache" in told


def test_a_picture_needs_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["bench", "roofline", "m", "--plot", "x.svg"]) == 64
    assert "pip install 'octavo[plot]'" in capsys.readouterr().err


def crowded() -> RooflineResult:
    """Five products at one point below a line, as in every decode step, and others around them."""
    ops = [
        OpResult(
            kind=kind,
            calls=30,
            seconds=seconds,
            streamed_bytes=int(seconds * 50e9) if bound == "memory" else 0,
            activation_bytes=int(seconds * 20e9),
            flops=int(seconds * rate),
            limit_seconds=seconds * 0.8,
            share=0.8,
            bound=bound,
        )
        for kind, seconds, rate, bound in (
            ("qkv", 0.8e-3, 400e9, "memory"),
            ("attention", 2.7e-3, 100e9, "memory"),
            ("o", 0.6e-3, 390e9, "memory"),
            ("gate_up", 2.2e-3, 410e9, "memory"),
            ("down", 1.3e-3, 400e9, "memory"),
            ("lm_head", 1.2e-3, 405e9, "memory"),
            ("norms", 0.2e-3, 10e9, "cache"),
            ("silu", 0.2e-3, 10e9, "cache"),
            ("copies", 0.2e-3, 0.0, "cache"),
        )
    ]
    step = msgspec.structs.replace(known(), ops=ops, step_seconds=10e-3, limit_seconds=8e-3, bandwidth=55e9)
    return RooflineResult(
        model="m",
        weights="bfloat16",
        backend="cpu",
        bandwidth={str(1 << 20): 260e9},
        slowest_bandwidth={str(1 << 20): 230e9},
        peaks={"fp32": Peak(instruction="a", flops_per_s=550e9), "bf16": Peak(instruction="b", flops_per_s=1100e9)},
        steps=[step, step, step],
    )


def test_nothing_is_written_over_anything() -> None:
    """Labels stay in their panel, and each where no other is."""
    figure = plot.picture(crowded())
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # the canvas that measures texts
    for axes in figure.axes[:3]:
        boxes = {text.get_text(): Text.get_window_extent(text, renderer).padded(-0.5) for text in axes.texts}
        labels = [name for name in boxes if name.endswith("%")]
        assert len(labels) == 8, "what computes nothing has no place"
        frame = axes.get_window_extent()
        for name in labels:
            assert frame.x0 <= boxes[name].x0 and boxes[name].x1 <= frame.x1, name
        for one, other in combinations(boxes, 2):
            assert not boxes[one].overlaps(boxes[other]), (one, other)


def test_pictures(result: RooflineResult, tmp_path: Path) -> None:
    for name, begin in (("x.png", b"\x89PNG"), ("x.svg", b"<?xml")):
        drawing.write(plot.picture(result), tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)
    drawing.write(plot.picture(msgspec.structs.replace(result, steps=result.steps[:1])), tmp_path / "one.svg")


def test_ops_are_the_real_ones_until_they_are_timed() -> None:
    inner = ReferenceBackend()
    timed = TimedBackend(inner)
    assert timed.ops.rms_norm == inner.ops.rms_norm and timed.compute_dtype == "float32"
    x, weight = np.ones((2, 4), np.float32), np.ones(4, np.float32)
    with timed.ops.recording() as calls:
        found = timed.ops.rms_norm(x, weight, eps=1e-5)
        timed.ops.gather_rows(x, np.array([1], np.int32))
    assert timed.ops.rms_norm == inner.ops.rms_norm
    assert [call.op for call in calls] == ["rms_norm", "gather_rows"] and calls[0].result is found
    assert np.array_equal(found, inner.ops.rms_norm(x, weight, eps=1e-5)) and calls[0].keywords == {"eps": 1e-5}
    with timed.ops.timing() as seconds:
        assert np.array_equal(timed.ops.rms_norm(x, weight, eps=1e-5), found)
    assert len(seconds) == 1 and seconds[0] > 0
    for way in (timed.ops.recording, timed.ops.timing):
        with pytest.raises(RuntimeError), way():
            raise RuntimeError
        assert timed.ops.rms_norm == inner.ops.rms_norm
    assert timed.ops.gather_rows == inner.ops.gather_rows


def test_decoding_sees_the_context_that_was_asked_for(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the measured steps, give or take what planning the prompts takes; all sequences stay to the end."""
    options = RooflineOptions(batch_size=(5,), context_len=60, num_iters=8)
    config = settle(EngineConfig(model=tiny, max_num_batched_tokens=64), options)
    parts = load_parts(config)
    measured = Steps(config, parts, TimedBackend(parts.backend))
    seen: list[list[int]] = []
    submit = measured._engine.executor.submit

    def watched(plan: Any) -> Any:
        seen.append([sequence.start + len(sequence.token_ids) for sequence in plan.sequences])
        return submit(plan)

    monkeypatch.setattr(measured._engine.executor, "submit", watched)
    whole, in_parts = measured.served(Shape(5, 60), 2)
    measured.shutdown()
    assert len(whole) == len(in_parts) == 2
    during = seen[: 2 * (steps.SETTLE + 2)]
    assert all(len(lengths) == 5 for lengths in during)
    assert abs(np.mean(during) - 60) < 8
    assert not measured._engine.has_work and parts.kv.device.num_used == 0


def known(whole: float = 10.0) -> StepResult:
    """Two runs of two products and one unknown op, of which the first run is the faster."""
    ceilings = Ceilings("x", 1, bandwidth={1000: 10.0}, peaks={"fp32": 100.0})
    works = [Work(streamed_bytes=10), Work(activation_bytes=20, flops=1), Work(streamed_bytes=20, flops=500)]
    return analyse(
        Samples(
            shape=Shape(1, 2),
            kinds=["a", "b", "a"],
            works=works,
            eager=[[2.0, 2.5, 4.0], [9.0, 9.0, 9.0]],
            whole=[whole, 99.0],
            parts=[EngineStep(scheduler=0.5, worker=9.5, sampler=0.25, commit=1.0)],
        ),
        ceilings,
    )


def test_a_machine_that_changes_is_told_of() -> None:
    result = crowded()
    assert "unsteady" not in table.text(result)
    changed = msgspec.structs.replace(result, slowest_bandwidth={str(1 << 20): 130e9})
    assert "unsteady: 1 MiB were read at 130 to 260 GB/s in turn" in table.text(changed)


def test_analysis_of_known_numbers() -> None:
    step = known()
    a, b = step.ops
    assert (a.kind, a.calls, a.seconds, a.limit_seconds, a.bound) == ("a", 2, 6.0, 6.0, "fp32")
    assert (b.kind, b.seconds, b.limit_seconds, b.share, b.bound) == ("b", 2.5, 2.0, 0.8, "cache")
    assert step.ops_seconds == 8.5 and step.limit_seconds == 8.0 and step.share == 0.8
    assert step.outside.worker == 9.5 - 0.25 - 8.5 and step.outside.scheduler == 0.5 and step.outside.commit == 1.0
    assert step.largest_gain.kind == OUTSIDE and step.largest_gain.seconds == 1.5
    assert known(whole=8.6).largest_gain.kind == "b"


def test_the_fastest_quarter() -> None:
    assert fastest([5, 1, 4, 2, 3], lambda value: value) == [1, 2]
    assert fastest([7], lambda value: value) == [7]


def test_json_on_the_terminal(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "roofline", tiny, "--context-len", "8", "--num-iters", "4", "--num-threads", "1", "--json"]) == 0
    assert [step["kind"] for step in json.loads(capsys.readouterr().out)["steps"]] == ["decode"]
