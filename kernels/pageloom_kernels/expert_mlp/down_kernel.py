"""The weighted output of every token-expert pair: a program computes a tile of one expert's rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageloom_kernels.expert_mlp.grouping import ExpertBlocks
from pageloom_kernels.expert_mlp.row_blocks import locate_rows
from pageloom_kernels.expert_mlp.tuning import TileShape
from pageloom_kernels.triton_jit import jit


@jit()
def down_kernel(
    p_inner: tl.tensor,
    p_down: tl.tensor,
    p_weights: tl.tensor,
    p_pairs: tl.tensor,
    p_first_pair: tl.tensor,
    p_first_block: tl.tensor,
    p_block_expert: tl.tensor,
    p_output: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    K: tl.constexpr,  # intermediate
    N: tl.constexpr,  # hidden
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    i_block = tl.program_id(0).to(tl.int64)
    i_expert = tl.load(p_block_expert + i_block)
    if i_expert == NUM_EXPERTS:
        return
    o_row, is_row = locate_rows(p_first_pair, p_first_block, i_expert, i_block, BLOCK_M)
    o_n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    p_a = p_inner + o_row[:, None] * K + o_k[None, :]
    p_w = p_down + i_expert * (N * K) + o_n[None, :] * K + o_k[:, None]
    is_n = o_n[None, :] < N
    b_y = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for i_k in range(0, K, BLOCK_K):
        b_inner = tl.load(p_a + i_k, mask=is_row[:, None] & (i_k + o_k[None, :] < K), other=0.0)
        b_w = tl.load(p_w + i_k, mask=is_n & (i_k + o_k[:, None] < K), other=0.0)
        if UPCAST:
            b_inner, b_w = b_inner.to(tl.float32), b_w.to(tl.float32)
        b_y = tl.dot(b_inner, b_w, b_y, input_precision="ieee")
    o_pair = tl.load(p_pairs + o_row, mask=is_row, other=0)
    b_weight = tl.load(p_weights + o_pair, mask=is_row, other=0.0)
    dtype = p_output.dtype.element_ty
    b_y = (b_y.to(dtype).to(tl.float32) * b_weight[:, None]).to(dtype)
    tl.store(p_output + o_pair[:, None] * N + o_n[None, :], b_y, mask=is_row[:, None] & is_n)


def down_weighted(inner: Tensor, down: Tensor, weights: Tensor, blocks: ExpertBlocks, *, shape: TileShape) -> Tensor:
    """[pairs, intermediate] in the order of `blocks.pairs` -> [pairs, hidden] in the order of the tokens."""
    num_experts, hidden, inner_size = down.shape
    output = torch.empty((len(blocks.pairs), hidden), dtype=inner.dtype, device=inner.device)
    down_kernel[(len(blocks.block_expert), triton.cdiv(hidden, shape.block_n))](
        inner,
        down,
        weights,
        blocks.pairs,
        blocks.first_pair,
        blocks.first_block,
        blocks.block_expert,
        output,
        NUM_EXPERTS=num_experts,
        K=inner_size,
        N=hidden,
        **shape.launch_options(inner.device),
    )
    return output
