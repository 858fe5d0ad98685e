"""KV blocks between the order of PyTorch's kernels and that of the library (kernels.h)."""

import torch
from torch import Tensor

PAGE_TOKENS = 32


def to_library(cache: Tensor) -> Tensor:
    """[blocks, 2, kv_heads, block_size, head_dim] -> the same tokens in the library's order, in the same shape."""
    num_blocks, _, num_heads, block_size, head_dim = cache.shape
    pages = cache.view(num_blocks, 2, num_heads, block_size // PAGE_TOKENS, PAGE_TOKENS, head_dim)
    keys, values = pages.permute(1, 0, 3, 2, 4, 5)  # each [blocks, pages, heads, tokens, dim]
    shape = keys.shape[:3]
    keys = keys.reshape(*shape, PAGE_TOKENS // 16, 16, head_dim // 2, 2).transpose(-3, -2)
    values = values.reshape(*shape, PAGE_TOKENS // 2, 2, head_dim).transpose(-2, -1)
    both = torch.stack((keys.reshape(*shape, -1), values.reshape(*shape, -1)), dim=-2)
    return both.reshape(cache.shape).contiguous()
