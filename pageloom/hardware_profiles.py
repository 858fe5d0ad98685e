"""What are a GPU's and a model's figures? The tables behind `roofline.py`."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator. Memory in bytes, bandwidths in bytes/s, `flops` dense bfloat16 in FLOP/s, from data sheets.

    The efficiencies say what part of those good kernels reach: copying, large matrix products, and the attention of
    decodes (of the bandwidth) and of prefills (of the FLOP/s). `link_bandwidth` is that of one direction of
    one GPU's link to its peers, 0 if it has none; `link_latency_s` that of one all-reduce. `step_overhead_s` is what
    every step costs beside its kernels.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    flops: float
    link_bandwidth: float = 0.0
    link_latency_s: float = 0.0
    step_overhead_s: float = 0.0005
    copy_efficiency: float = 0.9
    matmul_efficiency: float = 0.8
    decode_attention_efficiency: float = 0.75
    prefill_attention_efficiency: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """The shape of a decoder-only transformer, in bfloat16; biases and norms (below 0.1% of the weights) are left out.

    `gated` MLPs have three matrices, others two; `tied` models use their embedding table as LM head.
    `num_positions` counts a learned position table's rows, 0 if positions are rotated in.
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    gated: bool = True
    tied: bool = False
    num_positions: int = 0
    dtype_bytes: int = 2

    @property
    def num_linear_params(self) -> int:
        """Parameters that every token is multiplied with."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        mlp = (3 if self.gated else 2) * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + mlp)

    @property
    def num_head_params(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def weights_bytes(self) -> int:
        tables = (1 if self.tied else 2) * self.num_head_params + self.num_positions * self.hidden_size
        return (self.num_linear_params + tables) * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes


# NVIDIA data sheets of H200 SXM, H100 SXM, A100 SXM (80 and 40 GB) and L4, without sparsity. An H200 was seen to copy
# at 0.9 and to multiply large matrices at 0.8 of them; decode attention of FlashInfer and FlashAttention-3 reaches 0.66
# to 0.83 of the bandwidth, prefill of FlashAttention-3 0.43 to 0.62 of the FLOP/s (its README; 1k to 16k tokens,
# heads of 128). The latency of an all-reduce is an estimate for one-shot kernels inside a host.
_GPUS = (
    Gpu(
        name="h200", memory_bytes=141 * 10**9, bandwidth=4.8e12, flops=989e12,
        link_bandwidth=450e9, link_latency_s=8e-6,
    ),
    Gpu(
        name="h100", memory_bytes=80 * _GIB, bandwidth=3.35e12, flops=989e12,
        link_bandwidth=450e9, link_latency_s=8e-6,
    ),
    Gpu(
        name="a100-80gb", memory_bytes=80 * _GIB, bandwidth=2.039e12, flops=312e12,
        link_bandwidth=300e9, link_latency_s=10e-6,
    ),
    Gpu(
        name="a100-40gb", memory_bytes=40 * _GIB, bandwidth=1.555e12, flops=312e12,
        link_bandwidth=300e9, link_latency_s=10e-6,
    ),
    # Without NVLink: PCIe 4.0 x16.
    Gpu(name="l4", memory_bytes=24 * _GIB, bandwidth=300e9, flops=121e12, link_bandwidth=32e9, link_latency_s=30e-6),
    # Two cores of an AMD EPYC (Zen 4, AVX-512 BF16) with 24 GiB: what they were measured at, so nothing is taken off.
    Gpu(
        name="cpu-2core", memory_bytes=24 * _GIB, bandwidth=31e9, flops=440e9, step_overhead_s=0.001,
        copy_efficiency=1.0, matmul_efficiency=1.0, decode_attention_efficiency=1.0, prefill_attention_efficiency=1.0,
    ),
)  # fmt: skip

# The config.json of each model on the Hugging Face hub; OPT-175B from Zhang et al. 2022, table 1.
_MODELS = (
    ModelProfile(
        name="llama-3-8b", num_layers=32, hidden_size=4096, intermediate_size=14336, num_heads=32, num_kv_heads=8,
        head_dim=128, vocab_size=128256, max_model_len=8192,
    ),
    ModelProfile(
        name="llama-3-70b", num_layers=80, hidden_size=8192, intermediate_size=28672, num_heads=64, num_kv_heads=8,
        head_dim=128, vocab_size=128256, max_model_len=8192,
    ),
    ModelProfile(
        name="llama-3.1-8b", num_layers=32, hidden_size=4096, intermediate_size=14336, num_heads=32, num_kv_heads=8,
        head_dim=128, vocab_size=128256, max_model_len=131072,
    ),
    ModelProfile(
        name="llama-3.1-70b", num_layers=80, hidden_size=8192, intermediate_size=28672, num_heads=64, num_kv_heads=8,
        head_dim=128, vocab_size=128256, max_model_len=131072,
    ),
    ModelProfile(
        name="qwen2.5-7b", num_layers=28, hidden_size=3584, intermediate_size=18944, num_heads=28, num_kv_heads=4,
        head_dim=128, vocab_size=152064, max_model_len=32768,
    ),
    ModelProfile(
        name="mistral-7b", num_layers=32, hidden_size=4096, intermediate_size=14336, num_heads=32, num_kv_heads=8,
        head_dim=128, vocab_size=32768, max_model_len=32768,
    ),
    ModelProfile(
        name="opt-13b", num_layers=40, hidden_size=5120, intermediate_size=20480, num_heads=40, num_kv_heads=40,
        head_dim=128, vocab_size=50272, max_model_len=2048, gated=False, tied=True, num_positions=2050,
    ),
    ModelProfile(
        name="opt-66b", num_layers=64, hidden_size=9216, intermediate_size=36864, num_heads=72, num_kv_heads=72,
        head_dim=128, vocab_size=50272, max_model_len=2048, gated=False, tied=True, num_positions=2050,
    ),
    ModelProfile(
        name="opt-175b", num_layers=96, hidden_size=12288, intermediate_size=49152, num_heads=96, num_kv_heads=96,
        head_dim=128, vocab_size=50272, max_model_len=2048, gated=False, tied=True, num_positions=2050,
    ),
    ModelProfile(
        name="smollm2-135m", num_layers=30, hidden_size=576, intermediate_size=1536, num_heads=9, num_kv_heads=3,
        head_dim=64, vocab_size=49152, max_model_len=8192, tied=True,
    ),
)  # fmt: skip

GPUS = {gpu.name: gpu for gpu in _GPUS}
MODELS = {model.name: model for model in _MODELS}
