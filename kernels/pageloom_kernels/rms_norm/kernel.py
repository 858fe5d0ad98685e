"""RMSNorm with residual addition as one Triton kernel: a program normalizes one row, held in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageloom_kernels.triton_jit import jit


@jit()
def rms_norm_kernel(
    p_x: tl.tensor,
    p_residual: tl.tensor,
    p_weight: tl.tensor,
    p_sum: tl.tensor,
    p_output: tl.tensor,
    stride_x: tl.tensor,
    stride_residual: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    mask = o_n < N
    b_x = tl.load(p_x + i_row * stride_x + o_n, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        b_residual = tl.load(p_residual + i_row * stride_residual + o_n, mask=mask, other=0.0)
        b_x = (b_x.to(tl.float32) + b_residual.to(tl.float32)).to(b_x.dtype)
        tl.store(p_sum + i_row * N + o_n, b_x, mask=mask)
    b_x32 = b_x.to(tl.float32)
    inverse_rms = 1.0 / tl.sqrt(tl.sum(b_x32 * b_x32, axis=0) / N + eps)
    b_weight = tl.load(p_weight + o_n, mask=mask, other=0.0)
    b_normed = (b_x32 * inverse_rms).to(b_x.dtype).to(tl.float32)
    tl.store(p_output + i_row * N + o_n, (b_normed * b_weight.to(tl.float32)).to(b_x.dtype), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    num_rows, hidden = x.shape
    output = torch.empty((num_rows, hidden), dtype=x.dtype, device=x.device)
    summed = x if residual is None else torch.empty_like(output)
    if num_rows == 0:
        return output, summed
    block_n = triton.next_power_of_2(hidden)
    rms_norm_kernel[(num_rows,)](
        x,
        x if residual is None else residual,
        weight,
        summed,
        output,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        eps,
        N=hidden,
        BLOCK_N=block_n,
        HAS_RESIDUAL=residual is not None,
        num_warps=min(16, max(1, block_n // 512)),
    )
    return output, summed
