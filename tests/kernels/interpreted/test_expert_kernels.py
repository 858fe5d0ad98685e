"""The expert kernels under Triton's interpreter, against their twin, and how pairs are cut into blocks."""

import pytest
import torch

from pageloom_kernels.expert_mlp.down_kernel import down_weighted
from pageloom_kernels.expert_mlp.gate_up_kernel import gate_up_silu
from pageloom_kernels.expert_mlp.grouping import plan_expert_blocks
from pageloom_kernels.expert_mlp.launch import expert_mlp
from pageloom_kernels.expert_mlp.reference import expert_mlp as twin
from pageloom_kernels.expert_mlp.tuning import TileShape
from tests.kernels.experts import make_experts

# The interpreter truncates where the hardware rounds.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("num_tokens", "num_experts", "experts_per_token"), [(1, 8, 3), (7, 4, 1), (70, 3, 2)])
def test_experts(dtype, num_tokens, num_experts, experts_per_token):
    arguments = make_experts(num_tokens, num_experts=num_experts, experts_per_token=experts_per_token, dtype=dtype)
    torch.testing.assert_close(expert_mlp(*arguments), twin(*arguments), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("hidden", "inner"), [(16, 16), (40, 72)])
@pytest.mark.parametrize("block_n", [16, 64])
def test_tiles(hidden, inner, block_n):
    arguments = make_experts(37, num_experts=4, experts_per_token=2, hidden=hidden, inner=inner)
    x, gate_up, down, expert_ids, weights = arguments
    shape = TileShape(block_m=16, block_n=block_n, block_k=32, num_warps=4, num_stages=1)
    blocks = plan_expert_blocks(expert_ids, 4, 16)
    output = down_weighted(
        gate_up_silu(x, gate_up, blocks, experts_per_token=2, shape=shape), down, weights, blocks, shape=shape
    )
    torch.testing.assert_close(output.view(37, 2, hidden).sum(1), twin(*arguments), rtol=0, atol=5e-6)


def test_no_tokens():
    assert expert_mlp(*make_experts(0, num_experts=4, experts_per_token=2)).shape == (0, 32)


@pytest.mark.parametrize("block_m", [4, 16])
@pytest.mark.parametrize("experts", [[0] * 33, [7] * 3, [1, 5, 1, 5, 1, 1, 1, 1, 1, 7], list(range(8)) * 9])
def test_blocks_cover_every_pair_once(experts, block_m):
    blocks = plan_expert_blocks(torch.tensor(experts).view(-1, 1), 8, block_m)
    covered = []
    for block, expert in enumerate(blocks.block_expert.tolist()):
        if expert == 8:
            continue
        start = int(blocks.first_pair[expert]) + (block - int(blocks.first_block[expert])) * block_m
        pairs = blocks.pairs[start : min(start + block_m, int(blocks.first_pair[expert + 1]))].tolist()
        assert pairs
        assert {experts[pair] for pair in pairs} == {expert}
        covered += pairs
    assert sorted(covered) == list(range(len(experts)))
    assert int(blocks.first_block[-1]) <= len(blocks.block_expert)
