"""The plain PyTorch path of the experts against transformers' own, token by token in fp64, and its errors."""

import pytest
import torch
from torch.nn import functional

from pageloom_kernels import expert_mlp
from tests.kernels.experts import make_experts

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def token_by_token(x, gate_up, down, expert_ids, weights):
    x, gate_up, down, weights = x.double(), gate_up.double(), down.double(), weights.double()
    output = torch.zeros_like(x)
    for token, experts in enumerate(expert_ids.tolist()):
        for place, expert in enumerate(experts):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            output[token] += weights[token, place] * (down[expert] @ (functional.silu(gate) * up))
    return output


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("num_tokens", "num_experts", "experts_per_token"), [(1, 8, 2), (40, 4, 1), (50, 16, 5)])
def test_equals_one_token_after_another(dtype, num_tokens, num_experts, experts_per_token):
    arguments = make_experts(num_tokens, num_experts=num_experts, experts_per_token=experts_per_token, dtype=dtype)
    output = expert_mlp(*arguments)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), token_by_token(*arguments), rtol=0, atol=TOLERANCE[dtype])


def test_all_tokens_may_choose_the_same_expert():
    x, gate_up, down, expert_ids, weights = make_experts(9, num_experts=8, experts_per_token=1)
    arguments = (x, gate_up, down, torch.full_like(expert_ids, 7), weights)
    torch.testing.assert_close(expert_mlp(*arguments).double(), token_by_token(*arguments), rtol=0, atol=1e-5)


def test_no_tokens():
    assert expert_mlp(*make_experts(0, num_experts=4, experts_per_token=2)).shape == (0, 32)


def test_a_token_that_is_not_finite_leaves_the_others_alone():
    x, *others = make_experts(20, num_experts=4, experts_per_token=2)
    expected = expert_mlp(x, *others)
    x[3] = torch.nan
    output = expert_mlp(x, *others)
    assert output[3].isnan().all()
    assert torch.equal(output[[0, 1, 2, *range(4, 20)]], expected[[0, 1, 2, *range(4, 20)]])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, torch.zeros(3, 31), r"x must be \[tokens, hidden\], gate_up .* got \(3, 31\)"),
        (1, torch.zeros(4, 24, 32), r"gate_up \[experts, 2 \* intermediate, hidden\] .* \(4, 24, 32\)"),
        (2, torch.zeros(4, 32), r"down \[experts, hidden, intermediate\], got"),
        (3, torch.zeros(3, 2), r"expert_ids must be torch.int64 \[3, experts_per_token\], got torch.float32 \(3, 2\)"),
        (4, torch.zeros(3, 1), r"weights must be torch.float32 \[3, experts_per_token\], got torch.float32 \(3, 1\)"),
        (0, torch.zeros(32, 3).T, r"x must be contiguous, got strides \(1, 3\)"),
    ],
)
def test_bad_input_is_named(place, value, message):
    arguments = list(make_experts(3, num_experts=4, experts_per_token=2))
    arguments[place] = value
    with pytest.raises(ValueError, match=message):
        expert_mlp(*arguments)
