"""Attention over paged KV blocks, and the write of new keys and values into them."""

from torch import Tensor

from pageloom_kernels.paged_attention import reference
from pageloom_kernels.paged_attention.batch import AttentionBatch

__all__ = ["AttentionBatch", "paged_attention", "rotary_write_kv"]


def paged_attention(query: Tensor, kv_cache: Tensor, batch: AttentionBatch, *, scale: float) -> Tensor:
    return reference.paged_attention(query, kv_cache, batch, scale=scale)


def rotary_write_kv(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, kv_cache: Tensor, batch: AttentionBatch
) -> Tensor:
    return reference.rotary_write_kv(query, key, value, cos, sin, kv_cache, batch)
