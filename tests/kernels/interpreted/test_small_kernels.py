"""The elementwise kernels and the KV write under Triton's interpreter, against their twins."""

import pytest
import torch

from pageloom_kernels import dispatch
from pageloom_kernels.paged_attention.rotary_write_kernel import rotary_write_kv
from pageloom_kernels.rms_norm.kernel import rms_norm
from pageloom_kernels.silu_mul.kernel import silu_mul
from tests.kernels.steps import make_step, rotation_tables

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TWINS = dispatch.reference_operators()


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_equals_twin(output, expected):
    # One unit in the last place: the interpreter truncates where the hardware rounds.
    torch.testing.assert_close(output, expected, rtol=2 * torch.finfo(output.dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [64, 72])
def test_rms_norm(dtype, hidden):
    x = normal(4, 2 * hidden, dtype=dtype)[:, :hidden]  # strided
    weight = normal(hidden, dtype=dtype, seed=1)
    output, summed = rms_norm(x, weight, eps=1e-5)
    assert_equals_twin(output, TWINS.rms_norm(x, weight, eps=1e-5)[0])
    assert summed is x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_with_residual(dtype):
    x, residual, weight = (normal(*s, dtype=dtype, seed=i) for i, s in enumerate([(4, 72), (4, 72), (72,)]))
    output, summed = rms_norm(x, weight, eps=1e-5, residual=residual)
    assert_equals_twin(summed, x + residual)
    # From the kernel's own sum: a sum rounded otherwise would show in every normalized value.
    assert_equals_twin(output, TWINS.rms_norm(summed, weight, eps=1e-5)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("intermediate", [64, 1100])
def test_silu_mul(dtype, intermediate):
    gate_up = normal(3, 2 * intermediate, dtype=dtype) * 3
    expected = TWINS.silu_mul(gate_up)
    torch.testing.assert_close(silu_mul(gate_up), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(2, 2, 16), (6, 2, 32), (8, 2, 24)])
@pytest.mark.parametrize("block_size", [16, 64])
def test_rotary_write(dtype, num_heads, num_kv_heads, head_dim, block_size):
    step = make_step(
        [(1, 20), (1, 0), (6, 64)],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    cos, sin = rotation_tables(64, head_dim)
    cache, twin_cache = step.kv_cache.clone(), step.kv_cache.clone()
    query = rotary_write_kv(step.query, step.key, step.value, cos, sin, cache, step.batch)
    expected = TWINS.rotary_write_kv(step.query, step.key, step.value, cos, sin, twin_cache, step.batch)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(query, expected, rtol=2 * eps, atol=eps)
    torch.testing.assert_close(cache, twin_cache, rtol=2 * eps, atol=eps, equal_nan=True)


def test_no_tokens():
    empty = torch.zeros(0, 8)
    assert rms_norm(empty, torch.ones(8), eps=1e-5)[0].shape == (0, 8)
    assert silu_mul(empty).shape == (0, 4)
