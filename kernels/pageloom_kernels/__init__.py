"""The operators of the model's hot path: paged attention, RoPE with KV write, RMSNorm, SiLU·mul."""

from pageloom_kernels.hidden_taps import HiddenTaps
from pageloom_kernels.paged_attention import AttentionBatch, paged_attention, rotary_write_kv
from pageloom_kernels.rms_norm import rms_norm
from pageloom_kernels.silu_mul import silu_mul

__all__ = ["AttentionBatch", "HiddenTaps", "paged_attention", "rms_norm", "rotary_write_kv", "silu_mul"]
