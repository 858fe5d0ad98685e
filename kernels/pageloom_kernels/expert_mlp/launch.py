"""The experts on a GPU: two kernels over token-expert pairs that are grouped by expert, and a sum."""

from torch import Tensor

from pageloom_kernels.expert_mlp.down_kernel import down_weighted
from pageloom_kernels.expert_mlp.gate_up_kernel import gate_up_silu
from pageloom_kernels.expert_mlp.grouping import plan_expert_blocks
from pageloom_kernels.expert_mlp.tuning import expert_tuning


def expert_mlp(x: Tensor, gate_up: Tensor, down: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
    num_tokens, experts_per_token = expert_ids.shape
    if num_tokens == 0:
        return x.new_empty(x.shape)
    num_experts = len(down)
    tuning = expert_tuning(num_pairs=expert_ids.numel(), num_experts=num_experts, itemsize=x.itemsize)
    blocks = plan_expert_blocks(expert_ids, num_experts, tuning.down.block_m)
    inner = gate_up_silu(x, gate_up, blocks, experts_per_token=experts_per_token, shape=tuning.gate_up)
    output = down_weighted(inner, down, weights, blocks, shape=tuning.down)
    return output.view(num_tokens, experts_per_token, x.shape[1]).sum(dim=1)
