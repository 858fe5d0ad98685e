"""RMSNorm with the residual addition that precedes it."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    summed = x if residual is None else x + residual
    upcast = summed.float()
    return weight * (upcast * torch.rsqrt(upcast.square().mean(-1, keepdim=True) + eps)).to(x.dtype), summed
