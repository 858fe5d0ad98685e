"""Which tokens does each program of the expert kernels work on? Decided on the device, without waiting for it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertBlocks:
    """The token-expert pairs, those of the same expert next to each other, cut into blocks of one expert each."""

    pairs: Tensor  # [pairs] int64: token * experts_per_token + its place among the token's experts
    first_pair: Tensor  # [experts + 1] int64: where each expert's pairs start in `pairs`
    first_block: Tensor  # [experts + 1] int64: where each expert's blocks start
    block_expert: Tensor  # [blocks] int64: whose block it is; the number of experts for those that are not needed


def plan_expert_blocks(expert_ids: Tensor, num_experts: int, block_m: int) -> ExpertBlocks:
    """Blocks of up to `block_m` pairs. There are as many as any choice of experts could need."""
    flat = expert_ids.flatten()
    by_expert, pairs = flat.sort(stable=True)
    experts = torch.arange(num_experts + 1, device=flat.device)
    first_pair = torch.searchsorted(by_expert, experts)
    num_blocks = (first_pair.diff() + block_m - 1) // block_m
    first_block = torch.cat((num_blocks.new_zeros(1), num_blocks.cumsum(0)))
    most_blocks = min(len(flat), len(flat) // block_m + num_experts)
    blocks = torch.arange(most_blocks, device=flat.device)
    block_expert = torch.searchsorted(first_block[1:], blocks, right=True)
    return ExpertBlocks(pairs=pairs, first_pair=first_pair, first_block=first_block, block_expert=block_expert)
