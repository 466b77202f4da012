"""All figures: points, tables, pictures and verdicts, from records that runs would leave; and what is measured without runs."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo import cli
from octavo.bench.paper import main, report
from octavo.bench.paper.bench import Bench
from octavo.bench.paper.driver import SLOTS, Replayed
from octavo.bench.paper.figure import MODES, Figure, Findings, Measured, Table, Verdict
from octavo.bench.paper.figures import FIGURES, batched_requests, kernel_overhead, swap_or_recompute
from octavo.bench.paper.helpers import Helpers
from octavo.bench.paper.scenes import scene
from octavo.bench.paper.workload import Serve
from tests.bench.paper.conftest import MakeBench, replayed

NAMES = [
    "memory-waste", "latency-rate", "batched-requests", "sampling-and-beams", "shared-prefix", "chatbot", "kernel-overhead",
    "block-size", "swap-or-recompute",
]  # fmt: skip
SPEED = {"paged": 8.0, "orca-oracle": 4.0, "orca-pow2": 3.0, "orca-max": 2.0, "fastertransformer": 1.0}


def run_of(serve: Serve) -> Replayed:
    """The paper's order of policies; blocks of 16 hold 98 % tokens, smaller ones more, at no cost."""
    speed = SPEED[serve.policy] * (3 if serve.pinned else 1)
    share = 1 - 0.02 * serve.block_size / 16 if serve.policy == "paged" else SPEED[serve.policy] / 10
    saved = {1: 0.0, 2: 200.0, 4: 300.0, 6: 500.0}[serve.branches] * (4 if serve.beam_width else 1)
    slots = dict.fromkeys(SLOTS, 0.0) | {"tokens": 1000 * share, "internal": 1000 * (1 - share), "saved": saved}
    return replayed(
        output_rate=speed * 50,
        requests_at_once=speed * 4,
        slots=slots,
        saved_at_end=saved / (1000 + saved),
        normalized_latency=0.01 if serve.rate is None or serve.rate <= speed else 9.0,
    )


def kernels_of(name: str, spec: Any, compute: Callable[[], Any]) -> Any:
    if spec.get("kind") == "kernel-overhead":
        sizes = [str(size) for size in kernel_overhead.BLOCK_SIZES]
        return {"contiguous": 1e-5, "paged": dict.fromkeys(sizes, 1.01e-5), "overhead": dict.fromkeys(sizes, 0.01)}
    if spec.get("kind") == "steps":
        costs = {str(size): {"cost": 0.01, "low": 0.0, "high": 0.02} for size in (*spec["sizes"][1:], "again")}
        return {"seconds": dict.fromkeys([str(spec["sizes"][0]), *costs], 0.015), "cost": costs}
    return {"recompute": 0.02, "swap": 0.001 * (1 + 1 / spec["block"])}


@pytest.fixture
def canned(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = make_bench()
    monkeypatch.setattr(bench, "served", run_of)
    monkeypatch.setattr(bench, "once", kernels_of)
    monkeypatch.setattr(bench, "say", lambda line: None)
    return bench


def findings_of(bench: Bench, figure: Figure) -> Findings:
    return Findings({mode: main.measure(bench, figure, mode) for mode in figure.modes})


def test_every_figure_is_there() -> None:
    assert [figure.name for figure in FIGURES] == NAMES
    assert all(figure.title and figure.number.startswith("Fig. ") and set(figure.modes) <= set(MODES) for figure in FIGURES)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
@pytest.mark.parametrize("quick", [True, False])
def test_points_are_distinct_and_can_be_written(make_bench: MakeBench, figure: Figure, quick: bool) -> None:
    bench = make_bench(quick=quick)
    for mode in figure.modes:
        points = figure.points(bench, mode)
        assert points and len({point.key for point in points}) == len(points)
        assert all(point.mode == mode and json.loads(json.dumps(point.spec)) for point in points)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_from_its_records(canned: Bench, figure: Figure, tmp_path: Path) -> None:
    findings = findings_of(canned, figure)
    verdicts = report.write_figure(tmp_path, figure, findings)
    text = (tmp_path / f"{figure.name}.md").read_text()
    assert verdicts and all(verdict.what in text and verdict.ours in text for verdict in verdicts)
    assert not [verdict for verdict in verdicts if verdict.met is False and "requests at once, " not in verdict.what]
    stored = json.loads((tmp_path / f"{figure.name}.json").read_text())
    assert [table["title"] for table in stored["tables"]] and set(stored["points"]) == set(figure.modes)
    for table in figure.tables(findings):
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows), table.title
    assert (tmp_path / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{figure.name}.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_in_one_mode_alone(canned: Bench, figure: Figure, mode: Any) -> None:
    if mode in figure.modes:
        findings = Findings({mode: main.measure(canned, figure, mode)})
        assert figure.tables(findings) and figure.picture(findings).axes
        assert all(isinstance(verdict, Verdict) for verdict in figure.verdicts(findings))


def worse(serve: Serve) -> Replayed:
    """All policies alike, half of the memory empty, nothing shared."""
    latency = 0.01 if serve.rate is None or serve.rate <= 2.0 else 9.0
    return replayed(output_rate=100.0, normalized_latency=latency)


def slow(name: str, spec: Any, compute: Callable[[], Any]) -> Any:
    found = kernels_of(name, spec, compute)
    if "cost" in found:
        return found | {"cost": {key: {"cost": 0.03, "low": 0.02, "high": 0.04} for key in found["cost"]}}
    return found | ({"overhead": dict.fromkeys(found["paged"], 0.2)} if "paged" in found else {})


@pytest.mark.parametrize(
    "name", ["memory-waste", "latency-rate", "sampling-and-beams", "shared-prefix", "kernel-overhead", "block-size"]
)
def test_what_is_not_met_is_said(canned: Bench, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(canned, "served", worse)
    monkeypatch.setattr(canned, "once", slow)
    figure = next(figure for figure in FIGURES if figure.name == name)
    verdicts = figure.verdicts(findings_of(canned, figure))
    promised = [verdict for verdict in verdicts if verdict.met is not None and not verdict.what.startswith("order")]
    assert promised and not any(verdict.met for verdict in promised)
    assert "not met" in report.verdict_table([(figure, verdicts)])
    assert "0 of" in report.verdict_lines([(figure, promised)])


def test_the_largest_blocks_that_waste_next_to_nothing_are_named(canned: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = FIGURES[0]

    def said() -> str:
        return figure.verdicts(findings_of(canned, figure))[-1].ours

    assert said() == "8 (99.0%)"
    monkeypatch.setattr(canned, "served", worse)
    assert said().startswith("1 (")


def test_paged_attention_is_timed_where_it_gives_the_same(make_bench: MakeBench) -> None:
    parts = make_bench().parts(max_model_len=64)
    found = kernel_overhead.compare(parts, batch=3, context=48, rounds=8)
    assert found["contiguous"] > 0 and set(found["paged"]) == set(found["overhead"]) == {"16", "8", "4"}


def test_another_result_is_no_comparison(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = make_bench().parts(max_model_len=64)
    original = kernel_overhead._layout
    count = iter(range(9))

    def wrong(backend: Any, spec: Any, shape: Any, prompt: np.ndarray, **others: Any) -> Any:
        return original(backend, spec, shape, prompt + next(count), **others)

    monkeypatch.setattr(kernel_overhead, "_layout", wrong)
    with pytest.raises(RuntimeError, match="another result than contiguous"):
        kernel_overhead.compare(parts, batch=2, context=48, rounds=4)


def test_moving_and_recomputing_are_timed(make_bench: MakeBench) -> None:
    found = swap_or_recompute.compare(make_bench().parts(max_model_len=512), 16, 3)
    assert found["recompute"] > 0 and found["swap"] > 0


# ------------------------------------------------------------------------------------------------------------ the command line


def paper(tiny: str, tmp_path: Path, conversations: Path, *more: str) -> int:
    engine = ["--num-threads", "1", "--swap-space", "0.01"]  # of the default a tiny model has millions of blocks
    flags = ["--quick", "--out", str(tmp_path / "out"), "--sharegpt", str(conversations), *more]
    return cli.main(["bench", "paper", tiny, *engine, *flags])


def test_from_the_command_line_and_again(
    tiny: str, tmp_path: Path, conversations: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel_overhead, "EVICTED", 1 << 16)
    monkeypatch.setattr(kernel_overhead, "BATCHES", (2,))
    monkeypatch.setattr(batched_requests, "scene", lambda *args, **wishes: scene(*args, **wishes, num_requests=8))
    flags = ["--mode", "real", "--figure", "batched-requests", "kernel-overhead"]
    assert paper(tiny, tmp_path, conversations, *flags) == 0
    said = capsys.readouterr()
    assert "Fig. 18a" in said.out and "[1/8]" in said.err
    page = (tmp_path / "out" / "README.md").read_text()
    assert "kernel-overhead.svg" in page and "batched-requests.md" in page and "A quick run" in page and "Alpaca-like" in page

    def never(self: Bench, serve: Serve) -> Replayed:
        raise AssertionError("computed again")

    monkeypatch.setattr(Bench, "_serve", never)
    monkeypatch.setattr(kernel_overhead, "compare", never)
    assert paper(tiny, tmp_path, conversations, *flags) == 0
    assert (tmp_path / "out" / "README.md").read_text() == page
    with pytest.raises(AssertionError, match="computed again"):
        paper(tiny, tmp_path, conversations, *flags, "--force")


def test_real_runs_of_all_policies(make_bench: MakeBench) -> None:
    """A tiny model on the real engine: every policy and every way of branching ends, and says what memory did."""
    bench = make_bench()
    base = {"machine": "here", "trace": "alpaca", "num_requests": 4, "kv_slots": 1024, "max_model_len": 256, "max_num_seqs": 8}
    for changes in (*({"policy": policy} for policy in SPEED), {"n": 2}, {"beam_width": 2}, {"rate": 100.0}):
        found = bench.served(Serve(**base, **changes))  # type: ignore[arg-type]
        assert found.num_finished == 4 and found.slots["tokens"] > 0, changes
    bench.close()


def test_helpers_compute_what_one_process_does(
    make_bench: MakeBench, conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    figure = next(figure for figure in FIGURES if figure.name == "batched-requests")
    alone, together = make_bench(), make_bench()
    with Helpers(together.config, msgspec.structs.replace(together.options, out=str(tmp_path / "other"))) as helpers:
        points = [
            dataclasses.replace(point, spec={**point.spec, "serve": {**point.spec["serve"], "num_requests": 40}})
            for point in figure.points(alone, "simulated")[:2]
        ]
        found = helpers.measure(together, figure, points)
    assert found == [msgspec.to_builtins(figure.measure(alone, point)) for point in points]
    assert together.described == alone.described != {}


def test_a_simulated_run_needs_no_weights(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    monkeypatch.setattr("octavo.bench.paper.bench.load", None)
    serve = scene(bench, "opt-13b", "sharegpt", policy="orca-max", num_requests=20)
    found = bench.served(serve)
    assert found.num_finished == 20 and 6 < found.requests_at_once <= 7 and found.total_slots == 15_696
    assert bench.described == {"ShareGPT, paper's lengths": bench.traces.of("sharegpt", paper=True).description}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--figure", "memory"], "--figure memory: no such figure; there are: memory-waste"),
        (["--figure", "kernel-overhead", "--mode", "simulated"], "--mode simulated: kernel-overhead cannot be measured"),
        (["--no-quick"], "real runs have sequences of 2048 tokens and the model was made for 512"),
        (["--figure", "chatbot", "--sharegpt", "missing.json"], "missing.json: there is no such file"),
    ],
)
def test_refusals(
    tiny: str, tmp_path: Path, conversations: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert paper(tiny, tmp_path, conversations, *flags) == 64
    assert message in capsys.readouterr().err


def test_pictures_need_matplotlib(
    tiny: str, tmp_path: Path, conversations: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert paper(tiny, tmp_path, conversations) == 64
    assert "pip install 'octavo[plot]'" in capsys.readouterr().err


def test_tables_in_markdown() -> None:
    table = Table(
        "a table", ["name", "value", "part"], [["a", 0.12345, "1 %"], ["b", 1234.5, None], ["c", 12, "x"]], ["A note."]
    )
    assert report.markdown(table).splitlines() == [
        "### A table", "", "| name | value | part |", "| :-- | --: | :-- |", "| a | 0.123 | 1 % |", "| b | 1234 |  |",
        "| c | 12 | x |", "", "A note.  ",
    ]  # fmt: skip


def test_verdicts_in_words() -> None:
    words = [Verdict("a", "1", "2", "3", met).word for met in (True, False, None)]
    assert words == ["met", "not met", "shown"]
    found = [(FIGURES[0], [Verdict("a", "1", "2", ">= 3", False, note="Because.")])]
    assert report.verdict_table(found).splitlines()[2:] == ["| Fig. 2 | a | 1 | 2 | >= 3 | not met (1) |", "", "1. Because."]


def test_a_record_is_read_by_name() -> None:
    from octavo.bench.paper.figure import Point

    measured = Measured(Point("k", "real", {"a": 1}), {"b": 2})
    assert measured["a"] == 1 and measured["b"] == 2
