import msgspec
import pytest

from octavo.server.startup import startup_lines
from tests.server.test_supervisor import READY


@pytest.mark.parametrize(
    ("types", "weight_format", "bits", "said"),
    [
        ((), "plain", 16, ""),
        ((), "int8", 8, ""),
        (("Q4_1", "Q8_0"), "stored", 8, "Q4_1, Q8_0, computed in integers (stored), activations in 8 bits"),
        (("Q4_1",), "stored", 16, "Q4_1, computed in integers (stored), activations in 16 bits (--activation-bits 8: "),
        (("Q4_1", "Q8_0"), "plain", 16, "Q4_1, Q8_0, dequantized to float32: --quantization stored "),
    ],
)
def test_a_start_says_what_becomes_of_integers(types: tuple[str, ...], weight_format: str, bits: int, said: str) -> None:
    model = msgspec.structs.replace(READY.model_config, integer_types=types)
    ready = msgspec.structs.replace(READY, model_config=model, weight_format=weight_format, activation_bits=bits)
    lines = startup_lines("tiny", ready, process_start=0.0, spawned_at=0.0, now=0.0)
    found = "".join(line.removeprefix("weights ") for line in lines if line.startswith("weights "))
    assert found.startswith(said) if said.endswith(" ") else found == said


@pytest.mark.parametrize(
    ("backend", "seconds", "told"),
    [("cpu, avx2, 2 threads", 9.0, True), ("cpu, avx2, 2 threads", 0.4, False), ("reference", 9.0, False)],
)
def test_who_waits_for_long_is_told_how_not_to(backend: str, seconds: float, told: bool) -> None:
    ready = msgspec.structs.replace(READY, backend=backend, phases={"load weights": seconds})
    lines = startup_lines("tiny", ready, process_start=0.0, spawned_at=0.0, now=0.0)
    assert any(line.startswith("`octavo pack`") for line in lines) is told
