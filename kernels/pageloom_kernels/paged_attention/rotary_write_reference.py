"""RoPE and the KV write in plain PyTorch: the CPU path, and the oracle of the kernel."""

from functools import lru_cache

import torch
from torch import Tensor

from pageloom_kernels.paged_attention.batch import AttentionBatch


def rotary_write_kv(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, kv_cache: Tensor, batch: AttentionBatch
) -> Tensor:
    num_heads = query.shape[1]
    rotated = _rotate(torch.cat((query, key), dim=1), *_rotation(batch, cos, sin))
    tokens, rows = _destination(batch, kv_cache.shape)
    written = torch.cat((rotated[:, num_heads:], value), dim=1)  # [tokens, 2 * num_kv_heads, head_dim]
    if tokens is not None:
        written = written.index_select(0, tokens)
    kv_cache.view(-1, kv_cache.shape[4]).index_copy_(0, rows, written.view(-1, kv_cache.shape[4]))
    return rotated[:, :num_heads]


def _rotate(states: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    upcast = states.float()
    swapped: Tensor = upcast.roll(states.shape[-1] // 2, -1)
    return (upcast * cos).addcmul_(swapped, signed_sin).to(states.dtype)


@lru_cache(maxsize=2)
def _rotation(batch: AttentionBatch, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of each token for both halves of a head, [tokens, 1, head_dim]; the first half takes -sin."""
    token_cos, token_sin = cos[batch.positions], sin[batch.positions]
    return torch.cat((token_cos, token_cos), dim=-1)[:, None], torch.cat((-token_sin, token_sin), dim=-1)[:, None]


@lru_cache(maxsize=2)
def _destination(batch: AttentionBatch, cache_shape: torch.Size) -> tuple[Tensor | None, Tensor]:
    """The tokens that are kept (None: all), and the cache's rows of head_dim for their keys' and values' heads."""
    _, _, num_kv_heads, block_size, _ = cache_shape
    kept = batch.slot_mapping >= 0
    tokens = None if bool(kept.all()) else kept.nonzero().flatten()
    slots = batch.slot_mapping[kept][:, None]
    heads = torch.arange(2 * num_kv_heads, device=slots.device)
    rows = (slots // block_size * (2 * num_kv_heads) + heads) * block_size + slots % block_size
    return tokens, rows.flatten()
