"""Paged attention and the KV write in plain PyTorch: the CPU path, and the oracle of the kernels."""

import torch
from torch import Tensor
from torch.nn import functional

from pageloom_kernels.paged_attention.batch import AttentionBatch


def paged_attention(query: Tensor, kv_cache: Tensor, batch: AttentionBatch, *, scale: float) -> Tensor:
    output = torch.empty_like(query)
    seq_lens = batch.seq_lens.tolist()
    starts = batch.query_start.tolist()
    for i, seq_len in enumerate(seq_lens):
        rows = slice(starts[i], starts[i + 1])
        output[rows] = _extend(query[rows], kv_cache, batch.block_tables[i], seq_len, scale)
    return output


def _extend(query: Tensor, kv_cache: Tensor, block_table: Tensor, seq_len: int, scale: float) -> Tensor:
    num_kv_heads, block_size, head_dim = kv_cache.shape[2:]
    num_blocks = -(-seq_len // block_size)
    gathered = kv_cache[block_table[:num_blocks].long()]  # [blocks, 2, kv_heads, block_size, head_dim]
    key, value = gathered.permute(1, 2, 0, 3, 4).reshape(2, num_kv_heads, -1, head_dim)[:, :, :seq_len]
    q = query.reshape(query.shape[0], num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    group = q.shape[1]
    mask = torch.ones(query.shape[0], seq_len, dtype=torch.bool).tril(seq_len - query.shape[0])
    out = functional.scaled_dot_product_attention(
        q, key[:, None].expand(-1, group, -1, -1), value[:, None].expand(-1, group, -1, -1), attn_mask=mask, scale=scale
    )
    return out.permute(2, 0, 1, 3).reshape(query.shape)


def rotary_write_kv(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, kv_cache: Tensor, batch: AttentionBatch
) -> Tensor:
    block_size = kv_cache.shape[3]
    kept = batch.slot_mapping >= 0
    slots = batch.slot_mapping[kept]
    blocks, offsets = slots // block_size, slots % block_size
    c, s = cos[batch.positions][:, None], sin[batch.positions][:, None]
    kv_cache[blocks, 0, :, offsets] = _rotate(key, c, s)[kept]
    kv_cache[blocks, 1, :, offsets] = value[kept]
    return _rotate(query, c, s)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
