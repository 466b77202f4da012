"""``octavo bench serve``: prepare, run, report. ``Bench``, a server with its model and its token counter, is a sweep's, too."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench.report import check_writable
from octavo.bench.serve import plot, table
from octavo.bench.serve.data import Prompt, arrivals, make_prompts, make_warmups
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

    def prompts(self, seed: int) -> list[Prompt]:
        return make_prompts(self._options, self._tokens, seed=seed)

    def run(self, prompts: Sequence[Prompt], *, rate: float, seed: int) -> tuple[Run, Figures]:
        """One measurement at one rate."""
        options = self._options
        warmups = make_warmups(options, self._tokens, seed=seed) if options.num_warmups else []
        due = arrivals(len(prompts), rate, burstiness=options.burstiness, seed=seed)
        run = self._driver.run(prompts, due, rate=rate, warmups=warmups)
        self._count_outputs(run)
        percentiles = options.percentiles
        return run, figures(run, percentiles=percentiles, limits=options.limits)

    def about(self) -> dict[str, Any]:
        """What a result says of what was measured."""
        options = self._options
        kind = "openai-chat" if options.is_chat else options.backend
        return {
            "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": kind,
            "backend": kind,
            "label": options.label,
            "model_id": self.model,
            "tokenizer_id": options.tokenizer or self.model,
            "burstiness": options.burstiness,
            "max_concurrency": options.max_concurrency,
        }

    def _count_outputs(self, run: Run) -> None:
        """A server that says no usage gets its texts counted here."""
        uncounted = [outcome for outcome in run.outcomes if not outcome.error and outcome.output_tokens is None]
        if uncounted:
            ids = self._tokens.encode_batch([outcome.text for outcome in uncounted], add_special_tokens=False)
            for outcome, found in zip(uncounted, ids, strict=True):
                outcome.output_tokens = len(found)


def main(options: ServeOptions) -> int:
    """Measure and report. Returns the exit status: 1 when no request was answered."""
    options.check()
    check_writable(options.output_json, "--output-json")
    check_writable(options.plot, "--plot")
    plot.check(options.plot)
    if options.save_result:
        check_writable(f"{options.result_dir}/x", "--result-dir")
    bench = Bench(options)
    run, found = bench.run(bench.prompts(options.seed), rate=options.request_rate, seed=options.seed)
    warn_of_failures(run)
    values = result(run, found, about=bench.about(), metrics=options.metrics)
    values |= dict(entry.split("=", 1) for entry in options.metadata)
    if options.save_detailed:
        values |= details(run)
    _write(options, values)
    if options.plot is not None:
        rate = "all at once" if values["request_rate"] == "inf" else f"{options.request_rate:g} requests/s"
        plot.save(plot.distributions(run, title=f"{bench.model}, {len(run.prompts)} requests, {rate}"), options.plot)
    if options.json:
        print(msgspec.json.encode({k: v for k, v in values.items() if k not in details(run)}).decode())
    else:
        shown = table.text(found, metrics=options.metrics, rate=run.request_rate, max_concurrency=options.max_concurrency)
        print(shown)
    return 0 if found.completed else 1


def warn_of_failures(run: Run) -> None:
    """A line on stderr for each kind of failure."""
    kinds: dict[str, int] = {}
    for outcome in run.outcomes:
        if outcome.error:
            kinds[outcome.error] = kinds.get(outcome.error, 0) + 1
    for error, count in sorted(kinds.items(), key=lambda item: -item[1])[:5]:
        print(f"octavo: warning: {count} requests failed: {error}", file=sys.stderr, flush=True)


def _write(options: ServeOptions, values: dict[str, Any]) -> None:
    text = msgspec.json.encode(values)
    if options.output_json is not None:
        Path(options.output_json).write_bytes(text + b"\n")
    if options.save_result:
        name = options.result_filename or _file_name(options, values)
        path = Path(options.result_dir) / name
        try:
            path.write_bytes(text + b"\n")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None


def _file_name(options: ServeOptions, values: dict[str, Any]) -> str:
    limit = f"-concurrency{options.max_concurrency}" if options.max_concurrency is not None else ""
    model = str(values["model_id"]).rsplit("/", 1)[-1]
    return f"{options.label or values['backend']}-{options.request_rate}qps{limit}-{model}-{values['date']}.json"
