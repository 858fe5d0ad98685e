"""The attention kernels under Triton's interpreter, against their twin."""

import math

import pytest
import torch

from pageloom_kernels.paged_attention.decode_kernel import decode, plan_segments
from pageloom_kernels.paged_attention.launch import paged_attention
from pageloom_kernels.paged_attention.prefill_kernel import plan_query_blocks, prefill
from pageloom_kernels.paged_attention.reference import paged_attention as twin
from pageloom_kernels.paged_attention.tuning import DecodeTuning, Gpu, PrefillTuning
from tests.kernels.steps import make_step

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
GPU = Gpu(capability=90, num_sms=2)

DECODES = [(1, 1), (1, 16), (1, 97), (1, 33), (1, 160)]
EXTENDS = [(5, 5), (33, 33), (3, 40), (20, 57), (1, 30)]
MIXED = [(1, 50), (1, 3), *EXTENDS]


def run_decode(step, *, tile=32, min_segment_tokens=32, num_programs=12):
    output = torch.full(step.query.shape, torch.nan, dtype=step.query.dtype)
    tuning = DecodeTuning(
        num_programs=num_programs, min_segment_tokens=min_segment_tokens, tile=tile, num_warps=4, num_stages=2
    )
    decode(
        step.query,
        step.kv_cache,
        step.batch,
        scale_log2=step.scale * math.log2(math.e),
        tuning=tuning,
        output=output,
    )
    return output


def run_prefill(step, *, block_m=32, tile=32):
    output = torch.full(step.query.shape, torch.nan, dtype=step.query.dtype)
    prefill(
        step.query,
        step.kv_cache,
        step.batch,
        scale_log2=step.scale * math.log2(math.e),
        tuning=PrefillTuning(block_m=block_m, tile=tile, num_warps=4, num_stages=2),
        output=output,
    )
    return output


def assert_equals_twin(output, step):
    expected = twin(step.query, step.kv_cache, step.batch, scale=step.scale)
    torch.testing.assert_close(output, expected, rtol=0, atol=TOLERANCE[step.query.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("min_segment_tokens", [32, 256], ids=["split", "whole"])
def test_decode(dtype, min_segment_tokens):
    step = make_step(DECODES, dtype=dtype)
    assert_equals_twin(run_decode(step, min_segment_tokens=min_segment_tokens), step)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("tile", [16, 64])
def test_decode_block_sizes(block_size, tile):
    step = make_step([(1, 5), (1, 64), (1, 150)], block_size=block_size)
    assert_equals_twin(run_decode(step, tile=tile, min_segment_tokens=64), step)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (6, 2), (8, 2), (20, 1)])
@pytest.mark.parametrize("head_dim", [16, 24])
def test_decode_heads(num_heads, num_kv_heads, head_dim):
    step = make_step([(1, 7), (1, 70)], num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    assert_equals_twin(run_decode(step), step)


def test_decode_of_padding_gives_zeros():
    step = make_step([(1, 0), (1, 40), (1, 0)])
    output = run_decode(step)
    assert_equals_twin(output, step)
    assert not output[0].any()


def test_decode_of_many_segments():
    step = make_step([(1, 20 * 16 + 5)], num_heads=2, num_kv_heads=1)
    assert_equals_twin(run_decode(step, tile=16, min_segment_tokens=16, num_programs=40), step)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_prefill(dtype):
    step = make_step(EXTENDS, dtype=dtype)
    assert_equals_twin(run_prefill(step), step)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("tile", [16, 64])
def test_prefill_block_sizes(block_size, tile):
    step = make_step([(20, 90), (9, 9)], block_size=block_size)
    assert_equals_twin(run_prefill(step, tile=tile), step)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (6, 2), (8, 2), (20, 1)])
@pytest.mark.parametrize("head_dim", [16, 24])
def test_prefill_heads(num_heads, num_kv_heads, head_dim):
    step = make_step([(11, 40)], num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    assert_equals_twin(run_prefill(step, block_m=16), step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_both_kernels_fill_a_mixed_step(dtype):
    step = make_step(MIXED, dtype=dtype)
    assert_equals_twin(paged_attention(step.query, step.kv_cache, step.batch, scale=step.scale, gpu=GPU), step)


def test_segments_cover_every_sequence_within_the_bound():
    for target in (1, 3, 16, 200):
        lengths = torch.tensor([0, 1, 255, 256, 300, 5000, 32768, 0, 17], dtype=torch.int32)
        segments = plan_segments(lengths, target=target, min_tokens=256)
        counts = segments.first.diff()
        owners = torch.repeat_interleave(torch.arange(len(lengths)), counts)
        padding = torch.full((len(segments.seq) - len(owners),), len(lengths))
        assert torch.equal(segments.seq.long(), torch.cat((owners, padding)))
        assert torch.equal(counts == 0, lengths == 0)
        longest = max(256, -(-int(lengths.sum()) // target))
        assert (lengths <= counts * longest * 9 / 8).all()


def test_query_blocks_belong_to_their_sequence():
    query_lens = [1, 1, 5, 1, 64, 17, 0, 16]
    query_start = torch.tensor([0, *query_lens]).cumsum(0).int()
    block_seq = plan_query_blocks(query_start, sum(query_lens), 2, 16)
    for i in range(2, len(query_lens)):
        first = (int(query_start[i]) - 2) // 16 + i - 2
        assert (block_seq[first : first + -(-query_lens[i] // 16)] == i).all()
