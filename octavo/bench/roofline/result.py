"""What a roofline measurement found: plain records, in seconds, bytes and operations; written out as JSON."""

import msgspec


class OpResult(msgspec.Struct, frozen=True, kw_only=True):
    """All ops of one kind in a step. ``limit_seconds``: the sum of what each call takes at least, and ``share`` that over
    ``seconds``; ``bound``: what limits most of that, "memory", "cache", or an arithmetic."""

    kind: str
    calls: int
    seconds: float
    streamed_bytes: int
    activation_bytes: int
    flops: int
    limit_seconds: float
    share: float
    bound: str

    @property
    def bytes(self) -> int:
        return self.streamed_bytes + self.activation_bytes


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes beside its ops, nothing overlapping. ``sampler``: without its ops. ``worker``: building the batch and
    calling; negative where the engine runs ops faster than they were measured one by one."""

    scheduler: float
    commit: float
    sampler: float
    worker: float


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What lies above its limit, and by how much."""

    kind: str
    seconds: float
    share_of_step: float


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One step. ``ops_seconds``: of all ops, called one by one; ``step_seconds``: of the step as the engine runs it, planning
    and computing overlapping as configured; ``limit_seconds``: of all ops; ``share``: limit over step."""

    kind: str
    batch_size: int
    context_len: int
    streamed_bytes: int
    bandwidth: float
    ops: list[OpResult]
    ops_seconds: float
    outside: Outside
    step_seconds: float
    limit_seconds: float
    share: float
    largest_gain: Gain

    @property
    def title(self) -> str:
        if self.kind == "prefill":
            return f"prefill, {self.context_len} tokens"
        return f"decode, batch {self.batch_size}, context {self.context_len}"


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    instruction: str
    flops_per_s: float


class RooflineResult(msgspec.Struct, frozen=True, kw_only=True):
    """``bandwidth``: bytes read from, as text -> bytes a second; ``slowest_bandwidth``: of the worst round. ``peaks``: by
    arithmetic."""

    model: str
    weights: str
    backend: str
    bandwidth: dict[str, float]
    slowest_bandwidth: dict[str, float]
    peaks: dict[str, Peak]
    steps: list[StepResult]
