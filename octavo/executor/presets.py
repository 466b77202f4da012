"""The machines of the PagedAttention paper (Kwon et al., SOSP 2023), as cost models.

Model shapes and limits of devices are public; the KV slots are the paper's. The efficiencies and overheads are one choice for
all presets, made once, reasons beside them, and none of them differs between memory policies.
"""

from dataclasses import dataclass

from octavo.executor.cost_model import Hardware, ModelShape, RooflineCost


@dataclass(frozen=True, slots=True)
class Preset:
    """A model on a machine. ``kv_slots`` tokens fit in its KV cache."""

    name: str
    description: str
    shape: ModelShape
    hardware: Hardware
    kv_slots: int
    vocab_size: int
    max_model_len: int = 2048

    @property
    def cost(self) -> RooflineCost:
        return RooflineCost(self.shape, self.hardware)

    def num_blocks(self, block_size: int) -> int:
        return self.kv_slots // block_size


def _a100(num_devices: int, memory_bandwidth: float, name: str) -> Hardware:
    """NVIDIA A100: 312 TFLOP/s in float16 with tensor cores, PCIe 4.0 x16, NVLink 3.

    Efficiencies and overheads of an engine of 2023 (PyTorch eager, scheduler and sampler in Python between steps):

    - 0.80 of the bandwidth for weights: matrix products of a few rows stream them at 75-90 % of the data sheet;
    - 0.60 for keys and values: many short gathers, by a kernel that the paper measures 20-26 % behind a contiguous one;
    - 0.50 of the peak for matrix products: prompts of some hundred tokens are far from the largest that a device can do;
    - 3 ms of host work a step and 0.23 ms more a sequence: planning, inputs, launching and drawing one by one, not overlapped;
    - 25 us for each of the two exchanges of a layer, the latency of a small all-reduce over NVLink.

    The cache is that of the data sheet: 40 MB, 5,120 bytes a clock at 1.41 GHz; 341 shared tokens of OPT-13B take 7 MB a layer.

    The host work and the efficiency for keys and values were set so that steps take as long as two of the paper's figures say
    by Little's law: 30.42 requests at once at 2 requests/s with 337.99 output tokens are 45 ms a step, 132.44 at 30 requests/s
    with 58.45 are 76 ms. What is simulated for the paged cache at these two points is therefore not independent of the paper.
    """
    return Hardware(
        name=name,
        num_devices=num_devices,
        memory_bandwidth=memory_bandwidth,
        peak_flops=312e12,
        host_bandwidth=32e9,
        link_bandwidth=300e9,
        weight_efficiency=0.80,
        kv_efficiency=0.60,
        flops_efficiency=0.50,
        copy_efficiency=0.75,
        step_overhead=3e-3,
        sequence_overhead=2.3e-4,
        reduction_latency=25e-6,
        cache_bytes=40e6,
        cache_bandwidth=5120 * 1.41e9,
    )


def _opt(name: str, *, num_layers: int, hidden_size: int) -> ModelShape:
    """OPT (Zhang et al. 2022): every head has its own keys and values, the inner size is four times the hidden one."""
    return ModelShape(
        name=name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        layer_parameters=12 * hidden_size**2 * num_layers,
        head_parameters=50272 * hidden_size,
        query_size=hidden_size,
        kv_size=hidden_size,
    )


_LLAMA_13B = ModelShape(
    name="LLaMA-13B",
    num_layers=40,
    hidden_size=5120,
    layer_parameters=(4 * 5120**2 + 3 * 5120 * 13824) * 40,
    head_parameters=32000 * 5120,
    query_size=5120,
    kv_size=5120,
)

_ONE_40GB = _a100(1, 1.555e12, "1 x A100 40 GB")

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "opt-13b",
            "OPT-13B on one A100 40 GB, 15.7 K KV slots",
            _opt("OPT-13B", num_layers=40, hidden_size=5120),
            _ONE_40GB,
            kv_slots=15_700,
            vocab_size=50272,
        ),
        Preset(
            "opt-66b",
            "OPT-66B on four A100 40 GB, 9.7 K KV slots",
            _opt("OPT-66B", num_layers=64, hidden_size=9216),
            _a100(4, 1.555e12, "4 x A100 40 GB"),
            kv_slots=9_700,
            vocab_size=50272,
        ),
        Preset(
            "opt-175b",
            "OPT-175B on eight A100 80 GB, 60.1 K KV slots",
            _opt("OPT-175B", num_layers=96, hidden_size=12288),
            _a100(8, 2.039e12, "8 x A100 80 GB"),
            kv_slots=60_100,
            vocab_size=50272,
        ),
        Preset(
            "llama-13b",
            "LLaMA-13B on one A100 40 GB; keys and values as large as OPT-13B's, so as many slots",
            _LLAMA_13B,
            _ONE_40GB,
            kv_slots=15_700,
            vocab_size=32000,
        ),
    )
}
"""Name -> preset."""
