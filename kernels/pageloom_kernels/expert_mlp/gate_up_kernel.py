"""`silu(gate(x)) * up(x)` of every token-expert pair: a program computes a tile of one expert's rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageloom_kernels.expert_mlp.grouping import ExpertBlocks
from pageloom_kernels.expert_mlp.row_blocks import locate_rows
from pageloom_kernels.expert_mlp.tuning import TileShape
from pageloom_kernels.triton_jit import jit


@jit()
def gate_up_kernel(
    p_x: tl.tensor,
    p_gate_up: tl.tensor,
    p_pairs: tl.tensor,
    p_first_pair: tl.tensor,
    p_first_block: tl.tensor,
    p_block_expert: tl.tensor,
    p_inner: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS_PER_TOKEN: tl.constexpr,
    K: tl.constexpr,  # hidden
    N: tl.constexpr,  # intermediate
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    # Programs that start together have the same columns, so that the blocks of one expert share its weights in L2.
    i_block = tl.program_id(0).to(tl.int64)
    i_expert = tl.load(p_block_expert + i_block)
    if i_expert == NUM_EXPERTS:
        return
    o_row, is_row = locate_rows(p_first_pair, p_first_block, i_expert, i_block, BLOCK_M)
    o_token = tl.load(p_pairs + o_row, mask=is_row, other=0) // EXPERTS_PER_TOKEN
    o_n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    p_a = p_x + o_token[:, None] * K + o_k[None, :]
    p_gate = p_gate_up + i_expert * (2 * N * K) + o_n[None, :] * K + o_k[:, None]
    is_n = o_n[None, :] < N
    b_gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    b_up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for i_k in range(0, K, BLOCK_K):
        b_x = tl.load(p_a + i_k, mask=is_row[:, None] & (i_k + o_k[None, :] < K), other=0.0)
        is_weight = is_n & (i_k + o_k[:, None] < K)
        b_w_gate = tl.load(p_gate + i_k, mask=is_weight, other=0.0)
        b_w_up = tl.load(p_gate + N * K + i_k, mask=is_weight, other=0.0)
        if UPCAST:
            b_x, b_w_gate, b_w_up = b_x.to(tl.float32), b_w_gate.to(tl.float32), b_w_up.to(tl.float32)
        b_gate = tl.dot(b_x, b_w_gate, b_gate, input_precision="ieee")
        b_up = tl.dot(b_x, b_w_up, b_up, input_precision="ieee")
    dtype = p_inner.dtype.element_ty
    b_gate = b_gate.to(dtype).to(tl.float32)
    b_silu = (b_gate / (1.0 + tl.exp(-b_gate))).to(dtype).to(tl.float32)
    b_inner = (b_silu * b_up.to(dtype).to(tl.float32)).to(dtype)
    tl.store(p_inner + o_row[:, None] * N + o_n[None, :], b_inner, mask=is_row[:, None] & is_n)


def gate_up_silu(
    x: Tensor, gate_up: Tensor, blocks: ExpertBlocks, *, experts_per_token: int, shape: TileShape
) -> Tensor:
    """[tokens, hidden] -> [pairs, intermediate], in the order of `blocks.pairs`."""
    num_experts, double_inner, hidden = gate_up.shape
    inner_size = double_inner // 2
    inner = torch.empty((len(blocks.pairs), inner_size), dtype=x.dtype, device=x.device)
    gate_up_kernel[(len(blocks.block_expert), triton.cdiv(inner_size, shape.block_n))](
        x,
        gate_up,
        blocks.pairs,
        blocks.first_pair,
        blocks.first_block,
        blocks.block_expert,
        inner,
        NUM_EXPERTS=num_experts,
        EXPERTS_PER_TOKEN=experts_per_token,
        K=hidden,
        N=inner_size,
        **shape.launch_options(x.device),
    )
    return inner
