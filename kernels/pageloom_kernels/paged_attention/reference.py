"""Paged attention in plain PyTorch: the CPU path, and the oracle of the kernels.

Blocks are gathered so that each KV head's tokens become contiguous, then torch's fused attention runs over them.
Decodes are taken many sequences at a time, extends one sequence at a time.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from pageloom_kernels.paged_attention.batch import AttentionBatch

# Gathered K and V of one chunk of decodes. They are written once and read once: small enough to stay in the cache.
_CHUNK_BYTES = 4 << 20
# Query tokens per call in an extend. Each call stops at its last token's position, so smaller tiles skip more of the
# masked half and larger ones amortize the call.
_QUERY_TILE = 256


def paged_attention(query: Tensor, kv_cache: Tensor, batch: AttentionBatch, *, scale: float) -> Tensor:
    plan = _plan(batch, kv_cache.shape, kv_cache.dtype)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if batch.num_decodes:
        output[: batch.num_decodes] = _decode(query[: batch.num_decodes], kv_cache, plan, scale)
    for extend in plan.extends:
        _extend(query[extend.rows], kv_cache, extend, plan.causal_mask, scale, output[extend.rows])
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Decodes attended to in one call, padded to the longest of them."""

    members: slice  # of the decodes in order of length
    kv_rows: Tensor  # [2 * kv_heads * seqs * blocks] rows of `_kv_rows(kv_cache)`
    padding_rows: Tensor  # rows of head_dim in the gathered tensor that hold no token of their sequence
    mask: Tensor  # [seqs, 1, 1, blocks * block_size], 0 or -inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extend:
    """One sequence with several query tokens."""

    rows: slice
    seq_len: int
    kv_rows: Tensor  # [2 * kv_heads * blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What every layer of a step derives from its batch alike."""

    order: Tensor  # [decodes] by falling length, so that the sequences of a chunk need little padding
    inverse: Tensor  # [decodes], undoes `order`
    chunks: tuple[_Chunk, ...]
    extends: tuple[_Extend, ...]
    causal_mask: Tensor  # of the extends: see `_causal_mask`


@lru_cache(maxsize=2)
def _plan(batch: AttentionBatch, cache_shape: torch.Size, dtype: torch.dtype) -> _Plan:
    seq_lens = batch.seq_lens.tolist()
    starts = batch.query_start.tolist()
    order = torch.argsort(batch.seq_lens[: batch.num_decodes], descending=True, stable=True)
    extends = tuple(
        _Extend(
            rows=slice(starts[i], starts[i + 1]),
            seq_len=seq_lens[i],
            kv_rows=_rows_of_blocks(batch.block_tables[i : i + 1], seq_lens[i], cache_shape),
        )
        for i in range(batch.num_decodes, len(seq_lens))
    )
    return _Plan(
        order=order,
        inverse=torch.argsort(order),
        chunks=_chunks(batch.block_tables[order], batch.seq_lens[order], cache_shape, dtype),
        extends=extends,
        causal_mask=_causal_mask(
            min(_QUERY_TILE, batch.max_query_len),
            max((extend.seq_len for extend in extends), default=0),
            dtype,
            batch.seq_lens.device,
        ),
    )


def _chunks(block_tables: Tensor, seq_lens: Tensor, cache_shape: torch.Size, dtype: torch.dtype) -> tuple[_Chunk, ...]:
    _, _, num_kv_heads, block_size, head_dim = cache_shape
    chunk_tokens = _CHUNK_BYTES // (2 * num_kv_heads * head_dim * dtype.itemsize)
    lengths = seq_lens.tolist()
    chunks = []
    first = 0
    while first < len(lengths):
        longest = max(block_size, -(-lengths[first] // block_size) * block_size)
        members = slice(first, min(len(lengths), first + max(1, chunk_tokens // longest)))
        padding = torch.arange(longest, device=seq_lens.device) >= seq_lens[members, None]  # [seqs, longest]
        mask = torch.zeros(padding.shape, dtype=dtype, device=seq_lens.device).masked_fill_(padding, -torch.inf)
        chunks.append(
            _Chunk(
                members=members,
                kv_rows=_rows_of_blocks(block_tables[members], longest, cache_shape),
                padding_rows=padding.expand(2 * num_kv_heads, *padding.shape).flatten().nonzero().flatten(),
                mask=mask[:, None, None],
            )
        )
        first = members.stop
    return tuple(chunks)


def _rows_of_blocks(block_tables: Tensor, seq_len: int, cache_shape: torch.Size) -> Tensor:
    """Rows of `_kv_rows` in the order [K or V, kv_head, sequence, block]."""
    _, _, num_kv_heads, block_size, _ = cache_shape
    blocks = block_tables[:, : -(-seq_len // block_size)].long()
    heads = torch.arange(2 * num_kv_heads, device=blocks.device)
    return (blocks * (2 * num_kv_heads) + heads[:, None, None]).flatten()


def _kv_rows(kv_cache: Tensor) -> Tensor:
    """The cache as [num_blocks * 2 * kv_heads, block_size * head_dim]: a row is one head of one block."""
    return kv_cache.view(-1, kv_cache.shape[3] * kv_cache.shape[4])


def _causal_mask(tile: int, max_seq_len: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[tile, max_seq_len + tile]: its last `tile` columns are causal, those before are visible.

    The mask of a tile of queries is the part of it that puts the first query's position on the diagonal.
    """
    mask = torch.full((tile, max_seq_len + tile), -torch.inf, dtype=dtype, device=device)
    return mask.triu_(max_seq_len + 1)


def _decode(query: Tensor, kv_cache: Tensor, plan: _Plan, scale: float) -> Tensor:
    _, _, num_kv_heads, _, head_dim = kv_cache.shape
    # The heads of a group are the query rows of their KV head.
    grouped = query.index_select(0, plan.order).view(query.shape[0], num_kv_heads, -1, head_dim)
    outputs = []
    for chunk in plan.chunks:
        queries = grouped[chunk.members]
        gathered = _kv_rows(kv_cache).index_select(0, chunk.kv_rows)
        # A masked score still multiplies its value by zero, and what unwritten slots hold may not be finite.
        gathered.view(-1, head_dim).index_fill_(0, chunk.padding_rows, 0)
        key, value = gathered.view(2, num_kv_heads, queries.shape[0], -1, head_dim).transpose(1, 2)
        outputs.append(functional.scaled_dot_product_attention(queries, key, value, attn_mask=chunk.mask, scale=scale))
    return torch.cat(outputs).view(query.shape).index_select(0, plan.inverse)


def _extend(
    query: Tensor, kv_cache: Tensor, extend: _Extend, causal_mask: Tensor, scale: float, output: Tensor
) -> None:
    _, _, num_kv_heads, _, head_dim = kv_cache.shape
    num_tokens, num_heads, _ = query.shape
    group = num_heads // num_kv_heads
    gathered = _kv_rows(kv_cache).index_select(0, extend.kv_rows).view(2, num_kv_heads, 1, -1, head_dim)
    key, value = gathered.expand(2, num_kv_heads, group, -1, head_dim)
    queries = query.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    outputs = output.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    diagonal = causal_mask.shape[1] - causal_mask.shape[0]
    for start in range(0, num_tokens, _QUERY_TILE):
        tile = slice(start, min(start + _QUERY_TILE, num_tokens))
        position = extend.seq_len - num_tokens + start
        visible = position + tile.stop - tile.start
        outputs[:, :, tile] = functional.scaled_dot_product_attention(
            queries[:, :, tile],
            key[:, :, :visible],
            value[:, :, :visible],
            attn_mask=causal_mask[: tile.stop - tile.start, diagonal - position : diagonal - position + visible],
            scale=scale,
        )
