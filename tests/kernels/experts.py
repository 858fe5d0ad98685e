"""Made-up mixtures of experts for kernel tests."""

import torch


def make_experts(num_tokens, *, num_experts, experts_per_token, hidden=32, inner=24, dtype=torch.float32, seed=0):
    """The arguments of expert_mlp: random ones, in which no expert is chosen twice by a token."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    expert_ids = normal(num_tokens, num_experts).topk(experts_per_token).indices
    weights = torch.rand(num_tokens, experts_per_token, generator=generator)
    x, gate_up = normal(num_tokens, hidden), normal(num_experts, 2 * inner, hidden) / hidden**0.5
    down = normal(num_experts, hidden, inner) / inner**0.5
    return x.to(dtype), gate_up.to(dtype), down.to(dtype), expert_ids, weights
