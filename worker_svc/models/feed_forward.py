"""The feed-forward network of a layer: one for all tokens, or a mixture of experts of which each token takes a few."""

from __future__ import annotations

from collections.abc import Iterator

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

    def expert_destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """There are no experts."""
        return iter(())


class MixtureMlp:
    """The sum of what a token's experts compute, weighted by the router, and of the shared network if there is one."""

    def __init__(self, hidden_size: int, experts: ExpertsConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.experts = experts
        num_experts, inner_size = experts.num_experts, experts.intermediate_size
        self.router = Linear(hidden_size, num_experts, bias=False, dtype=dtype, device=device)
        # Gate and up below each other, by expert.
        self.gate_up = torch.empty(num_experts, 2 * inner_size, hidden_size, dtype=dtype, device=device)
        self.down = torch.empty(num_experts, hidden_size, inner_size, dtype=dtype, device=device)
        self.shared: DenseMlp | None = None
        if experts.shared_intermediate_size is not None:
            self.shared = DenseMlp(
                hidden_size, experts.shared_intermediate_size, bias=False, dtype=dtype, device=device
            )
            self.shared_gate = Linear(hidden_size, 1, bias=False, dtype=dtype, device=device)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        expert_ids, weights = choose_experts(self.router(hidden), self.experts)
        output = expert_mlp(hidden, self.gate_up, self.down, expert_ids, weights)
        if self.shared is not None:
            output = output + self.shared_gate(hidden).sigmoid() * self.shared(hidden)
        return output

    def linears(self, prefix: str) -> list[NamedLinear]:
        """As Llama.linears, for one network; the experts are not among them."""
        linears = [(self.router, [f"{prefix}gate"], [self.experts.num_experts])]
        if self.shared is not None:
            linears += self.shared.linears(f"{prefix}shared_expert.")
            linears.append((self.shared_gate, [f"{prefix}shared_expert_gate"], [1]))
        return linears

    def expert_destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Where each expert's matrices go, by name."""
        for index, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            gate, up = gate_up.chunk(2)
            expert = f"{prefix}experts.{index}."
            yield from ((f"{expert}gate_proj.weight", gate), (f"{expert}up_proj.weight", up))
            yield f"{expert}down_proj.weight", down


def choose_experts(router_logits: Tensor, experts: ExpertsConfig) -> tuple[Tensor, Tensor]:
    """[tokens, num_experts] -> the likeliest experts of each token, int64 [tokens, num_experts_per_token], and their
    weights in float32. As transformers' MixtralTopKRouter and Qwen3MoeTopKRouter; the latter rounds the weights to the
    model's dtype."""
    probabilities = router_logits.softmax(dim=-1, dtype=torch.float32)
    weights, expert_ids = probabilities.topk(experts.num_experts_per_token, dim=-1)
    return expert_ids, weights / weights.sum(dim=-1, keepdim=True) if experts.normalize_weights else weights


def make_mlp(
    config: LlamaConfig, layer_index: int, *, dtype: torch.dtype, device: torch.device
) -> DenseMlp | MixtureMlp:
    """The network that the configuration gives this layer."""
    experts = config.experts
    if experts is not None and layer_index in experts.layers:
        return MixtureMlp(config.hidden_size, experts, dtype=dtype, device=device)
    return DenseMlp(config.hidden_size, config.intermediate_size, bias=config.mlp_bias, dtype=dtype, device=device)
