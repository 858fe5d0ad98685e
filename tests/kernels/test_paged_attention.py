"""The plain PyTorch path of paged attention and of the KV write, against dense fp64 arithmetic."""

from dataclasses import replace

import pytest
import torch

from pageloom_kernels import paged_attention, rotary_write_kv
from tests.kernels.steps import dense_attention, dense_rotation, make_step, rotation_tables

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}

STEPS = {
    "one-token": [(1, 1)],
    "decodes": [(1, 1), (1, 16), (1, 17), (1, 200), (1, 33)],
    "prompt": [(37, 37)],
    "chunk-with-context": [(20, 61)],
    "mixed": [(1, 40), (1, 7), (5, 5), (16, 48), (2, 100)],
    "long-prompt": [(300, 300)],
    "long-chunk-with-context": [(1, 3), (270, 300)],
}


def attend(step):
    return paged_attention(step.query, step.kv_cache, step.batch, scale=step.scale)


def largest_error(result, expected):
    return float((result.double() - expected).abs().max())


@pytest.mark.parametrize("sequences", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_equals_dense_attention(sequences, dtype):
    step = make_step(sequences, dtype=dtype)
    assert largest_error(attend(step), dense_attention(step)) < TOLERANCE[dtype]


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 3), (9, 3), (4, 1)])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_shapes(block_size, num_heads, num_kv_heads, head_dim):
    step = make_step(
        [(1, 70), (1, 129), (9, 50)],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
    )
    assert largest_error(attend(step), dense_attention(step)) < TOLERANCE[torch.float32]


def test_decodes_that_need_several_chunks_keep_their_order():
    lengths = [50 + 37 * i % 150 for i in range(48)]
    step = make_step([(1, n) for n in lengths], num_heads=9, num_kv_heads=3, head_dim=64, block_size=32)
    assert largest_error(attend(step), dense_attention(step)) < TOLERANCE[torch.float32]


def test_a_sequence_of_length_zero_gives_zeros_and_disturbs_nobody():
    padded = make_step([(1, 0), (1, 20), (1, 0), (1, 3)])
    output = attend(padded)
    assert torch.equal(output[[0, 2]], torch.zeros(2, 4, 16))
    assert largest_error(output[[1, 3]], dense_attention(padded)[[1, 3]]) < TOLERANCE[torch.float32]


def test_table_entries_beyond_the_sequence_do_not_matter():
    step = make_step([(1, 5), (1, 90), (4, 9)])
    expected = attend(step)
    tables = step.batch.block_tables.clone()
    tables[0, 1:] = 2
    tables[2, 1:] = 1
    changed = replace(step, batch=replace(step.batch, block_tables=tables))
    assert torch.equal(attend(changed), expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("block_size", "num_kv_heads"), [(16, 1), (32, 2)])
def test_rotary_write(dtype, block_size, num_kv_heads):
    step = make_step(
        [(1, 32), (1, 1), (20, 20), (5, 60)], num_kv_heads=num_kv_heads, block_size=block_size, dtype=dtype
    )
    cos, sin = rotation_tables(60, 16)
    before = step.kv_cache.clone()
    query = rotary_write_kv(step.query, step.key, step.value, cos, sin, step.kv_cache, step.batch)

    assert largest_error(query, dense_rotation(step.query, step.batch.positions, cos, sin)) < TOLERANCE[dtype]
    blocks, offsets = step.batch.slot_mapping // block_size, step.batch.slot_mapping % block_size
    written_key, written_value = step.kv_cache[blocks, 0, :, offsets], step.kv_cache[blocks, 1, :, offsets]
    assert largest_error(written_key, dense_rotation(step.key, step.batch.positions, cos, sin)) < TOLERANCE[dtype]
    assert torch.equal(written_value, step.value)
    before[blocks, :, :, offsets] = step.kv_cache[blocks, :, :, offsets]
    assert torch.equal(before.nan_to_num(7.0), step.kv_cache.nan_to_num(7.0)), "a slot not in slot_mapping was written"


def test_tokens_without_a_slot_are_not_written():
    step = make_step([(1, 20), (1, 0), (1, 0)])
    cos, sin = rotation_tables(50, 16)
    before = step.kv_cache.clone()
    rotary_write_kv(step.query, step.key, step.value, cos, sin, step.kv_cache, step.batch)
    changed = (before.nan_to_num(7.0) != step.kv_cache.nan_to_num(7.0)).any(-1).any(1).any(1).nonzero()
    assert changed.tolist() == [[int(step.batch.slot_mapping[0]) // 16, int(step.batch.slot_mapping[0]) % 16]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(3, 4, 8)}, r"query must be \[tokens, heads, 16\]"),
        ({"query": torch.zeros(3, 4, 16, dtype=torch.float16)}, "query must have the cache's dtype torch.float32"),
        ({"query": torch.zeros(3, 3, 16)}, "3 query heads cannot share 2 KV heads"),
        ({"kv_cache": torch.zeros(2, 4, 2, 16, 16).transpose(0, 1)}, "kv_cache must be a contiguous"),
    ],
)
def test_bad_attention_input_is_named(change, message):
    step = replace(make_step([(3, 3)]), **change)
    with pytest.raises(ValueError, match=message):
        attend(step)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": torch.zeros(3, 4, 16)}, "key and value must both have the cache's 2 heads"),
        ({"value": torch.zeros(2, 2, 16)}, "key and value must both have the cache's 2 heads"),
        ({"cos": torch.zeros(50, 16)}, r"cos must be float32 \[max_position, 8\]"),
        ({"sin": torch.zeros(50, 8, dtype=torch.float16)}, r"sin must be float32 \[max_position, 8\]"),
    ],
)
def test_bad_write_input_is_named(change, message):
    step = make_step([(3, 3)])
    cos, sin = rotation_tables(50, 16)
    arguments = {"query": step.query, "key": step.key, "value": step.value, "cos": cos, "sin": sin} | change
    with pytest.raises(ValueError, match=message):
        rotary_write_kv(**arguments, kv_cache=step.kv_cache, batch=step.batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": torch.tensor([3])}, r"seq_lens must be a contiguous torch.int32 of shape \[1\]"),
        ({"query_start": torch.tensor([0], dtype=torch.int32)}, r"query_start must be .* of shape \[2\]"),
        ({"slot_mapping": torch.zeros(2, dtype=torch.int64)}, r"slot_mapping must be .* of shape \[3\]"),
        ({"num_decodes": 2}, "num_decodes must be between 0 and the 1 sequences, got 2"),
    ],
)
def test_bad_batch_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        replace(make_step([(3, 3)]).batch, **change)
