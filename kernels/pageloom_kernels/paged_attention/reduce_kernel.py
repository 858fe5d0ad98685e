"""The second half of a split decode: merges the partial results of a sequence's segments by their log-sum-exp."""

import triton
import triton.language as tl
from torch import Tensor

from pageloom_kernels.triton_jit import jit

_SEGMENTS_AT_ONCE = 16


@jit()
def reduce_kernel(
    p_partial: tl.tensor,
    p_lse: tl.tensor,
    p_first_segment: tl.tensor,
    p_output: tl.tensor,
    NUM_HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    i_head = tl.program_id(0)
    i_seq = tl.program_id(1).to(tl.int64)
    first = tl.load(p_first_segment + i_seq).to(tl.int64)
    stop = tl.load(p_first_segment + i_seq + 1).to(tl.int64)
    if stop - first == 1:
        return
    o_d = tl.arange(0, D_PAD)
    o_s = tl.arange(0, BLOCK_S)
    b_o = tl.zeros([D_PAD], dtype=tl.float32)
    m = float("-inf")
    total = 0.0
    for i_s in range(first, stop, BLOCK_S):
        o_row = (i_s + o_s) * NUM_HEADS + i_head
        exists = i_s + o_s < stop
        b_lse = tl.load(p_lse + o_row, mask=exists, other=float("-inf"))
        b_part = tl.load(
            p_partial + o_row[:, None] * D + o_d[None, :], mask=exists[:, None] & (o_d[None, :] < D), other=0.0
        )
        m_new = tl.maximum(m, tl.max(b_lse, axis=0))
        b_weight = tl.exp2(b_lse - m_new)
        rescale = tl.exp2(m - m_new)
        b_o = b_o * rescale + tl.sum(b_part * b_weight[:, None], axis=0)
        total = total * rescale + tl.sum(b_weight, axis=0)
        m = m_new
    # No segment at all: the sequence is padding, and its row must still be written.
    b_o = b_o / tl.where(total > 0.0, total, 1.0)
    p_out = p_output + (i_seq * NUM_HEADS + i_head) * D + o_d
    tl.store(p_out, b_o.to(p_output.dtype.element_ty), mask=o_d < D)


def reduce_segments(partial: Tensor, lse: Tensor, first_segment: Tensor, output: Tensor) -> None:
    """Merge `partial` [segments, heads, dim] into `output` [seqs, heads, dim]; sequences of one segment are left alone.

    `lse` [segments, heads] is the base-2 log-sum-exp of each segment's scaled scores.
    """
    num_seqs, num_heads, head_dim = output.shape
    reduce_kernel[(num_heads, num_seqs)](
        partial,
        lse,
        first_segment,
        output,
        NUM_HEADS=num_heads,
        D=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        BLOCK_S=_SEGMENTS_AT_ONCE,
        num_warps=4,
    )
