"""The operators of the model's hot path: paged attention, RoPE with KV write, RMSNorm, SiLU·mul, experts."""

from pageloom_kernels.expert_mlp import expert_mlp
from pageloom_kernels.hidden_taps import HiddenTaps
from pageloom_kernels.paged_attention import AttentionBatch, paged_attention, rotary_write_kv
from pageloom_kernels.rms_norm import rms_norm
from pageloom_kernels.silu_mul import silu_mul

__all__ = [
    "AttentionBatch",
    "HiddenTaps",
    "expert_mlp",
    "paged_attention",
    "rms_norm",
    "rotary_write_kv",
    "silu_mul",
]
