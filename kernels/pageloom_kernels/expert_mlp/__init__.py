"""The feed-forward networks of a mixture of experts, each over the tokens that chose it."""

import torch
from torch import Tensor

from pageloom_kernels.dispatch import operators


def expert_mlp(x: Tensor, gate_up: Tensor, down: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
    """For each token, the sum over its experts of `weight * down(silu(gate(x)) * up(x))`.

    `x` is [tokens, hidden]; `gate_up` [experts, 2 * intermediate, hidden], gate before up, and `down`
    [experts, hidden, intermediate] are the experts' matrices; `expert_ids` int64 and `weights` float32 are
    [tokens, experts_per_token]. Values are rounded to the model's dtype where silu_mul rounds them, after each matrix
    and after weighting; the sum over the experts is fp32 and rounded once.

    Raises:
        ValueError: shapes or dtypes do not fit, or a tensor is not contiguous.
    """
    num_experts, hidden, inner = down.shape if down.dim() == 3 else (0, 0, 0)
    if x.dim() != 2 or x.shape[1] != hidden or gate_up.shape != (num_experts, 2 * inner, hidden):
        raise ValueError(
            "x must be [tokens, hidden], gate_up [experts, 2 * intermediate, hidden] and down [experts, hidden, "
            f"intermediate], got {tuple(x.shape)}, {tuple(gate_up.shape)} and {tuple(down.shape)}"
        )
    for name, tensor, dtype in (("expert_ids", expert_ids, torch.int64), ("weights", weights, torch.float32)):
        if tensor.dim() != 2 or len(tensor) != len(x) or tensor.shape != expert_ids.shape or tensor.dtype != dtype:
            raise ValueError(
                f"{name} must be {dtype} [{len(x)}, experts_per_token], got {tensor.dtype} {tuple(tensor.shape)}"
            )
    tensors = {"x": x, "gate_up": gate_up, "down": down, "expert_ids": expert_ids, "weights": weights}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
    return operators(x.device).expert_mlp(x, gate_up, down, expert_ids, weights)
