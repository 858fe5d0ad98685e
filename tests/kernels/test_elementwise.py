"""The plain PyTorch path of RMSNorm and SiLU·mul, against fp64 and against transformers' rounding."""

import pytest
import torch

from pageloom_kernels import rms_norm, silu_mul

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_rounds_like_transformers(dtype, with_residual):
    x, residual, weight = (normal(*s, dtype=dtype, seed=i) for i, s in enumerate([(5, 72), (5, 72), (72,)]))
    output, summed = rms_norm(x, weight, eps=1e-5, residual=residual if with_residual else None)

    expected_sum = x + residual if with_residual else x
    upcast = expected_sum.float()
    normed = upcast * torch.rsqrt(upcast.pow(2).mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(summed, expected_sum)
    expected = weight * normed.to(dtype)
    assert torch.allclose(output, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    if dtype != torch.float32:
        # A sum in another order may tip a rounding now and then; another order of rounding changes every third value.
        assert (output == expected).double().mean() > 0.98


def test_rms_norm_is_exact_in_fp32():
    x, weight = normal(3, 576, dtype=torch.float32), normal(576, dtype=torch.float32)
    exact = weight.double() * x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(rms_norm(x, weight, eps=1e-5)[0].double(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_mul(dtype):
    gate_up = normal(5, 90, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate / (1 + torch.exp(-gate)) * up
    assert torch.allclose(silu_mul(gate_up).double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


def test_silu_mul_leaves_its_input_alone():
    gate_up = normal(2, 8, dtype=torch.float32)
    before = gate_up.clone()
    silu_mul(gate_up)
    assert torch.equal(gate_up, before)


def test_no_tokens():
    empty = torch.empty(0, 8)
    assert rms_norm(empty, torch.ones(8), eps=1e-5)[0].shape == (0, 8)
    assert silu_mul(empty).shape == (0, 4)


@pytest.mark.parametrize(
    ("x", "weight", "residual", "message"),
    [
        (torch.zeros(2, 8), torch.ones(9), None, r"weight must have shape \(8,\)"),
        (torch.zeros(2, 8), torch.ones(8), torch.zeros(1, 8), "residual must have the shape of x"),
        (torch.zeros(2, 8), torch.ones(8), torch.zeros(8, 2).T, "residual must have .* contiguous rows"),
        (torch.zeros(8, 2).T, torch.ones(8), None, r"x must be \[tokens, hidden\] with contiguous rows"),
    ],
)
def test_bad_rms_norm_input_is_named(x, weight, residual, message):
    with pytest.raises(ValueError, match=message):
        rms_norm(x, weight, eps=1e-5, residual=residual)


@pytest.mark.parametrize("gate_up", [torch.zeros(2, 7), torch.zeros(8), torch.zeros(8, 2).T])
def test_bad_silu_mul_input_is_named(gate_up):
    with pytest.raises(ValueError, match=r"gate_up must be \[tokens, 2 \* intermediate\] with contiguous rows"):
        silu_mul(gate_up)
