"""The loop that decode and prefill share: online softmax of a block of queries over tiles of paged KV.

The algorithm is FlashAttention-2's (Dao, 2023). Scores stay unscaled; the softmax scale times log2(e) enters where the
running maximum is subtracted, so that it costs one fused multiply-add and the queries keep all their bits.
"""

import triton.language as tl

from pageloom_kernels.triton_jit import jit


@jit()
def no_weights(BLOCK_M: tl.constexpr, D_PAD: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """`b_o`, `b_m` and `b_l` of `attend` before any tile."""
    b_m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    return tl.zeros([BLOCK_M, D_PAD], dtype=tl.float32), b_m, tl.zeros([BLOCK_M], dtype=tl.float32)


@jit()
def attend(
    b_o: tl.tensor,  # [BLOCK_M, D_PAD] fp32, weighted values so far
    b_m: tl.tensor,  # [BLOCK_M] fp32, maximum of the scaled scores so far
    b_l: tl.tensor,  # [BLOCK_M] fp32, sum of the weights so far
    b_q: tl.tensor,  # [BLOCK_M, D_PAD]
    b_visible: tl.tensor,  # [BLOCK_M], how many positions a row sees; at least one of those before `stop`
    p_kv: tl.tensor,  # keys of this KV head in block 0
    p_block_table: tl.tensor,
    start: tl.tensor,  # positions from `start`, a multiple of TILE, up to `stop`
    stop: tl.tensor,
    scale_log2: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,  # False: whole tiles, visible to every row
    UPCAST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    if UPCAST:
        b_q = b_q.to(tl.float32)
    o_d = tl.arange(0, D_PAD)
    for i_t in range(start, stop, TILE):
        o_t = i_t + tl.arange(0, TILE)
        o_kv = _offsets(p_block_table, i_t, stop, NUM_KV_HEADS, D, BLOCK_SIZE, TILE, MASKED)
        p_k = p_kv + o_d[:, None] + o_kv[None, :]
        p_v = p_kv + NUM_KV_HEADS * BLOCK_SIZE * D + o_kv[:, None] + o_d[None, :]
        # Slots beyond `stop` may hold anything, NaN included: they are not loaded.
        if MASKED:
            b_k = tl.load(p_k, mask=(o_d[:, None] < D) & (o_t[None, :] < stop), other=0.0)
            b_v = tl.load(p_v, mask=(o_t[:, None] < stop) & (o_d[None, :] < D), other=0.0)
        elif D != D_PAD:
            b_k = tl.load(p_k, mask=o_d[:, None] < D, other=0.0)
            b_v = tl.load(p_v, mask=o_d[None, :] < D, other=0.0)
        else:
            b_k = tl.load(p_k)
            b_v = tl.load(p_v)
        if UPCAST:
            b_k = b_k.to(tl.float32)
            b_v = b_v.to(tl.float32)
        b_s = tl.dot(b_q, b_k, input_precision="ieee")
        if MASKED:
            b_s = tl.where(o_t[None, :] < b_visible[:, None], b_s, float("-inf"))
        b_m_new = tl.maximum(b_m, tl.max(b_s, axis=1) * scale_log2)
        b_p = tl.exp2(b_s * scale_log2 - b_m_new[:, None])
        b_rescale = tl.exp2(b_m - b_m_new)
        b_l = b_l * b_rescale + tl.sum(b_p, axis=1)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_rescale[:, None], input_precision="ieee")
        b_m = b_m_new
    return b_o, b_m, b_l


@jit()
def _offsets(
    p_block_table: tl.tensor,
    i_t: tl.tensor,
    stop: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Where the positions from `i_t` on lie relative to block 0, [TILE] int64."""
    o_tile = tl.arange(0, TILE)
    if BLOCK_SIZE % TILE == 0:
        # The tile lies in one block: one id, and its rows are contiguous.
        i_block = tl.load(p_block_table + i_t // BLOCK_SIZE).to(tl.int64)
        return i_block * (2 * NUM_KV_HEADS * BLOCK_SIZE * D) + (i_t % BLOCK_SIZE + o_tile) * D
    else:
        o_t = i_t + o_tile
        if MASKED:
            o_block = tl.load(p_block_table + o_t // BLOCK_SIZE, mask=o_t < stop, other=0).to(tl.int64)
        else:
            o_block = tl.load(p_block_table + o_t // BLOCK_SIZE).to(tl.int64)
        return o_block * (2 * NUM_KV_HEADS * BLOCK_SIZE * D) + (o_t % BLOCK_SIZE) * D
