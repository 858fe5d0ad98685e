"""Attention of sequences with several query tokens, with or without earlier context.

A program works on (block of query tokens, KV head); the rows of the matrix products are tokens times the heads of the
group, so that K and V are read once for the group.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageloom_kernels.paged_attention.batch import AttentionBatch
from pageloom_kernels.paged_attention.kv_tiles import attend, no_weights
from pageloom_kernels.paged_attention.tuning import PrefillTuning
from pageloom_kernels.triton_jit import jit


@jit(varying=("num_decodes", "stride_block_table"))
def prefill_kernel(
    p_query: tl.tensor,
    p_kv: tl.tensor,
    p_block_tables: tl.tensor,
    p_seq_lens: tl.tensor,
    p_query_start: tl.tensor,
    p_block_seq: tl.tensor,
    p_output: tl.tensor,
    num_decodes: tl.tensor,
    stride_query_token: tl.tensor,
    stride_query_head: tl.tensor,
    stride_block_table: tl.tensor,
    scale_log2: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    TILE: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    i_kv_head = tl.program_id(0)
    # The last blocks of a sequence see the most keys: they go first.
    i_block = tl.num_programs(1) - 1 - tl.program_id(1)
    i_seq = tl.load(p_block_seq + i_block).to(tl.int64)
    query_start = tl.load(p_query_start + i_seq)
    query_len = tl.load(p_query_start + i_seq + 1) - query_start
    first_block = (query_start - num_decodes) // BLOCK_Q + (i_seq.to(tl.int32) - num_decodes)
    i_token = (i_block - first_block) * BLOCK_Q
    if i_token >= query_len:
        return
    seq_len = tl.load(p_seq_lens + i_seq)
    position = seq_len - query_len + i_token  # of the block's first token
    o_m = tl.arange(0, BLOCK_M)
    o_d = tl.arange(0, D_PAD)
    o_token = o_m // GROUP
    o_head = i_kv_head * GROUP + o_m % GROUP
    mask = ((o_token < BLOCK_Q) & (i_token + o_token < query_len))[:, None] & (o_d[None, :] < D)
    o_row = (query_start + i_token + o_token).to(tl.int64)
    p_q = p_query + o_row[:, None] * stride_query_token + o_head[:, None] * stride_query_head + o_d[None, :]
    b_q = tl.load(p_q, mask=mask, other=0.0)
    b_o, b_m, b_l = no_weights(BLOCK_M, D_PAD)
    b_visible = position + o_token + 1
    p_kv += i_kv_head * (BLOCK_SIZE * D)
    p_block_table = p_block_tables + i_seq * stride_block_table
    # Every row sees the positions up to the first token's; only the tiles after those need a mask.
    whole = (position + 1) // TILE * TILE
    stop = tl.minimum(position + BLOCK_Q, seq_len)
    b_o, b_m, b_l = attend(
        b_o, b_m, b_l, b_q, b_visible, p_kv, p_block_table, 0, whole, scale_log2,
        NUM_KV_HEADS, D, D_PAD, BLOCK_SIZE, TILE, MASKED=False, UPCAST=UPCAST,
    )  # fmt: skip
    b_o, b_m, b_l = attend(
        b_o, b_m, b_l, b_q, b_visible, p_kv, p_block_table, whole, stop, scale_log2,
        NUM_KV_HEADS, D, D_PAD, BLOCK_SIZE, TILE, MASKED=True, UPCAST=UPCAST,
    )  # fmt: skip
    o_out = (o_row * (NUM_KV_HEADS * GROUP) + o_head)[:, None] * D + o_d[None, :]
    tl.store(p_output + o_out, (b_o / b_l[:, None]).to(p_output.dtype.element_ty), mask=mask)


def plan_query_blocks(query_start: Tensor, num_tokens: int, num_decodes: int, block_q: int) -> Tensor:
    """The sequence of each block of query tokens, on the device, [bound] int32.

    Blocks do not cross sequences. Sequence i's first block is `(query_start[i] - num_decodes) // block_q + i -
    num_decodes`: the sequence before may end with a block without tokens, and the number of blocks depends on nothing
    but counts known to the host (as in vLLM's unified Triton kernel).
    """
    num_extends = query_start.shape[0] - 1 - num_decodes
    extends = torch.arange(num_extends, dtype=torch.int32, device=query_start.device)
    first_blocks = (query_start[num_decodes:-1] - num_decodes) // block_q + extends
    blocks = torch.arange(
        (num_tokens - num_decodes) // block_q + num_extends, dtype=torch.int32, device=query_start.device
    )
    return torch.searchsorted(first_blocks, blocks, right=True, out_int32=True) + (num_decodes - 1)


@lru_cache(maxsize=2)
def _block_seq(batch: AttentionBatch, num_tokens: int, block_q: int) -> Tensor:
    return plan_query_blocks(batch.query_start, num_tokens, batch.num_decodes, block_q)


def prefill(
    query: Tensor, kv_cache: Tensor, batch: AttentionBatch, *, scale_log2: float, tuning: PrefillTuning, output: Tensor
) -> None:
    """Write the attention of the batch's extends into their rows of `output`, which is contiguous."""
    _, _, num_kv_heads, block_size, head_dim = kv_cache.shape
    num_tokens, num_heads, _ = query.shape
    group = num_heads // num_kv_heads
    block_m = max(tuning.block_m, triton.next_power_of_2(group))
    block_seq = _block_seq(batch, num_tokens, block_m // group)
    prefill_kernel[(num_kv_heads, block_seq.shape[0])](
        query,
        kv_cache,
        batch.block_tables,
        batch.seq_lens,
        batch.query_start,
        block_seq,
        output,
        batch.num_decodes,
        query.stride(0),
        query.stride(1),
        batch.block_tables.stride(0),
        scale_log2,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        D=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        BLOCK_M=block_m,
        BLOCK_Q=block_m // group,
        TILE=tuning.tile,
        # Only Triton's interpreter runs on CPU tensors, and its products of bf16 are wrong.
        UPCAST=query.device.type == "cpu",
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
