"""The few lines that a start prints, and the account of where its time went."""

from octavo.server.wire import Ready

_SHOWN = 0.005
_LONG = 3.0
"""Seconds of loading after which it is said how they can be saved."""


def startup_lines(model: str, ready: Ready, *, process_start: float, spawned_at: float, now: float) -> list[str]:
    """Model, weights if they were integers, backend, blocks, and the start-up times. All times are on the monotonic clock."""
    facts = ready.model_config
    fit = (ready.num_device_blocks - ready.num_pinned_blocks) / -(-ready.max_model_len // ready.block_size)
    parts = _breakdown(ready, process_start=process_start, spawned_at=spawned_at, now=now)
    times = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items() if seconds >= _SHOWN)
    pinned = f", {ready.num_pinned_blocks} pinned" if ready.num_pinned_blocks else ""
    return [
        f"model {model}: {facts.architecture}, {facts.num_layers} layers, {ready.dtype}, context {ready.max_model_len}",
        *_of_integers(ready),
        f"backend {ready.backend} (instruction set {ready.isa})",
        f"# device blocks: {ready.num_device_blocks}{pinned}, # host blocks: {ready.num_host_blocks} of {ready.block_size} "
        f"tokens: {fit:.1f} requests of {ready.max_model_len} tokens fit at once",
        f"start-up {now - process_start:.2f} s: {times}",
        *_of_loading(ready),
    ]


def _of_integers(ready: Ready) -> list[str]:
    types = ", ".join(ready.model_config.integer_types)
    if not types:
        return []
    if ready.weight_format == "plain":
        return [f"weights {types}, dequantized to {ready.dtype}: --quantization stored keeps them as they are, in less memory"]
    faster = " (--activation-bits 8: faster, less exact)" if ready.activation_bits == 16 else ""
    activations = f"activations in {ready.activation_bits} bits{faster}"
    return [f"weights {types}, computed in integers ({ready.weight_format}), {activations}"]


def _of_loading(ready: Ready) -> list[str]:
    if ready.phases.get("load weights", 0.0) < _LONG or not ready.backend.startswith("cpu"):
        return []
    return ["`octavo pack`, once, with the same model and flags, keeps its weights packed: then they load in a few seconds"]


def _breakdown(ready: Ready, *, process_start: float, spawned_at: float, now: float) -> dict[str, float]:
    """Seconds of each part from the command to ready; they add up to the whole, because the rest is a part too.

    The engine process is what takes time; the API process starts beside it and shows only where it is the last to be ready.
    """
    parts = {"command line": spawned_at - process_start, "engine process": ready.started_at - spawned_at, **ready.phases}
    parts["rest"] = (now - process_start) - sum(parts.values())
    return parts
