"""The feed-forward network of a layer: one for all tokens, or a mixture of experts of which each token takes a few."""

from __future__ import annotations

import torch
from torch import Tensor

from pageloom_kernels import expert_mlp, silu_mul
from worker_svc.models.config import ExpertsConfig, LlamaConfig
from worker_svc.models.layers import Linear

# A linear, the names of the modules that lie below each other in it, and their outputs.
NamedLinear = tuple[Linear, list[str], list[int]]


class DenseMlp:
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(
        self, hidden_size: int, inner_size: int, *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.gate_up = Linear(hidden_size, 2 * inner_size, bias=bias, dtype=dtype, device=device)
        self.down = Linear(inner_size, hidden_size, bias=bias, dtype=dtype, device=device)
        self._hidden_size, self._inner_size = hidden_size, inner_size

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        return self.down(silu_mul(self.gate_up(hidden)))

    def linears(self, prefix: str) -> list[NamedLinear]:
        """As Llama.linears, for one network."""
        return [
            (self.gate_up, [f"{prefix}gate_proj", f"{prefix}up_proj"], [self._inner_size] * 2),
            (self.down, [f"{prefix}down_proj"], [self._hidden_size]),
        ]

    def expert_linears(self, prefix: str) -> list[NamedLinear]:
        """There are no experts."""
        return []


class MixtureMlp:
    """The sum of what a token's experts compute, weighted by the router, and of the shared network if there is one."""

    def __init__(self, hidden_size: int, config: ExpertsConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self._hidden_size = hidden_size
        num_experts, inner_size = config.num_experts, config.intermediate_size
        self.router = Linear(hidden_size, num_experts, bias=False, dtype=dtype, device=device)
        # By expert; gate and up are below each other. `experts` are views of both, as linears.
        self.gate_up = torch.empty(num_experts, 2 * inner_size, hidden_size, dtype=dtype, device=device)
        self.down = torch.empty(num_experts, hidden_size, inner_size, dtype=dtype, device=device)
        self.experts = [
            (Linear.over(gate_up), Linear.over(down)) for gate_up, down in zip(self.gate_up, self.down, strict=True)
        ]
        self.shared: DenseMlp | None = None
        if config.shared_intermediate_size is not None:
            self.shared = DenseMlp(hidden_size, config.shared_intermediate_size, bias=False, dtype=dtype, device=device)
            self.shared_gate = Linear(hidden_size, 1, bias=False, dtype=dtype, device=device)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        expert_ids, weights = choose_experts(self.router(hidden), self.config)
        output = expert_mlp(hidden, self.gate_up, self.down, expert_ids, weights)
        if self.shared is not None:
            output = output + self.shared_gate(hidden).sigmoid() * self.shared(hidden)
        return output

    def linears(self, prefix: str) -> list[NamedLinear]:
        """As Llama.linears, for one network; the experts are not among them."""
        linears = [(self.router, [f"{prefix}gate"], [self.config.num_experts])]
        if self.shared is not None:
            linears += self.shared.linears(f"{prefix}shared_expert.")
            linears.append((self.shared_gate, [f"{prefix}shared_expert_gate"], [1]))
        return linears

    def expert_linears(self, prefix: str) -> list[NamedLinear]:
        """As Llama.expert_linears, for one network."""
        inner_size = self.config.intermediate_size
        linears: list[NamedLinear] = []
        for index, (gate_up, down) in enumerate(self.experts):
            expert = f"{prefix}experts.{index}."
            linears.append((gate_up, [f"{expert}gate_proj", f"{expert}up_proj"], [inner_size] * 2))
            linears.append((down, [f"{expert}down_proj"], [self._hidden_size]))
        return linears


def choose_experts(router_logits: Tensor, config: ExpertsConfig) -> tuple[Tensor, Tensor]:
    """[tokens, num_experts] -> the likeliest experts of each token, int64 [tokens, num_experts_per_token], and their
    weights in float32. As transformers' MixtralTopKRouter and Qwen3MoeTopKRouter; the latter rounds the weights to the
    model's dtype."""
    probabilities = router_logits.softmax(dim=-1, dtype=torch.float32)
    weights, expert_ids = probabilities.topk(config.num_experts_per_token, dim=-1)
    return expert_ids, weights / weights.sum(dim=-1, keepdim=True) if config.normalize_weights else weights


def make_mlp(
    config: LlamaConfig, layer_index: int, *, dtype: torch.dtype, device: torch.device
) -> DenseMlp | MixtureMlp:
    """The network that the configuration gives this layer."""
    experts = config.experts
    if experts is not None and layer_index in experts.layers:
        return MixtureMlp(config.hidden_size, experts, dtype=dtype, device=device)
    return DenseMlp(config.hidden_size, config.intermediate_size, bias=config.mlp_bias, dtype=dtype, device=device)
