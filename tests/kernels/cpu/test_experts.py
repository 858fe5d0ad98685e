"""The experts of a layer in the library, beside their PyTorch twin."""

import ctypes

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pageloom_kernels import expert_mlp, silu_mul
from pageloom_kernels.cpu.engine import experts_struct
from pageloom_kernels.cpu.thread_pool import ThreadPool
from pageloom_kernels.cpu.weights import ExpertsWeights, SharedExpertWeights, WeightStore
from tests.kernels.cpu.libraries import INSTRUCTION_SETS, load
from tests.kernels.experts import make_experts

pytestmark = pytest.mark.parametrize("library", INSTRUCTION_SETS, indirect=True)

EXPERTS_PER_TOKEN, INNER = 3, 24


class Mixture:
    """Eight experts, and a shared one, in both implementations."""

    def __init__(self, library, *, hidden, normalize_weights, num_threads=2):
        self.x, self.gate_up, self.down, _, _ = make_experts(
            30, num_experts=8, experts_per_token=1, hidden=hidden, inner=INNER, dtype=torch.bfloat16
        )
        generator = torch.Generator().manual_seed(1)
        # A router that is seldom near a tie, which rounding might turn.
        self.router = (4 * torch.randn(8, hidden, generator=generator) / hidden**0.5).bfloat16()
        self.shared_gate = torch.randn(1, hidden, generator=generator).bfloat16() / 8
        self.normalize_weights = normalize_weights
        self._pool = ThreadPool(library, num_threads)
        self._store = WeightStore(self._pool)
        self._weights = ExpertsWeights(
            experts_per_token=EXPERTS_PER_TOKEN,
            normalize_weights=normalize_weights,
            router=self._store.pack(self.router),
            gate_up=tuple(map(self._store.pack, self.gate_up)),
            down=tuple(map(self._store.pack, self.down)),
            # Any network will do.
            shared=SharedExpertWeights(
                gate_up=self._store.pack(self.gate_up[0]),
                down=self._store.pack(self.down[0]),
                gate=self._store.pack(self.shared_gate),
            ),
        )

    def in_library(self, x: Tensor) -> Tensor:
        output = torch.full_like(x, torch.nan)
        functions = self._pool.library.functions
        experts = ctypes.byref(experts_struct(self._weights))
        assert functions.pageloom_expert_mlp(self._pool.handle, experts, x.data_ptr(), len(x), output.data_ptr())
        return output

    def in_pytorch(self, x: Tensor) -> Tensor:
        probabilities = functional.linear(x, self.router).float().softmax(dim=-1)
        weights, expert_ids = probabilities.topk(EXPERTS_PER_TOKEN)
        if self.normalize_weights:
            weights /= weights.sum(dim=-1, keepdim=True)
        shared = functional.linear(silu_mul(functional.linear(x, self.gate_up[0])), self.down[0])
        gate = functional.linear(x, self.shared_gate).sigmoid()
        return expert_mlp(x, self.gate_up, self.down, expert_ids, weights) + gate * shared


@pytest.fixture
def library(request):
    return load(request.param)


# Whole vectors of every instruction set, and a row that ends within one.
@pytest.mark.parametrize("hidden", [64, 70])
@pytest.mark.parametrize("normalize_weights", [False, True])
def test_equals_pytorch(library, hidden, normalize_weights):
    mixture = Mixture(library, hidden=hidden, normalize_weights=normalize_weights)
    output, expected = mixture.in_library(mixture.x).float(), mixture.in_pytorch(mixture.x).float()
    assert (output - expected).abs().max() < 0.03
    assert (output - expected).abs().mean() < 0.002


def test_a_row_has_the_same_bits_in_any_batch(library):
    mixture = Mixture(library, hidden=64, normalize_weights=True)
    together = mixture.in_library(mixture.x)
    alone = Mixture(library, hidden=64, normalize_weights=True, num_threads=1)
    assert torch.equal(torch.cat([alone.in_library(row[None]) for row in mixture.x]), together)


def test_a_row_that_is_not_finite_leaves_the_others_alone(library):
    mixture = Mixture(library, hidden=64, normalize_weights=True)
    expected = mixture.in_library(mixture.x)
    poisoned = mixture.x.clone()
    poisoned[3] = torch.nan
    output = mixture.in_library(poisoned)
    assert output[3].isnan().all()
    others = [row for row in range(len(poisoned)) if row != 3]
    assert torch.equal(output[others], expected[others])
