"""What this machine can do at most: bytes read and numbers multiplied in a second, by all threads of a backend at once.

Measured natively, each the best of many short runs; other programs can only make a figure lower. Repeat and take the larger.
"""

from octavo.backends.cpu.topology import cores_to_pin


def read_bandwidth(isa: str, num_threads: int, *, num_bytes: int, seconds: float) -> float:
    """Bytes a second, read again and again from a memory of ``num_bytes``: of a cache, if they fit."""
    from octavo import _native

    return _native.read_bandwidth(
        isa, num_threads, cores=cores_to_pin(num_threads), num_bytes=max(num_bytes, num_threads * 8192), seconds=seconds
    )


def peak(isa: str, num_threads: int, *, arithmetic: str, seconds: float) -> tuple[str, float]:
    """(The instruction that ``linear`` multiplies with, operations a second) for arithmetic "fp32", "bf16" or "int8"."""
    from octavo import _native

    cores = cores_to_pin(num_threads)
    return _native.peak(isa, num_threads, cores=cores, arithmetic=arithmetic, seconds=seconds)
