"""The experts in plain PyTorch: the CPU path, and the oracle of the kernels."""

import torch
from torch import Tensor
from torch.nn import functional

from pageloom_kernels.silu_mul.reference import silu_mul


def expert_mlp(x: Tensor, gate_up: Tensor, down: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
    num_tokens, experts_per_token = expert_ids.shape
    # The token-expert pairs, those of the same expert next to each other.
    order = expert_ids.flatten().argsort(stable=True)
    rows = x[order // experts_per_token]
    counts = torch.bincount(expert_ids.flatten(), minlength=len(down)).tolist()
    outputs = torch.empty_like(rows)
    for expert, (part, output) in enumerate(zip(torch.split(rows, counts), torch.split(outputs, counts), strict=True)):
        if len(part):
            torch.mm(silu_mul(functional.linear(part, gate_up[expert])), down[expert].T, out=output)
    weighted = torch.empty_like(outputs)
    weighted[order] = (outputs * weights.flatten()[order, None]).to(x.dtype)
    return weighted.view(num_tokens, experts_per_token, x.shape[1]).sum(dim=1)
