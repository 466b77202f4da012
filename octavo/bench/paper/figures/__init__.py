"""One module a figure, and ``FIGURES``: all of them, in the paper's order."""

from octavo.bench.paper.figure import Figure
from octavo.bench.paper.figures.batched_requests import BatchedRequests
from octavo.bench.paper.figures.block_size import BlockSize
from octavo.bench.paper.figures.chatbot import CHATBOT
from octavo.bench.paper.figures.kernel_overhead import KernelOverhead
from octavo.bench.paper.figures.latency_rate import LatencyRate
from octavo.bench.paper.figures.memory_waste import MemoryWaste
from octavo.bench.paper.figures.sampling_and_beams import SamplingAndBeams
from octavo.bench.paper.figures.shared_prefix import SHARED_PREFIX
from octavo.bench.paper.figures.swap_or_recompute import SwapOrRecompute

FIGURES: tuple[Figure, ...] = (
    MemoryWaste(),
    LatencyRate(),
    BatchedRequests(),
    SamplingAndBeams(),
    SHARED_PREFIX,
    CHATBOT,
    KernelOverhead(),
    BlockSize(),
    SwapOrRecompute(),
)
