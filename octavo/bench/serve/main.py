"""``octavo bench serve``: prepare, run, report. ``Bench``, a server with its model and its token counter, is a sweep's, too."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench import drawing
from octavo.bench.report import check_writable, writing
from octavo.bench.serve import plot, table
from octavo.bench.serve.data import Work, arrivals, make_work
from octavo.bench.serve.driver import Driver, Run
from octavo.bench.serve.options import LoadOptions, ServeOptions
from octavo.bench.serve.statistics import Figures, details, figures, result
from octavo.bench.serve.tokens import ServerApi, TokenCounter, open_tokens
from octavo.config import ConfigError


class Bench:
    """A server that answers, and who counts its tokens. Raises ``ConfigError``."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        api = ServerApi(options.url, headers=options.headers, insecure=options.insecure)
        api.wait_ready(options.ready_check_timeout_sec)
        self.model = options.served_model_name or options.model or api.first_model()
        self._tokens: TokenCounter = open_tokens(options.tokenizer, api, self.model)
        self._driver = Driver(options, model=self.model)

    def work(self, *, runs: int = 1) -> list[Work]:
        """What so many runs send."""
        return make_work(self._options, self._tokens, runs=runs)

    def run(self, work: Work, *, rate: float) -> tuple[Run, Figures]:
        """One measurement at one rate. Raises nothing for what the server does meanwhile."""
        options = self._options
        due = arrivals(len(work.prompts), rate, burstiness=options.burstiness, seed=work.seed)
        run = self._driver.run(work.prompts, due, rate=rate, warmups=work.warmups)
        self._count_outputs(run)
        return run, figures(run, percentiles=options.percentiles, limits=options.limits)

    def about(self) -> dict[str, Any]:
        """What a result says of what was measured."""
        options = self._options
        return {
            "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": options.kind,
            "backend": options.kind,
            "label": options.label,
            "model_id": self.model,
            "tokenizer_id": options.tokenizer or self.model,
            "burstiness": options.burstiness,
            "max_concurrency": options.max_concurrency,
        }

    def _count_outputs(self, run: Run) -> None:
        """A server that says no usage gets its texts counted here; an answer that cannot be counted is as good as none."""
        uncounted = [outcome for outcome in run.outcomes if not outcome.error and outcome.output_tokens is None]
        try:
            ids = self._tokens.encode_batch([outcome.text for outcome in uncounted], add_special_tokens=False)
        except ConfigError as error:
            for outcome in uncounted:
                outcome.error = f"its tokens are not counted: {error}"
            return
        for outcome, found in zip(uncounted, ids, strict=True):
            outcome.output_tokens = len(found)


def main(options: ServeOptions) -> int:
    """Measure and report. Returns the exit status: 1 when no request was answered."""
    options.check()
    check_writable(options.output_json, "--output-json")
    check_writable(options.plot, "--plot")
    drawing.check_file(options.plot, "--plot")
    if options.save_result:
        flag = "--result-dir" if options.result_filename is None else "--result-filename"
        check_writable(str(_result_file(options, model="MODEL", date="TIME")), flag)
    bench = Bench(options)
    metadata = _metadata(options, bench)
    (work,) = bench.work()
    run, found = bench.run(work, rate=options.request_rate)
    warn_of_failures(run)
    values = result(run, found, about=bench.about(), metrics=options.metrics) | metadata
    if options.save_detailed:
        values |= details(run)
    if options.json:
        print(msgspec.json.encode({k: v for k, v in values.items() if k not in details(run)}).decode())
    else:
        shown = table.text(found, metrics=options.metrics, rate=run.request_rate, max_concurrency=options.max_concurrency)
        print(shown)
    _write(options, values)
    if options.plot is not None:
        rate = "all at once" if values["request_rate"] == "inf" else f"{options.request_rate:g} requests/s"
        picture = plot.distributions(run, title=f"{bench.model}, {len(run.prompts)} requests, {rate}")
        drawing.write(picture, options.plot)
    return 0 if found.completed else 1


def warn_of_failures(run: Run) -> None:
    """A line on stderr for each kind of failure."""
    kinds: dict[str, int] = {}
    for outcome in run.outcomes:
        if outcome.error:
            kinds[outcome.error] = kinds.get(outcome.error, 0) + 1
    for error, count in sorted(kinds.items(), key=lambda item: -item[1])[:5]:
        print(f"octavo: warning: {count} requests failed: {error}", file=sys.stderr, flush=True)


def _metadata(options: ServeOptions, bench: Bench) -> dict[str, str]:
    """Of ``--metadata``. Raises ``ConfigError`` for a name that the result has."""
    nothing = Run(prompts=[], outcomes=[], duration=1.0, request_rate=options.request_rate)
    found = figures(nothing, percentiles=options.percentiles, limits=options.limits)
    taken = result(nothing, found, about=bench.about(), metrics=options.metrics) | details(nothing)
    given = dict(entry.split("=", 1) for entry in options.metadata)
    for name, value in given.items():
        if name in taken:
            raise ConfigError(f"--metadata {name}={value}: the result has a {name} of its own: give another name")
    return given


def _write(options: ServeOptions, values: dict[str, Any]) -> None:
    files = [] if options.output_json is None else [Path(options.output_json)]
    if options.save_result:
        files.append(_result_file(options, model=values["model_id"], date=values["date"]))
    for file in files:
        with writing(file):
            file.write_bytes(msgspec.json.encode(values) + b"\n")


def _result_file(options: ServeOptions, *, model: str, date: str) -> Path:
    """Of ``--save-result``."""
    limit = f"-concurrency{options.max_concurrency}" if options.max_concurrency is not None else ""
    label = (options.label or options.kind).replace("/", "-")
    name = f"{label}-{options.request_rate}qps{limit}-{model.rsplit('/', 1)[-1]}-{date}.json"
    return Path(options.result_dir) / (options.result_filename or name)
