"""Traces for an OpenTelemetry collector: one span for each request that asks for text, made when the request has ended.

Owns everything of OpenTelemetry, an extra of this package: ``open`` is the first to import it. Spans are sent in batches by a
thread; while that fails they are kept up to the thread's bound and then dropped, and no request waits for any of it. Numbers,
names and outcomes are told, never a prompt or an answer.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo import __version__
from octavo.config import ConfigError
from octavo.sampling_params import SamplingParams
from octavo.server import errors
from octavo.server.accounting import RequestRecord
from octavo.server.request_log import Log
from octavo.server_url import server_url

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from starlette.types import Scope

_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
_PARENT_HEADERS = (b"traceparent", b"tracestate")


class Traces:
    """``url`` is where spans are posted as protobuf. ``close`` gives them ``timeout`` seconds to arrive."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._provider: TracerProvider | None = None
        self._tracer: Any = None
        self._propagator: Any = None

    @staticmethod
    def of(endpoint: str | None) -> "Traces | None":
        """None when none are wanted. Raises ``ConfigError`` for what is no URL, and without the extra."""
        if endpoint is None:
            return None
        if not _is_installed():
            raise ConfigError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'octavo[otel]'")
        return Traces(_posted_to(endpoint))

    def open(self, log: Log) -> None:
        """From here on requests make spans. Takes a tenth of a second. Raises ``ConfigError`` for ``OTEL_*`` variables that the
        exporter refuses."""
        from urllib.parse import urlsplit

        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        chatty = logging.getLogger("opentelemetry.exporter")  # a line a failure and a retry; here it is one in all
        chatty.propagate = False
        chatty.addHandler(logging.NullHandler())  # without any, Python writes warnings to stderr itself
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        try:
            exporter = OTLPSpanExporter(endpoint=self._url)
        except (ValueError, OSError) as error:
            raise ConfigError(f"--otlp-traces-endpoint: {error}") from None
        sender = _Sender(exporter, log, urlsplit(self._url).hostname or "")
        provider.add_span_processor(BatchSpanProcessor(sender))  # type: ignore[arg-type]  # not derived, to import nothing
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("octavo", __version__)
        self._provider = provider

    def request(
        self, scope: "Scope", *, status: int, arrival: float, seconds: float, told: tuple[RequestRecord, SamplingParams] | None
    ) -> str | None:
        """A request has been answered, ``seconds`` after ``arrival`` on the monotonic clock. Returns its trace id, if any.
        ``told`` is None for a request that was refused before there was anything to generate."""
        if self._tracer is None:
            return None
        from opentelemetry.trace import SpanKind, Status, StatusCode

        headers = dict(scope["headers"])
        carrier = {name.decode(): headers[name].decode("latin-1") for name in _PARENT_HEADERS if name in headers}
        begun = time.time_ns() - int((time.monotonic() - arrival) * 1e9)
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"], "http.response.status_code": status}
        if told is not None:
            attributes |= attributes_of(*told)
        error = _error(status, None if told is None else told[0])
        if error is not None:
            attributes["error.type"] = error
        span = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=begun,
        )
        if error is not None and status != errors.CLIENT_GONE and not 400 <= status < 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=begun + int(seconds * 1e9))
        context = span.get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None

    def close(self, timeout: float) -> None:
        """Sends what has not been sent, and waits ``timeout`` seconds at the most."""
        if self._provider is None:
            return
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(timeout)


def attributes_of(record: RequestRecord, params: SamplingParams) -> dict[str, Any]:
    """What a span says: the names of OpenTelemetry's conventions for generative models, and those that vLLM gives to the same
    where they differ or the conventions have none. Times in seconds."""
    ended = record.ended or time.monotonic()
    model_time = None if record.queue_time is None else ended - record.arrival - record.queue_time
    found = {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.request.id": record.request_id,
        "gen_ai.response.id": record.request_id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.choice.count": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
        "gen_ai.request.presence_penalty": params.presence_penalty or None,
        "gen_ai.request.stream": record.stream,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.prompt_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.completion_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.num_sequences": params.num_branches * record.model_requests,
        "gen_ai.response.finish_reasons": tuple(record.finish_reasons) or None,
        "gen_ai.latency.time_in_queue": record.queue_time,
        "gen_ai.latency.time_to_first_token": record.time_to_first_token,
        "gen_ai.latency.time_in_model_prefill": record.prefill_time,
        "gen_ai.latency.time_in_model_decode": record.decode_time,
        "gen_ai.latency.time_in_model_inference": model_time,
        "gen_ai.latency.e2e": ended - record.arrival,
        "octavo.preemptions": record.preemptions,
        "octavo.client_gone": record.client_gone,
    }
    return {name: value for name, value in found.items() if value is not None}


def _error(status: int, record: RequestRecord | None) -> str | None:
    """A word for what went wrong; a stream that broke has long said 200."""
    if status >= 400:
        return str(status)
    return "error" if record is not None and "error" in record.finish_reasons else None


def _is_installed() -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(_EXPORTER) is not None
    except (ImportError, ValueError):
        return False


def _posted_to(endpoint: str) -> str:
    """``endpoint`` with the usual path if it has none. Raises ``ConfigError``."""
    wanted = "must be an http:// or https:// URL, as http://localhost:4318/v1/traces; gRPC is not spoken"
    parts = server_url(endpoint, flag="--otlp-traces-endpoint", wanted=wanted)
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"


def _resource() -> Any:
    """Who sends the spans; ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` go before what is said here."""
    from opentelemetry.sdk.resources import Resource

    told = Resource.create({"service.version": __version__})
    if str(told.attributes.get("service.name", "")).startswith("unknown_service"):
        told = told.merge(Resource({"service.name": "octavo"}))
    return told


class _Sender:
    """``exporter``, with a line in the log when spans begin to be lost, and one when they arrive again."""

    def __init__(self, exporter: "SpanExporter", log: Log, host: str) -> None:
        self._exporter = exporter
        self._log = log
        self._host = host
        self._lost = 0

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        result = self._exporter.export(spans)
        if result.name == "SUCCESS":
            if self._lost:
                self._log.info("traces", f"traces arrive at {self._host} again; {self._lost} were lost")
            self._lost = 0
            return result
        if not self._lost:
            self._log.warning("traces", f"traces cannot be delivered to {self._host} and are being lost; serving goes on")
        self._lost += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
