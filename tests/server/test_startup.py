import msgspec
import pytest

from octavo.server.startup import startup_lines
from tests.server.test_supervisor import READY


@pytest.mark.parametrize(
    ("types", "weight_format", "said"),
    [
        ((), "plain", []),
        ((), "int8", []),
        (("Q4_1", "Q8_0"), "stored", ["weights Q4_1, Q8_0, computed in integers (stored)"]),
        (("Q4_1", "Q8_0"), "plain", ["weights Q4_1, Q8_0, dequantized to float32: --quantization stored "]),
    ],
)
def test_a_start_says_what_becomes_of_integers(types: tuple[str, ...], weight_format: str, said: list[str]) -> None:
    model = msgspec.structs.replace(READY.model_config, integer_types=types)
    ready = msgspec.structs.replace(READY, model_config=model, weight_format=weight_format)
    lines = startup_lines("tiny", ready, process_start=0.0, spawned_at=0.0, now=0.0)
    found = [line for line in lines if line.startswith("weights ")]
    assert len(found) == len(said) and all(line.startswith(start) for line, start in zip(found, said, strict=True))
