"""bfloat16 products of the library: against float64 and PyTorch, and the same bits in whatever company."""

import random

import pytest
import torch
from torch.nn import functional

from tests.kernels.cpu.libraries import INSTRUCTION_SETS, load
from tests.kernels.cpu.matrices import Multiplier

# Full panels of 32 outputs, a part of one, less than one, and rows that are not whole cache lines.
SHAPES = [(96, 64), (77, 34), (1, 2), (33, 1538)]
NUM_ROWS = [*range(1, 41), 128, 300]

instruction_sets = pytest.mark.parametrize("library", INSTRUCTION_SETS, indirect=True)


@pytest.fixture
def library(request):
    return load(request.param)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@instruction_sets
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_equals_pytorch_but_for_the_order_of_the_sum(library, out_features, in_features):
    weight, bias = normal(out_features, in_features), normal(out_features, seed=1)
    multiplier = Multiplier(library, weight)
    # Rows with a gap between them.
    rows = normal(max(NUM_ROWS), in_features + 6, seed=2)[:, :in_features]
    exact = rows.double() @ weight.double().T
    # Rounding once, and fp32 sums.
    scale = rows.double().abs() @ weight.double().abs().T
    error = 2.0**-24 * in_features * scale
    for num_rows in NUM_ROWS:
        x, expected = rows[:num_rows], exact[:num_rows]
        sums = multiplier.sums(x)
        assert ((sums - expected).abs() <= error[:num_rows]).all(), num_rows
        for given_bias in (None, bias):
            biased = sums if given_bias is None else sums + given_bias.float()
            assert torch.equal(multiplier.rounded(x, given_bias), biased.bfloat16()), num_rows
    theirs = functional.linear(rows.contiguous(), weight, bias)
    assert (multiplier.rounded(rows, bias) != theirs).double().mean() < 0.01


@instruction_sets
def test_a_row_has_the_same_bits_in_any_company(library):
    weight = normal(200, 576)
    rows = normal(64, 576, seed=1)
    alone = torch.cat([Multiplier(library, weight, num_threads=1).sums(row[None]) for row in rows])
    rng = random.Random(0)
    for num_threads in (1, 2, 3, 5):
        multiplier = Multiplier(library, weight, num_threads=num_threads)
        for _ in range(10):
            chosen = rng.sample(range(64), rng.randint(1, 64))
            assert torch.equal(multiplier.sums(rows[chosen]), alone[chosen])


@instruction_sets
def test_the_largest_is_the_first_of_equals(library):
    weight = normal(500, 64)
    weight[[30, 31, 32, 63, 64, 499]] = weight[100].clone()
    multiplier = Multiplier(library, weight, num_threads=3)
    rows = normal(40, 64, seed=1)
    # Along the repeated weight, which then is the largest by far.
    rows[::2] = weight[100] * 4
    winners = multiplier.winners(rows)
    assert (winners[::2] == 30).all()
    # Equal rows have equal sums to the last bit, so this is no matter of rounding.
    assert torch.equal(winners, multiplier.sums(rows).argmax(-1))


@instruction_sets
def test_rows_without_a_finite_largest_have_no_winner(library):
    weight = normal(70, 64).abs() + 0.1
    multiplier = Multiplier(library, weight)
    rows = normal(6, 64, seed=1)
    rows[1, 5] = torch.nan
    rows[2, 5] = torch.inf
    rows[3] = torch.finfo(torch.bfloat16).max
    rows[4, 5] = -torch.inf
    winners = multiplier.winners(rows)
    assert (winners[1:5] == -1).all()
    assert torch.equal(winners[[0, 5]], multiplier.sums(rows[[0, 5]]).argmax(-1))


@instruction_sets
def test_rows_come_back_as_they_were(library):
    weight = normal(77, 34)
    multiplier = Multiplier(library, weight)
    for index in (0, 31, 32, 63, 64, 76):
        assert torch.equal(multiplier.row(index), weight[index])


@instruction_sets
def test_rounding_is_to_nearest_even_and_keeps_what_is_no_number(library):
    values = torch.tensor([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, -1 - 2**-8, 3e38, torch.inf, torch.nan])
    # 1 * high + 1 * low gives sums that no bfloat16 holds.
    high = values.bfloat16()
    low = (values - high.float()).nan_to_num(0, 0, 0).bfloat16()
    multiplier = Multiplier(library, torch.stack((high, low), dim=1).contiguous())
    ones = torch.ones(1, 2, dtype=torch.bfloat16)
    expected = multiplier.sums(ones).bfloat16()
    assert torch.equal(multiplier.rounded(ones).nan_to_num(7.0), expected.nan_to_num(7.0))
    assert expected.float()[0, 1:5].tolist() == [1.0, 1.015625, 1.0078125, -1.0]
