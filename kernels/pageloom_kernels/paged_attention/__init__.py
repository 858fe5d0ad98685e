"""Attention over paged KV blocks, and the write of new keys and values into them."""

import torch
from torch import Tensor

from pageloom_kernels.dispatch import operators
from pageloom_kernels.paged_attention.batch import AttentionBatch

__all__ = ["AttentionBatch", "paged_attention", "rotary_write_kv"]


def paged_attention(query: Tensor, kv_cache: Tensor, batch: AttentionBatch, *, scale: float) -> Tensor:
    """Causal attention of the step's tokens over their sequences' blocks.

    `query` is [tokens, num_heads, head_dim] and may be strided, `kv_cache` is the contiguous
    [num_blocks, 2, num_kv_heads, block_size, head_dim] of one layer, keys first, with this step's tokens already in
    it. Query heads share KV heads in consecutive groups. A token sees the positions up to its own. Positions beyond
    `seq_lens` are never read into a result, whatever their blocks hold; a sequence of length 0 gives zeros.

    Raises:
        ValueError: query and cache disagree, or the cache is not contiguous.
    """
    _check_cache(kv_cache)
    _check_heads("query", query, kv_cache)
    if query.shape[1] % kv_cache.shape[2]:
        raise ValueError(f"{query.shape[1]} query heads cannot share {kv_cache.shape[2]} KV heads evenly")
    return operators(query.device).paged_attention(query, kv_cache, batch, scale=scale)


def rotary_write_kv(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, kv_cache: Tensor, batch: AttentionBatch
) -> Tensor:
    """Rotate queries and keys by their positions, write keys and values into their slots, return the queries.

    `query` is [tokens, num_heads, head_dim], `key` and `value` are [tokens, num_kv_heads, head_dim]; all may be
    views of one fused projection. `cos` and `sin` are fp32 [max_position, head_dim // 2] and rotate the two halves of
    a head against each other (the NeoX layout). The rotation is fp32 and rounded once. Nothing but the slots of
    `batch.slot_mapping` is written.

    Raises:
        ValueError: an argument does not fit the cache, or the cache is not contiguous.
    """
    _check_cache(kv_cache)
    for name, states in (("query", query), ("key", key), ("value", value)):
        _check_heads(name, states, kv_cache)
    if key.shape[1] != kv_cache.shape[2] or key.shape != value.shape:
        raise ValueError(
            f"key and value must both have the cache's {kv_cache.shape[2]} heads, "
            f"got shapes {tuple(key.shape)} and {tuple(value.shape)}"
        )
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dim() != 2 or table.shape[1] * 2 != query.shape[2] or table.dtype != torch.float32:
            raise ValueError(
                f"{name} must be float32 [max_position, {query.shape[2] // 2}], "
                f"got {table.dtype} of shape {tuple(table.shape)}"
            )
    return operators(query.device).rotary_write_kv(query, key, value, cos, sin, kv_cache, batch)


def _check_cache(kv_cache: Tensor) -> None:
    if kv_cache.dim() != 5 or kv_cache.shape[1] != 2 or not kv_cache.is_contiguous():
        raise ValueError(
            "kv_cache must be a contiguous [num_blocks, 2, num_kv_heads, block_size, head_dim], "
            f"got shape {tuple(kv_cache.shape)} with strides {kv_cache.stride()}"
        )


def _check_heads(name: str, states: Tensor, kv_cache: Tensor) -> None:
    if states.dim() != 3 or states.shape[2] != kv_cache.shape[4] or states.stride(2) != 1:
        raise ValueError(
            f"{name} must be [tokens, heads, {kv_cache.shape[4]}] with contiguous heads, "
            f"got shape {tuple(states.shape)} with strides {states.stride()}"
        )
    if states.dtype != kv_cache.dtype:
        raise ValueError(f"{name} must have the cache's dtype {kv_cache.dtype}, got {states.dtype}")
