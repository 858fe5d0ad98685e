"""Attention of sequences with one query token: each is split into segments that run in parallel.

Programs work on (segment, KV head); the heads of the group are the rows of the matrix products. The split is computed
on the device from the lengths, so launches depend on nothing but the number of sequences.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageloom_kernels.paged_attention.batch import AttentionBatch
from pageloom_kernels.paged_attention.kv_tiles import attend, no_weights
from pageloom_kernels.paged_attention.reduce_kernel import reduce_segments
from pageloom_kernels.paged_attention.tuning import DecodeTuning
from pageloom_kernels.triton_jit import jit


@jit(varying=("num_seqs", "stride_block_table"))
def decode_kernel(
    p_query: tl.tensor,
    p_kv: tl.tensor,
    p_block_tables: tl.tensor,
    p_seq_lens: tl.tensor,
    p_segment_seq: tl.tensor,
    p_first_segment: tl.tensor,
    p_output: tl.tensor,
    p_partial: tl.tensor,
    p_lse: tl.tensor,
    num_seqs: tl.tensor,
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
    TILE: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    i_kv_head = tl.program_id(0)
    i_segment = tl.program_id(1).to(tl.int64)
    i_seq = tl.load(p_segment_seq + i_segment).to(tl.int64)
    if i_seq == num_seqs:
        return
    first_segment = tl.load(p_first_segment + i_seq)
    num_segments = tl.load(p_first_segment + i_seq + 1) - first_segment
    seq_len = tl.load(p_seq_lens + i_seq)
    # Segments share the tiles evenly; there are at least as many tiles as segments.
    i_split = i_segment - first_segment
    num_tiles = tl.cdiv(seq_len, TILE)
    start = (i_split * num_tiles // num_segments).to(tl.int32) * TILE
    stop = tl.minimum(((i_split + 1) * num_tiles // num_segments).to(tl.int32) * TILE, seq_len)

    o_m = tl.arange(0, BLOCK_M)
    o_d = tl.arange(0, D_PAD)
    o_head = i_kv_head * GROUP + o_m
    mask = (o_m[:, None] < GROUP) & (o_d[None, :] < D)
    p_q = p_query + i_seq * stride_query_token + o_head[:, None] * stride_query_head + o_d[None, :]
    b_q = tl.load(p_q, mask=mask, other=0.0)
    b_o, b_m, b_l = no_weights(BLOCK_M, D_PAD)
    b_visible = tl.full([BLOCK_M], 0, dtype=tl.int32) + stop
    p_block_table = p_block_tables + i_seq * stride_block_table
    # Masks cost nothing here: the loop waits for memory, and a second loop for the last tile would wait once more.
    b_o, b_m, b_l = attend(
        b_o, b_m, b_l, b_q, b_visible, p_kv + i_kv_head * (BLOCK_SIZE * D), p_block_table, start, stop, scale_log2,
        NUM_KV_HEADS, D, D_PAD, BLOCK_SIZE, TILE, MASKED=True, UPCAST=UPCAST,
    )  # fmt: skip
    b_o = b_o / b_l[:, None]
    if num_segments == 1:
        o_out = (i_seq * (NUM_KV_HEADS * GROUP) + o_head)[:, None] * D + o_d[None, :]
        tl.store(p_output + o_out, b_o.to(p_output.dtype.element_ty), mask=mask)
    else:
        o_partial = i_segment * (NUM_KV_HEADS * GROUP) + o_head
        tl.store(p_partial + o_partial[:, None] * D + o_d[None, :], b_o, mask=mask)
        tl.store(p_lse + o_partial, b_m + tl.log2(b_l), mask=o_m < GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """How the sequences are split, on the device: sequence i has the segments from first[i] to first[i + 1]."""

    first: Tensor  # [seqs + 1] int32
    seq: Tensor  # [bound] int32, the sequence of each segment; `seqs` for the ones that do not exist


def plan_segments(seq_lens: Tensor, *, target: int, min_tokens: int) -> Segments:
    """Split sequences into about `target` segments of equal length in all, plus at most one for each sequence.

    A sequence up to an eighth longer than a segment stays whole. Length 0 has no segment.
    """
    num_seqs = seq_lens.shape[0]
    segment_len = torch.clamp_min((seq_lens.sum() + target - 1) // target, min_tokens)
    counts = torch.clamp_min((seq_lens - segment_len // 8 + segment_len - 1) // segment_len, 1) * (seq_lens > 0)
    first = torch.zeros(num_seqs + 1, dtype=torch.int32, device=seq_lens.device)
    first[1:] = counts.cumsum(0)
    segments = torch.arange(target + num_seqs, dtype=torch.int32, device=seq_lens.device)
    return Segments(first=first, seq=torch.searchsorted(first[1:], segments, right=True, out_int32=True))


@lru_cache(maxsize=2)
def _segments(batch: AttentionBatch, target: int, min_tokens: int) -> Segments:
    return plan_segments(batch.seq_lens[: batch.num_decodes], target=target, min_tokens=min_tokens)


def decode(
    query: Tensor, kv_cache: Tensor, batch: AttentionBatch, *, scale_log2: float, tuning: DecodeTuning, output: Tensor
) -> None:
    """Write the attention of the batch's decodes into the rows of `output`, which is contiguous."""
    _, _, num_kv_heads, block_size, head_dim = kv_cache.shape
    num_heads = query.shape[1]
    segments = _segments(batch, max(1, tuning.num_programs // num_kv_heads), tuning.min_segment_tokens)
    num_segments = segments.seq.shape[0]
    partial = torch.empty((num_segments, num_heads, head_dim), dtype=torch.float32, device=query.device)
    lse = torch.empty((num_segments, num_heads), dtype=torch.float32, device=query.device)
    decode_kernel[(num_kv_heads, num_segments)](
        query,
        kv_cache,
        batch.block_tables,
        batch.seq_lens,
        segments.seq,
        segments.first,
        output,
        partial,
        lse,
        batch.num_decodes,
        query.stride(0),
        query.stride(1),
        batch.block_tables.stride(0),
        scale_log2,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        D=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        BLOCK_M=max(16, triton.next_power_of_2(num_heads // num_kv_heads)),
        TILE=tuning.tile,
        # Only Triton's interpreter runs on CPU tensors, and its products of bf16 are wrong.
        UPCAST=query.device.type == "cpu",
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    reduce_segments(partial, lse, segments.first, output[: batch.num_decodes])
