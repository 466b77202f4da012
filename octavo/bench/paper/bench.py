"""What a figure may ask for while it measures: runs of engines, remembered; a loaded model; the options.

Owns the engine of the last run, which the next one may need again, and loads the parts that kernels are measured on. Figures
get one ``Bench`` and know nothing of files or of how engines are built.
"""

import dataclasses
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench.options import PaperOptions
from octavo.bench.paper.driver import Arrival, Replayed, replay
from octavo.bench.paper.store import Store
from octavo.bench.paper.workload import HERE, TRACE_NAMES, Serve, Traces
from octavo.build import Frontend, Loaded, Parts, load, load_parts, open_frontend
from octavo.build_simulated import Simulated, preset_named, simulate_preset
from octavo.clock import Clock, WallClock
from octavo.config import EngineConfig
from octavo.engine.engine import Engine

WARM_UP = 4
"""Requests, of the first tokens only, that a real engine computes before a run."""


class Bench:
    """``config`` is the user's; of it count the model and how it is computed. ``described``: the traces so far, by name."""

    def __init__(self, config: EngineConfig, options: PaperOptions) -> None:
        self.config = config
        self.options = options
        self.quick = options.quick
        self.described: dict[str, str] = {}
        self._last: tuple[EngineConfig, Loaded] | None = None
        folder = Path(options.out)
        self.store = Store(folder / "runs", force=options.force)
        self.traces = Traces(
            file=options.sharegpt,
            tokenizer=lambda: self.frontend.tokenizer,
            vocab_size=self.frontend.vocab_size,
        )

    @cached_property
    def frontend(self) -> Frontend:
        return open_frontend(self.config)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What every result depends on: the engine's settings that were changed."""
        given = msgspec.structs.asdict(self.config)
        defaults = {f.name: f.default for f in msgspec.structs.fields(EngineConfig)}
        return {name: value for name, value in given.items() if value != defaults[name]}

    def say(self, line: str) -> None:
        """Progress, beside what is printed as a result."""
        print(line, file=sys.stderr, flush=True)

    def served(self, serve: Serve) -> Replayed:
        """One run: computed, or found among the results."""
        spec = {**msgspec.structs.asdict(serve), "file": self.options.sharegpt}
        self._describe(serve)
        found = self.once(serve.name, spec, lambda: msgspec.to_builtins(self._serve(serve)))
        return msgspec.convert(found, Replayed)

    def _describe(self, serve: Serve) -> None:
        paper = serve.machine != HERE
        spec = {"trace": serve.trace, "paper": paper, "file": self.options.sharegpt}
        name = TRACE_NAMES[serve.trace] + (", paper's lengths" if paper and serve.trace == "sharegpt" else "")
        found = self.once(f"trace {name}", spec, lambda: {"description": self.traces.of(serve.trace, paper=paper).description})
        self.described[name] = found["description"]

    def once(self, name: str, spec: Mapping[str, Any], compute: Any) -> dict[str, Any]:
        """Anything that takes long: computed, or found among the results of the same settings."""
        return self.store.once(name, {**spec, "settings": self.settings}, compute)

    def _serve(self, serve: Serve) -> Replayed:
        self.say(f"    {serve.name}")
        arrivals = self.traces.arrivals(serve)
        if serve.machine != HERE:
            simulated = self.simulated(serve)
            return self._replay(serve, simulated.engine, arrivals, simulated.clock)
        loaded = self._loaded(self._config_of(serve))
        self._warm_up(loaded, arrivals[:WARM_UP])
        loaded.engine.scheduler.kv.forget_cached()
        return self._replay(serve, loaded.engine, arrivals, WallClock())

    @staticmethod
    def _replay(serve: Serve, engine: Engine, arrivals: list[Arrival], clock: Clock) -> Replayed:
        prefix = arrivals[0].request.prompt_token_ids[: serve.prefix_len] if serve.pinned else []
        if prefix:
            engine.pin_prefix(prefix)
        try:
            return replay(engine, arrivals, clock, limit=serve.limit)
        finally:
            engine.unpin_prefix(prefix)  # the next run may have the same engine and another trace

    def _loaded(self, config: EngineConfig) -> Loaded:
        """The engine of the last run, if this one needs the same."""
        if self._last is None or self._last[0] != config:
            self.close()
            self._last = (config, load(config))
        return self._last[1]

    def close(self) -> None:
        """End the engine that is kept."""
        if self._last is not None:
            self._last[1].engine.shutdown()
            self._last = None

    @staticmethod
    def _warm_up(loaded: Loaded, arrivals: list[Arrival]) -> None:
        """The first steps of an engine find memory and record the model."""
        for arrival in arrivals:
            request = arrival.request
            params = msgspec.structs.replace(request.params, max_tokens=2)
            loaded.engine.add(msgspec.structs.replace(request, id=f"warm-{request.id}", params=params))
        while loaded.engine.has_work:
            loaded.engine.step()

    def simulated(self, serve: Serve) -> Simulated:
        """An engine in virtual time for such a run."""
        preset = preset_named(serve.machine)
        return simulate_preset(self._config_of(serve), dataclasses.replace(preset, kv_slots=serve.kv_slots))

    def _config_of(self, serve: Serve) -> EngineConfig:
        return msgspec.structs.replace(
            self.config,
            max_model_len=serve.max_model_len,
            max_num_seqs=serve.max_num_seqs,
            max_num_batched_tokens=serve.max_num_batched_tokens,
            block_size=serve.block_size,
            kv_allocation=serve.policy,
            kv_cache_memory_bytes=None,
            num_gpu_blocks_override=serve.kv_slots // serve.block_size,
            enable_prefix_caching=serve.pinned,
            preemption_mode=serve.preemption_mode,
            spec_method="none",
        )

    def parts(self, *, max_model_len: int) -> Parts:
        """A loaded model without an engine, with as small a cache as there can be: for whoever brings one of their own."""
        config = msgspec.structs.replace(
            self.config, max_model_len=max_model_len, num_gpu_blocks_override=-(-max_model_len // self.config.block_size)
        )
        return load_parts(config)

    @cached_property
    def machine(self) -> str:
        """The machine that real figures are measured on, in words."""
        return self.parts(max_model_len=64).backend.describe()
