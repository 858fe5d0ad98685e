"""SiLU·mul as one Triton kernel: a program writes one piece of one row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageloom_kernels.triton_jit import jit

_BLOCK_N = 1024


@jit()
def silu_mul_kernel(
    p_gate_up: tl.tensor, p_output: tl.tensor, stride_gate_up: tl.tensor, N: tl.constexpr, BLOCK_N: tl.constexpr
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = o_n < N
    p_gate = p_gate_up + i_row * stride_gate_up
    b_gate = tl.load(p_gate + o_n, mask=mask, other=0.0)
    b_up = tl.load(p_gate + N + o_n, mask=mask, other=0.0)
    b_gate32 = b_gate.to(tl.float32)
    b_silu = (b_gate32 / (1.0 + tl.exp(-b_gate32))).to(b_gate.dtype).to(tl.float32)
    tl.store(p_output + i_row * N + o_n, (b_silu * b_up.to(tl.float32)).to(b_gate.dtype), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    num_rows, width = gate_up.shape
    output = torch.empty((num_rows, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    if output.numel():
        grid = (num_rows, triton.cdiv(width // 2, _BLOCK_N))
        silu_mul_kernel[grid](gate_up, output, gate_up.stride(0), N=width // 2, BLOCK_N=_BLOCK_N, num_warps=4)
    return output
