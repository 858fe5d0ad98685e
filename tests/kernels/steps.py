"""Random steps over a paged cache, and what attention over them must give: dense, in fp64, one query at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pageloom_kernels import AttentionBatch

NUM_SPARE_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`sequences` as (query length, length of the context with it), decodes first; blocks in random order."""

    sequences: tuple[tuple[int, int], ...]
    query: Tensor  # [tokens, num_heads, head_dim]
    key: Tensor  # [tokens, num_kv_heads, head_dim], this step's
    value: Tensor
    kv_cache: Tensor  # NaN wherever no sequence has a token
    batch: AttentionBatch
    scale: float


def make_step(
    sequences,
    *,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    block_size=16,
    dtype=torch.float32,
    seed=0,
) -> Step:
    random = torch.Generator().manual_seed(seed)
    num_blocks = [-(-seq_len // block_size) for _, seq_len in sequences]
    free = torch.randperm(sum(num_blocks) + NUM_SPARE_BLOCKS, generator=random).tolist()
    block_tables = torch.zeros(len(sequences), max(1, *num_blocks), dtype=torch.int32)
    kv_cache = torch.full((len(free), 2, num_kv_heads, block_size, head_dim), torch.nan, dtype=dtype)
    positions: list[int] = []
    slots: list[int] = []
    for i, (query_len, seq_len) in enumerate(sequences):
        block_tables[i, : num_blocks[i]] = torch.tensor([free.pop() for _ in range(num_blocks[i])])
        for position in range(seq_len):
            block_id = int(block_tables[i, position // block_size])
            kv_cache[block_id, :, :, position % block_size] = _normal((2, num_kv_heads, head_dim), random, dtype)
            if position >= seq_len - query_len:
                slots.append(block_id * block_size + position % block_size)
        positions += range(max(0, seq_len - query_len), max(seq_len, query_len))
        slots += [-1] * (query_len - seq_len)  # padding
    query_lens = [query_len for query_len, _ in sequences]
    fused = _normal((sum(query_lens), num_heads + 2 * num_kv_heads, head_dim), random, dtype)
    query, key, value = fused.tensor_split((num_heads, num_heads + num_kv_heads), dim=1)
    return Step(
        sequences=tuple(sequences),
        query=query,
        key=key,
        value=value,
        kv_cache=kv_cache,
        batch=AttentionBatch(
            block_tables=block_tables,
            seq_lens=torch.tensor([seq_len for _, seq_len in sequences], dtype=torch.int32),
            query_start=torch.tensor([0, *query_lens]).cumsum(0).int(),
            num_decodes=next((i for i, n in enumerate(query_lens) if n != 1), len(sequences)),
            max_query_len=max(query_lens),
            max_seq_len=max(seq_len for _, seq_len in sequences),
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slots),
        ),
        scale=head_dim**-0.5,
    )


def dense_attention(step: Step) -> Tensor:
    """What `paged_attention` must return for the step, [tokens, num_heads, head_dim] fp64."""
    num_heads, num_kv_heads = step.query.shape[1], step.kv_cache.shape[2]
    outputs = []
    for i, (query_len, seq_len) in enumerate(step.sequences):
        first = int(step.batch.query_start[i])
        query = step.query[first : first + query_len].double()
        key, value = _contiguous(step, i, seq_len).repeat_interleave(num_heads // num_kv_heads, dim=1)
        visible = torch.arange(seq_len) <= torch.arange(seq_len - query_len, seq_len)[:, None]
        scores = torch.einsum("qhd,hld->hql", query, key) * step.scale
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hql,hld->qhd", weights, value))
    return torch.cat(outputs)


def dense_rotation(states: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """NeoX rotation in fp64: dimension i turns against dimension i + head_dim / 2."""
    first, second = states.double().tensor_split(2, dim=-1)
    token_cos, token_sin = cos[positions, None].double(), sin[positions, None].double()
    return torch.cat((first * token_cos - second * token_sin, second * token_cos + first * token_sin), dim=-1)


def rotation_tables(max_position: int, head_dim: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(max_position)[:, None] * 10000.0 ** (-torch.arange(head_dim // 2) / (head_dim // 2))
    return angles.cos(), angles.sin()


def _contiguous(step: Step, i: int, seq_len: int) -> Tensor:
    """K and V of a sequence, [2, kv_heads, seq_len, dim] fp64."""
    block_size = step.kv_cache.shape[3]
    slots = [(int(step.batch.block_tables[i, p // block_size]), p % block_size) for p in range(seq_len)]
    empty = torch.empty(0, *step.kv_cache.shape[1:3], step.kv_cache.shape[4])
    tokens = torch.stack([step.kv_cache[b, :, :, o] for b, o in slots]) if slots else empty
    return tokens.double().permute(1, 2, 0, 3)


def _normal(shape: tuple[int, ...], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=random).to(dtype)
