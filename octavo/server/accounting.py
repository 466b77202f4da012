"""What each request cost and how it went, and the sums of it over all requests.

``RequestRecord`` is filled while a request runs and read once, for its log line and for the histograms. Everything here is
numbers and fixed words: nothing that a client wrote becomes a label.
"""

import time
from typing import Any

import msgspec

from octavo.metrics import Histogram

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
QUEUE_BUCKETS = (0.3, 1.0, 5.0, 15.0, 60.0)
TOKEN_BUCKETS = (1, 5, 10, 50, 100, 500, 1000, 5000, 10000, 50000, 100000)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class RequestRecord(msgspec.Struct, kw_only=True):
    """One generating request. Times are on the monotonic clock. ``branches`` are the outputs that ``output_tokens`` are of, for
    each prompt; ``longest_output`` is that of one which the client got."""

    request_id: str
    arrival: float
    model: str = ""
    operation: str = ""
    stream: bool = False
    n: int = 1
    branches: int = 1
    model_requests: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    longest_output: int = 0
    first_token: float | None = None
    ended: float | None = None
    queue_time: float | None = None
    preemptions: int = 0
    swaps: int = 0
    blocks_allocated: int = 0
    blocks_shared: int = 0
    copy_on_writes: int = 0
    finish_reasons: list[str] = []
    client_gone: bool = False

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def prefill_time(self) -> float | None:
        """From the first step to the first token."""
        ttft = self.time_to_first_token
        return None if ttft is None or self.queue_time is None else max(0.0, ttft - self.queue_time)

    @property
    def decode_time(self) -> float | None:
        """From the first token to the end."""
        return None if self.first_token is None or self.ended is None else self.ended - self.first_token

    @property
    def time_per_token(self) -> float | None:
        """Seconds between tokens of one branch, on average; None for a single token."""
        per_branch = self.output_tokens / (self.branches * self.model_requests)
        return None if self.decode_time is None or per_branch <= 1 else self.decode_time / (per_branch - 1)

    @property
    def outcome(self) -> str | None:
        """The reasons for which its choices ended, None when none has."""
        return ",".join(sorted(set(self.finish_reasons))) or None

    def log_fields(self) -> dict[str, Any]:
        """The fields of its log line, milliseconds for times."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "n": self.n,
            "stream": self.stream,
            "queue_ms": _milliseconds(self.queue_time),
            "ttft_ms": _milliseconds(self.time_to_first_token),
            "itl_ms": _milliseconds(self.time_per_token),
            "preemptions": self.preemptions,
            "blocks_allocated": self.blocks_allocated,
            "blocks_shared": self.blocks_shared,
            "copy_on_writes": self.copy_on_writes,
            "finish_reason": self.outcome,
            "client_gone": self.client_gone,
        }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


class ServerMetrics:
    """Sums over all requests of this server, kept where the requests are: in the API process."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(TTFT_BUCKETS)
        self.inter_token_latency = Histogram(ITL_BUCKETS)
        self.time_per_output_token = Histogram(ITL_BUCKETS)
        self.e2e_latency = Histogram(LATENCY_BUCKETS)
        self.queue_time = Histogram(QUEUE_BUCKETS)
        self.prefill_time = Histogram(QUEUE_BUCKETS)
        self.decode_time = Histogram(QUEUE_BUCKETS)
        self.prompt_tokens = Histogram(TOKEN_BUCKETS)
        self.generation_tokens = Histogram(TOKEN_BUCKETS)
        self.longest_output = Histogram(TOKEN_BUCKETS)
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.responses: dict[int, int] = {}
        self.clients_gone = 0
        self.blocks_allocated = 0
        self.blocks_shared = 0
        self.copy_on_writes = 0
        self.started_at = time.time()

    def response(self, status: int) -> None:
        self.responses[status] = self.responses.get(status, 0) + 1

    def observe(self, record: RequestRecord) -> None:
        """Counts a request that has ended, however it did."""
        ended = record.ended or time.monotonic()
        self.prompt_tokens.observe(record.prompt_tokens)
        self.generation_tokens.observe(record.output_tokens)
        self.longest_output.observe(record.longest_output)
        self.e2e_latency.observe(ended - record.arrival)
        self.clients_gone += record.client_gone
        self.blocks_allocated += record.blocks_allocated
        self.blocks_shared += record.blocks_shared
        self.copy_on_writes += record.copy_on_writes
        for reason in record.finish_reasons:
            self.finished[reason] = self.finished.get(reason, 0) + 1
        self.finished["abort"] += max(0, record.n * record.model_requests - len(record.finish_reasons))
        for histogram, seconds in (
            (self.queue_time, record.queue_time),
            (self.prefill_time, record.prefill_time),
            (self.decode_time, record.decode_time),
            (self.time_to_first_token, record.time_to_first_token),
            (self.time_per_output_token, record.time_per_token),
        ):
            if seconds is not None:
                histogram.observe(seconds)
