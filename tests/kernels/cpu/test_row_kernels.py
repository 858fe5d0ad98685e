"""RMSNorm, SiLU·mul and RoPE with the KV write in the library, beside their PyTorch twins."""

import ctypes

import pytest
import torch

from pageloom_kernels import rms_norm, rotary_write_kv, silu_mul
from pageloom_kernels.cpu import structs
from tests.kernels.cpu.kv_blocks import to_library
from tests.kernels.cpu.libraries import INSTRUCTION_SETS, load
from tests.kernels.steps import make_step, rotation_tables

# Whole vectors of every instruction set, and two that end within one.
WIDTHS = [576, 72, 3]

pytestmark = pytest.mark.parametrize("library", INSTRUCTION_SETS, indirect=True)


@pytest.fixture
def library(request):
    return load(request.param)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def assert_rounds_alike(output, expected):
    """A sum in another order may tip a rounding now and then; another order of rounding changes every third value."""
    assert torch.allclose(output.float(), expected.float(), rtol=2**-7, atol=1e-6)
    assert (output == expected).double().mean() > 0.98


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("with_x", [False, True])
def test_rms_norm(library, width, with_x):
    x, residual, weight = normal(9, width), normal(9, width, seed=1), normal(width, seed=2)
    if with_x:
        expected, expected_sum = rms_norm(x, weight, eps=1e-5, residual=residual)
    else:
        expected, expected_sum = rms_norm(residual, weight, eps=1e-5)
    output = torch.full_like(x, torch.nan)
    library.functions.pageloom_rms_norm(
        x.data_ptr() if with_x else None, residual.data_ptr(), weight.data_ptr(), 1e-5, 9, width, output.data_ptr()
    )
    assert torch.equal(residual, expected_sum)
    assert_rounds_alike(output, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(library, width):
    gate_up = normal(9, 2 * width) * 6
    gate_up[0, :3] = torch.tensor([-200.0, 200.0, 0.0])
    output = torch.full((9, width), torch.nan, dtype=torch.bfloat16)
    library.functions.pageloom_silu_mul(gate_up.data_ptr(), 9, width, output.data_ptr())
    # The exponential stops at e^88, so that what should be zero is only next to it.
    assert output[0, 0].abs() < 1e-30
    output[0, 0] = 0
    assert_rounds_alike(output, silu_mul(gate_up))


@pytest.mark.parametrize("head_dim", [64, 128, 80])
@pytest.mark.parametrize("block_size", [32, 64])
def test_rotary_write(library, head_dim, block_size):
    """Tokens of several sequences, one of which is not kept; slots that no token has stay as they were."""
    step = make_step(
        [(1, 5), (1, 64), (7, 40), (33, 100), (2, 1)],
        num_heads=6, num_kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=torch.bfloat16,
    )  # fmt: skip
    assert (step.batch.slot_mapping < 0).any()
    cos, sin = rotation_tables(128, head_dim)
    qkv = torch.cat((step.query, step.key, step.value), dim=1).contiguous()
    cache = to_library(step.kv_cache)
    expected = rotary_write_kv(step.query, step.key, step.value, cos, sin, step.kv_cache, step.batch)
    rotary = structs.RotaryWrite(
        num_heads=6, num_kv_heads=2, head_dim=head_dim, cos=cos.data_ptr(), sin=sin.data_ptr(),
        positions=step.batch.positions.data_ptr(), slot_mapping=step.batch.slot_mapping.data_ptr(), num_rows=len(qkv),
    )  # fmt: skip
    # As two threads might, of which the first one is late; the two tokens at 15 share pairs of values.
    for first, last in ((15, len(qkv)), (0, 15)):
        library.functions.pageloom_rotary_write(ctypes.byref(rotary), qkv.data_ptr(), cache.data_ptr(), first, last)
    assert_rounds_alike(qkv[:, :6], expected)
    assert torch.equal(cache.isnan(), to_library(step.kv_cache).isnan())
    assert_rounds_alike(cache.nan_to_num(), to_library(step.kv_cache).nan_to_num())
