"""RoPE and the KV write as one Triton kernel: a program does one token's KV head and the query heads that share it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageloom_kernels.paged_attention.batch import AttentionBatch
from pageloom_kernels.triton_jit import jit


@jit()
def rotary_write_kernel(
    p_query: tl.tensor,
    p_key: tl.tensor,
    p_value: tl.tensor,
    p_cos: tl.tensor,
    p_sin: tl.tensor,
    p_positions: tl.tensor,
    p_slots: tl.tensor,
    p_kv: tl.tensor,
    p_output: tl.tensor,
    stride_query_token: tl.tensor,
    stride_query_head: tl.tensor,
    stride_key_token: tl.tensor,
    stride_key_head: tl.tensor,
    stride_value_token: tl.tensor,
    stride_value_head: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    i_token = tl.program_id(0).to(tl.int64)
    i_kv_head = tl.program_id(1)
    o_h = tl.arange(0, HALF_PAD)
    in_half = o_h < HALF
    position = tl.load(p_positions + i_token)
    b_cos = tl.load(p_cos + position * HALF + o_h, mask=in_half, other=0.0)
    b_sin = tl.load(p_sin + position * HALF + o_h, mask=in_half, other=0.0)

    o_g = tl.arange(0, GROUP_PAD)
    o_head = i_kv_head * GROUP + o_g
    mask = (o_g[:, None] < GROUP) & in_half[None, :]
    p_q = p_query + i_token * stride_query_token + o_head[:, None] * stride_query_head + o_h[None, :]
    b_first = tl.load(p_q, mask=mask, other=0.0).to(tl.float32)
    b_second = tl.load(p_q + HALF, mask=mask, other=0.0).to(tl.float32)
    p_out = p_output + (i_token * (NUM_KV_HEADS * GROUP) + o_head)[:, None] * (2 * HALF) + o_h[None, :]
    dtype = p_output.dtype.element_ty
    tl.store(p_out, (b_first * b_cos[None, :] - b_second * b_sin[None, :]).to(dtype), mask=mask)
    tl.store(p_out + HALF, (b_second * b_cos[None, :] + b_first * b_sin[None, :]).to(dtype), mask=mask)

    slot = tl.load(p_slots + i_token)
    if slot < 0:
        return
    p_k = p_key + i_token * stride_key_token + i_kv_head * stride_key_head + o_h
    b_first_k = tl.load(p_k, mask=in_half, other=0.0).to(tl.float32)
    b_second_k = tl.load(p_k + HALF, mask=in_half, other=0.0).to(tl.float32)
    p_v = p_value + i_token * stride_value_token + i_kv_head * stride_value_head + o_h
    b_first_v = tl.load(p_v, mask=in_half, other=0.0)
    b_second_v = tl.load(p_v + HALF, mask=in_half, other=0.0)
    i_row = (slot // BLOCK_SIZE * (2 * NUM_KV_HEADS) + i_kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
    p_k_slot = p_kv + i_row * (2 * HALF) + o_h
    tl.store(p_k_slot, (b_first_k * b_cos - b_second_k * b_sin).to(dtype), mask=in_half)
    tl.store(p_k_slot + HALF, (b_second_k * b_cos + b_first_k * b_sin).to(dtype), mask=in_half)
    p_v_slot = p_k_slot + NUM_KV_HEADS * BLOCK_SIZE * (2 * HALF)
    tl.store(p_v_slot, b_first_v, mask=in_half)
    tl.store(p_v_slot + HALF, b_second_v, mask=in_half)


def rotary_write_kv(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, kv_cache: Tensor, batch: AttentionBatch
) -> Tensor:
    num_tokens, num_heads, head_dim = query.shape
    _, _, num_kv_heads, block_size, _ = kv_cache.shape
    group = num_heads // num_kv_heads
    output = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    if num_tokens == 0:
        return output
    rotary_write_kernel[(num_tokens, num_kv_heads)](
        query,
        key,
        value,
        cos,
        sin,
        batch.positions,
        batch.slot_mapping,
        kv_cache,
        output,
        *(stride for states in (query, key, value) for stride in states.stride()[:2]),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        GROUP_PAD=triton.next_power_of_2(group),
        HALF=head_dim // 2,
        HALF_PAD=triton.next_power_of_2(head_dim // 2),
        BLOCK_SIZE=block_size,
        num_warps=1,
    )
    return output
