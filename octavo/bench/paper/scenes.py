"""The situations in which policies are compared: which machine, how much KV memory, which lengths.

The real ones are scaled down so that a run takes seconds, and so that memory and not arithmetic is what is scarce, as on the
paper's devices: ShareGPT and chat at a quarter of their lengths in a pool of one and a half sequences of the longest length,
translations at their true lengths in a pool of one and a half sequences of theirs. On two cores a batch of 16 gives one and a
half times the tokens of a batch of 8, on an A100 nearly twice: in a pool of three such sequences, where Orca (Oracle) has six
at once, paging gains less.
"""

import msgspec

from octavo.bench.paper.bench import Bench
from octavo.bench.paper.workload import HERE, Serve
from octavo.build_simulated import preset_named
from octavo.config import KVAllocation

PRESET_TITLES = {
    HERE: "this machine",
    "opt-13b": "OPT-13B, simulated",
    "opt-66b": "OPT-66B, simulated",
    "opt-175b": "OPT-175B, simulated",
    "llama-13b": "LLaMA-13B, simulated",
}
SMALL_LEN = 512
SMALL_POOL = SMALL_LEN * 3 // 2
LONG_LEN = 2048
LONG_POOL = 3 * LONG_LEN
SHRINK = 4
"""Of ShareGPT's and chat's lengths in the small pool: 2,048 tokens become 512."""

SHRUNK = ("sharegpt", "chatbot")
TRANSLATIONS = ("translation-80", "translation-341")
BRANCHED_POOLS = {"sharegpt": 8 * LONG_LEN, "alpaca-text": 8 * SMALL_LEN}
"""For requests of up to six sequences: what one of the longest takes by reservation, and a little more."""


def scene(
    bench: Bench,
    machine: str,
    trace: str,
    *,
    policy: KVAllocation = "paged",
    seed: int = 0,
    num_requests: int | None = None,
) -> Serve:
    """A run of all requests at once; ``num_requests`` by default so many that the engine is full most of the time."""
    if machine != HERE:
        preset = preset_named(machine)
        return Serve(
            machine=machine,
            trace=trace,
            policy=policy,
            seed=seed,
            num_requests=num_requests or (200 if bench.quick else 600) * (1 if trace in SHRUNK else 3),
            kv_slots=preset.kv_slots,
            max_model_len=preset.max_model_len,
            max_num_seqs=256,
        )
    return Serve(
        machine=machine,
        trace=trace,
        policy=policy,
        seed=seed,
        num_requests=num_requests or _enough(trace, policy, quick=bench.quick),
        kv_slots=SHRINK * SMALL_POOL if trace in TRANSLATIONS else SMALL_POOL,
        max_model_len=LONG_LEN if trace in TRANSLATIONS else SMALL_LEN,
        max_num_seqs=128,
        shrink=SHRINK if trace in SHRUNK else 1,
    )


def _enough(trace: str, policy: KVAllocation, *, quick: bool) -> int:
    """Requests that keep an engine on this machine full for some time, by how many it has at once and how long they are."""
    if trace in TRANSLATIONS:
        return (72 if policy == "paged" else 24) * (1 if quick else 3)
    slow = policy in ("orca-max", "fastertransformer")
    if quick:
        return 8 if slow or trace == "chatbot" else 24
    count = 16 if slow else 48 if trace == "chatbot" else 64
    return count if trace in SHRUNK else 2 * count


def long_scene(bench: Bench, *, policy: KVAllocation = "paged", block_size: int = 16) -> Serve:
    """ShareGPT at its true lengths on this machine, all requests at once; in quick runs at a quarter of them."""
    if bench.quick:
        quick = scene(bench, HERE, "sharegpt", policy=policy)
        return msgspec.structs.replace(quick, block_size=block_size)
    counts = {"paged": 48, "orca-oracle": 48, "orca-pow2": 40, "orca-max": 24, "fastertransformer": 18}
    return Serve(
        machine=HERE,
        trace="sharegpt",
        policy=policy,
        num_requests=counts[policy],
        kv_slots=LONG_POOL,
        max_model_len=LONG_LEN,
        max_num_seqs=128,
        block_size=block_size,
    )
