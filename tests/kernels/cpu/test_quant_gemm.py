"""Matrices that stay in ggml's blocks, beside gguf's own dequantization."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from pageloom_kernels.cpu.library import CpuLibrary, load_cpu_library
from pageloom_kernels.cpu.thread_pool import ThreadPool
from pageloom_kernels.cpu.weights import WeightStore
from tests.kernels.cpu.libraries import INSTRUCTION_SETS, load
from tests.kernels.cpu.matrices import Multiplier

TYPES = [GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")]
# Where the half-precision scales of a block lie.
SCALES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
IN_FEATURES = 512
# Not a multiple of any number of lanes.
OUT_FEATURES = 43
# More than one group of rows in every instruction set, and a smaller one.
NUM_ROWS = 37

types = pytest.mark.parametrize("ggml_type", TYPES, ids=lambda kind: kind.name)
instruction_sets = pytest.mark.parametrize("library", INSTRUCTION_SETS, indirect=True)
code_numbers = pytest.mark.parametrize("codes", [1, 2], ids=["byte", "two-bytes"])


@pytest.fixture
def library(request: pytest.FixtureRequest) -> CpuLibrary:
    return load(request.param)


def multiplier(
    library: CpuLibrary, *parts: tuple[GGMLQuantizationType, np.ndarray], codes: int = 1, num_threads: int = 2
) -> Multiplier:
    return Multiplier(library, parts, in_features=IN_FEATURES, codes_per_input=codes, num_threads=num_threads)


def random_blocks(kind: GGMLQuantizationType, num_rows: int, seed: int = 0) -> np.ndarray:
    """Every code that a block can hold, with scales between 2^-8 and 2^-6 of either sign."""
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (num_rows, IN_FEATURES // block_elements, block_bytes), dtype=np.uint8)
    for offset in SCALES[kind.name]:
        scales = random.uniform(2**-8, 2**-6, blocks.shape[:2]) * random.choice([-1, 1], blocks.shape[:2])
        blocks[:, :, offset : offset + 2] = scales.astype(np.float16)[:, :, None].view(np.uint8)
    return blocks.reshape(num_rows, -1)


def random_rows(num_rows: int, seed: int = 0) -> Tensor:
    """Blocks of very different sizes, one of them zero, and a gap between the rows."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, IN_FEATURES + 32, generator=random)
    rows *= 10 ** torch.empty(num_rows, IN_FEATURES // 32 + 1).uniform_(-3, 2, generator=random).repeat_interleave(
        32, 1
    )
    rows[:, 64:96] = 0
    return rows.to(torch.bfloat16)[:, :IN_FEATURES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What numpy computes of the same blocks and rows, in double precision."""

    weight: np.ndarray  # [out, in] as gguf dequantizes it
    quantized: np.ndarray  # [rows, in] the rows as the bytes and scales that they are multiplied as
    steps: np.ndarray  # [rows, in] the scale of each of them


@cache
def reference(kind: GGMLQuantizationType) -> Reference:
    x = random_rows(NUM_ROWS).float().numpy().reshape(NUM_ROWS, -1, 32)
    largest = np.abs(x).max(-1, keepdims=True)
    steps = largest * np.float32(1 / 127)
    with np.errstate(divide="ignore"):
        codes = np.rint(x * np.where(largest > 0, np.float32(127) / largest, np.float32(0)))
    assert codes.min() == -127
    assert codes.max() == 127
    return Reference(
        weight=dequantize(random_blocks(kind, OUT_FEATURES), kind).astype(np.float64),
        quantized=(codes.astype(np.float64) * steps).reshape(NUM_ROWS, -1),
        steps=np.broadcast_to(steps, x.shape).reshape(NUM_ROWS, -1),
    )


@types
@instruction_sets
def test_sums_are_those_of_the_dequantized_weights(library, ggml_type):
    sums = multiplier(library, (ggml_type, random_blocks(ggml_type, OUT_FEATURES))).sums(random_rows(NUM_ROWS)).numpy()
    expected = reference(ggml_type)
    # A code and its offset or minimum are multiplied apart, and the two products are what is rounded.
    magnitude = np.abs(expected.quantized) @ (np.abs(expected.weight) + np.abs(expected.weight).max()).T
    assert (np.abs(sums - expected.quantized @ expected.weight.T) <= 1e-6 * magnitude).all()


@types
def test_quantizing_the_rows_costs_half_a_step_at_most(ggml_type):
    product = multiplier(load_cpu_library(), (ggml_type, random_blocks(ggml_type, OUT_FEATURES)))
    x = random_rows(NUM_ROWS)
    expected = reference(ggml_type)
    bound = expected.steps / 2 @ np.abs(expected.weight).T
    error = np.abs(product.sums(x).numpy() - x.double().numpy() @ expected.weight.T)
    assert (error <= 1.001 * bound).all()
    # Errors of different inputs cancel: far from the bound, but not zero.
    assert 0.005 < error.mean() / bound.mean() < 0.1


@types
def test_a_second_byte_leaves_a_254th_of_that(ggml_type):
    product = multiplier(load_cpu_library(), (ggml_type, random_blocks(ggml_type, OUT_FEATURES)), codes=2)
    x = random_rows(NUM_ROWS)
    expected = reference(ggml_type)
    error = np.abs(product.sums(x).numpy() - x.double().numpy() @ expected.weight.T)
    magnitude = np.abs(expected.quantized) @ (np.abs(expected.weight) + np.abs(expected.weight).max()).T
    bound = expected.steps / 2 @ np.abs(expected.weight).T
    assert (error <= 1.001 * bound / 254 + 1e-6 * magnitude).all()


@types
@instruction_sets
def test_rows_are_dequantized_as_gguf_does(library, ggml_type):
    product = multiplier(library, (ggml_type, random_blocks(ggml_type, OUT_FEATURES)))
    rows = torch.stack([product.row(index) for index in range(OUT_FEATURES)])
    weight = torch.from_numpy(dequantize(random_blocks(ggml_type, OUT_FEATURES), ggml_type))
    assert torch.equal(rows, weight.to(torch.bfloat16))


@types
@code_numbers
def test_results_are_the_same_to_the_last_bit_in_any_company(ggml_type, codes):
    blocks, x = random_blocks(ggml_type, OUT_FEATURES), random_rows(NUM_ROWS)
    product = multiplier(load_cpu_library(), (ggml_type, blocks), codes=codes)
    together = product.sums(x)
    assert together.isfinite().all()
    for first, last in ((0, 1), (1, 3), (5, 12), (20, 36), (3, 36)):
        assert torch.equal(product.sums(x[first:last]), together[first:last])
    for num_threads in (1, 5):
        other = multiplier(load_cpu_library(), (ggml_type, blocks), codes=codes, num_threads=num_threads)
        assert torch.equal(other.sums(x), together)


@types
@code_numbers
def test_instruction_sets_give_the_same_bits(ggml_type, codes):
    blocks, x = random_blocks(ggml_type, OUT_FEATURES), random_rows(NUM_ROWS)
    widest = multiplier(load_cpu_library(), (ggml_type, blocks), codes=codes).sums(x)
    for name in ("avx2", "avx512"):
        assert torch.equal(multiplier(load(name), (ggml_type, blocks), codes=codes).sums(x), widest)


@instruction_sets
@pytest.mark.parametrize("has_bias", [False, True])
def test_outputs_are_rounded_once(library, has_bias):
    product = multiplier(library, (TYPES[1], random_blocks(TYPES[1], OUT_FEATURES)))
    x = random_rows(NUM_ROWS)
    bias = torch.randn(OUT_FEATURES, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    sums = product.sums(x)
    expected = (sums + bias.float() if has_bias else sums).to(torch.bfloat16)
    assert torch.equal(product.rounded(x, bias if has_bias else None), expected)


@instruction_sets
def test_parts_of_different_types_lie_below_each_other(library):
    parts = [(kind, random_blocks(kind, 5 + 9 * index, seed=index)) for index, kind in enumerate(TYPES)]
    product, x = multiplier(library, *parts), random_rows(NUM_ROWS)
    alone = [multiplier(library, part) for part in parts]
    assert torch.equal(product.sums(x), torch.cat([one.sums(x) for one in alone], dim=1))
    assert torch.equal(product.row(5 + 14 + 2), alone[2].row(2))


@instruction_sets
@code_numbers
def test_the_largest_output_wins(library, codes):
    product = multiplier(library, (TYPES[2], random_blocks(TYPES[2], OUT_FEATURES)), codes=codes)
    x = random_rows(NUM_ROWS)
    assert torch.equal(product.winners(x), product.sums(x).argmax(dim=1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@instruction_sets
@code_numbers
def test_a_row_that_is_not_finite_is_lost_alone(library, value, codes):
    product = multiplier(library, (TYPES[4], random_blocks(TYPES[4], OUT_FEATURES)), codes=codes)
    x = random_rows(NUM_ROWS)
    sums = product.sums(x)
    x[7, 300] = value
    damaged = product.sums(x)
    assert not damaged[7].isfinite().any()
    kept = [row for row in range(NUM_ROWS) if row != 7]
    assert torch.equal(damaged[kept], sums[kept])
    assert product.winners(x)[7] == -1


@types
def test_blocks_stay_as_small_as_they_are(ggml_type):
    blocks = random_blocks(ggml_type, 4 * 16)
    # K blocks hold 6 bits of a scale in a byte.
    assert blocks.nbytes <= multiplier(load_cpu_library(), (ggml_type, blocks)).store.num_bytes <= 1.04 * blocks.nbytes


def test_other_types_and_parts_of_blocks_have_no_kernel():
    store = WeightStore(ThreadPool(load_cpu_library(), 1))
    assert not store.supports(GGMLQuantizationType.Q5_0, 512)
    assert not store.supports(GGMLQuantizationType.F16, 512)
    assert not store.supports(GGMLQuantizationType.Q4_K, 576)
    assert store.supports(GGMLQuantizationType.Q4_1, 576)
