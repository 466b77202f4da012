"""GET /metrics: the numbers of the engine and the server in Prometheus' format.

Our names begin with ``octavo_``; the names that existing dashboards ask for stand beside them with the same values. Fixed
buckets and fixed labels, so the number of series does not depend on what clients do. Imported when the server is ready.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.metrics import EngineStats, Histogram
from octavo.server.accounting import ServerMetrics
from octavo.server.service import Service

_Bounds = tuple[float, ...]
_LABELS = ["model_name", "engine"]
_TTFT: _Bounds = (0.01, 0.04, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 40.0)
_ITL: _Bounds = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_E2E: _Bounds = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 240.0)
_TOKENS: _Bounds = (10, 100, 1000, 10000, 100000)


MEDIA_TYPE = CONTENT_TYPE_LATEST


def snapshot(service: Service) -> "Families":
    """Every number of one scrape, taken at once: nothing of it changes any more."""
    return Families(list(_Snapshot(service).collect()))


def render(families: "Families") -> bytes:
    """The text of a scrape, with what the system knows of this process. It takes milliseconds, and needs nothing that others
    change."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(families)
    return generate_latest(registry)


def saturation(stats: EngineStats, *queues: tuple[int, int]) -> float:
    """How near the server is to refusing work, 0 to 1: the fullest of the KV cache and the queues, each (waiting, limit)."""
    usage = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    return min(1.0, max(usage, *(waiting / limit for waiting, limit in queues)))


class Families(Collector):
    """What a registry is given to write."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class _Snapshot:
    """Every family of one scrape, from what the server knows now."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._values = [service.names[0], "0"]

    def collect(self) -> Iterable[Metric]:
        stats, metrics = self._service.client.stats, self._service.metrics
        yield from self._gauges(stats)
        yield from self._counters(stats, metrics)
        yield from self._histograms(metrics)
        yield from self._set_up(stats)
        yield from self._own(stats, metrics)

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        usage = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
        for names, help_text, value in (
            (("octavo_requests_running", "vllm:num_requests_running"), "Sequences being computed.", stats.num_running),
            (("octavo_requests_waiting", "vllm:num_requests_waiting"), "Requests waiting for blocks.", stats.num_waiting),
            (("octavo_requests_swapped", "vllm:num_requests_swapped"), "Sequences swapped out.", stats.num_swapped),
            (("octavo_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"), "Used device blocks, 0 to 1.", usage),
            (("octavo_token_slots_used",), "Slots of used blocks that hold a token.", stats.token_slots_used),
            (("octavo_kv_block_references",), "Entries of all block tables.", stats.block_references),
            (("octavo_kv_memory_saved_ratio",), "Blocks saved by sharing, of those needed without it.", stats.memory_saved),
        ):
            for name in names:
                yield self._gauge(name, help_text, value)
        blocks = GaugeMetricFamily(
            "octavo_kv_blocks", "Device blocks; shared and pinned ones are parts of used.", labels=[*_LABELS, "state"]
        )
        for state in ("total", "used", "shared", "pinned", "cached", "free"):
            blocks.add_metric([*self._values, state], getattr(stats, f"blocks_{state}"))
        yield blocks

    def _counters(self, stats: EngineStats, metrics: ServerMetrics) -> Iterator[Metric]:
        for names, help_text, value in (
            (("octavo_prompt_tokens", "vllm:prompt_tokens"), "Prompt tokens taken in.", stats.prompt_tokens),
            (
                ("octavo_generation_tokens", "vllm:generation_tokens"),
                "Tokens computed for outputs, equal outputs once.",
                stats.generation_tokens,
            ),
            (
                ("octavo_prompt_tokens_cached", "vllm:prompt_tokens_cached"),
                "Prompt tokens not computed again.",
                stats.prefix_cache_hits,
            ),
            (("octavo_prefix_cache_queries", "vllm:prefix_cache_queries"), "Tokens looked up.", stats.prefix_cache_queries),
            (("octavo_prefix_cache_hits", "vllm:prefix_cache_hits"), "Tokens found.", stats.prefix_cache_hits),
            (("octavo_preemptions", "vllm:num_preemptions"), "Groups preempted.", stats.preemptions),
            (("octavo_drafts", "vllm:spec_decode_num_drafts"), "Guesses verified, of one token or several.", stats.drafts),
            (("octavo_draft_tokens", "vllm:spec_decode_num_draft_tokens"), "Tokens guessed.", stats.draft_tokens),
            (
                ("octavo_accepted_draft_tokens", "vllm:spec_decode_num_accepted_tokens"),
                "Tokens guessed and found right.",
                stats.accepted_draft_tokens,
            ),
            (("octavo_copy_on_writes",), "Shared blocks copied before a write.", stats.copy_on_writes),
            (("octavo_request_blocks_allocated",), "Blocks handed out to ended requests.", metrics.blocks_allocated),
            (("octavo_request_blocks_shared",), "Blocks that ended requests shared.", metrics.blocks_shared),
            (("octavo_request_copy_on_writes",), "Shared blocks that ended requests copied.", metrics.copy_on_writes),
            (("octavo_steps",), "Steps of the engine.", stats.steps),
            (("octavo_clients_gone",), "Requests whose client left.", metrics.clients_gone),
            (("octavo_engine_restarts",), "Engine processes that were replaced.", self._service.status.restarts),
        ):
            for name in names:
                yield self._counter(name, help_text, value)
        swaps = CounterMetricFamily(
            "octavo_swapped_blocks", "Blocks moved between device and host.", labels=[*_LABELS, "direction"]
        )
        swaps.add_metric([*self._values, "in"], stats.swaps_in)
        swaps.add_metric([*self._values, "out"], stats.swaps_out)
        yield swaps
        for name in ("octavo_request_success", "vllm:request_success"):
            finished = CounterMetricFamily(name, "Choices by how they ended.", labels=[*_LABELS, "finished_reason"])
            for reason, count in metrics.finished.items():
                finished.add_metric([*self._values, reason], count)
            yield finished

    def _histograms(self, metrics: ServerMetrics) -> Iterator[Metric]:
        """Our own with a selection of the bounds, the aliases with all that dashboards know."""
        for name, help_text, histogram, bounds in (
            ("time_to_first_token_seconds", "From arrival to the first token.", metrics.time_to_first_token, _TTFT),
            ("inter_token_latency_seconds", "Between two tokens of one choice.", metrics.inter_token_latency, _ITL),
            ("e2e_request_latency_seconds", "From arrival to the end.", metrics.e2e_latency, _E2E),
            ("request_queue_time_seconds", "From arrival to the first step.", metrics.queue_time, None),
            ("request_prompt_tokens", "Prompt tokens of a request.", metrics.prompt_tokens, _TOKENS),
            ("request_generation_tokens", "Generated tokens of a request.", metrics.generation_tokens, _TOKENS),
        ):
            yield self._histogram(f"octavo_{name}", help_text, histogram, bounds)
            yield self._histogram(f"vllm:{name}", help_text, histogram)
        for name, help_text, histogram in (
            ("time_per_output_token_seconds", "Mean of a request, first token left out.", metrics.time_per_output_token),
            ("prefill_time_seconds", "From the first step to the first token.", metrics.prefill_time),
            ("decode_time_seconds", "From the first token to the end.", metrics.decode_time),
        ):
            yield self._histogram(f"vllm:request_{name}", help_text, histogram)
        name, help_text = "vllm:request_max_num_generation_tokens", "Tokens of a request's longest choice."
        yield self._histogram(name, help_text, metrics.longest_output, _TOKENS)

    def _set_up(self, stats: EngineStats) -> Iterator[Metric]:
        """What routers multiply: the blocks and their size."""
        if (served := self._service.served) is None:
            return
        facts = {**served.cache_facts, "num_gpu_blocks": str(stats.blocks_total), "engine": self._values[1]}
        cache = GaugeMetricFamily("vllm:cache_config_info", "How the KV cache is set up.", labels=list(facts))
        cache.add_metric(list(facts.values()), 1)
        yield cache

    def _own(self, stats: EngineStats, metrics: ServerMetrics) -> Iterator[Metric]:
        service = self._service
        pending, tokens, options = service.client.pending, service.client.pending_tokens, service.options
        queues = (pending, options.max_num_queued_reqs), (tokens, options.max_num_queued_tokens)
        yield self._gauge("octavo_saturation", "0 to 1: the fuller of queue and KV cache.", saturation(stats, *queues))
        yield self._gauge("octavo_prompt_tokens_pending", "Prompt tokens of requests without a token.", tokens)
        yield self._gauge("octavo_requests_pending", "Requests without a token.", pending)
        yield self._gauge("octavo_ready", "1 while the server takes requests.", float(service.status.ready()[0] == 200))
        yield self._histogram("octavo_step_seconds", "Duration of a step.", service.status.steps)
        responses = CounterMetricFamily(
            "octavo_http_responses", "Responses by status, probes and scrapes left out.", labels=["code"]
        )
        for code, count in sorted(metrics.responses.items()):
            responses.add_metric([str(code)], count)
        yield responses
        start = GaugeMetricFamily("octavo_start_time_seconds", "When this server started, Unix time.")
        start.add_metric([], metrics.started_at)
        yield start

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help_text, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _histogram(self, name: str, help_text: str, histogram: Histogram, bounds: tuple[float, ...] | None = None) -> Metric:
        family = HistogramMetricFamily(name, help_text, labels=_LABELS)
        family.add_metric(self._values, histogram.cumulative(bounds), histogram.total)
        return family
